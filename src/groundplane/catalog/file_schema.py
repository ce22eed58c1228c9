"""JSON Schema of a cluster file as people write it: catalogue names, `base`, and entries of their own."""

from __future__ import annotations

from typing import Any, Final

from groundplane.catalog.resolve import STRUCTS
from groundplane.catalog.store import SECTIONS, Catalog
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.schema import struct_schemas

_NAMED: Final = (
    ("ClusterSpec", "server", "servers"),
    ("ServerSpec", "chip", "chips"),
    ("ClusterSpec", "fabric", "fabrics"),
    ("ClusterSpec", "storage", "storages"),
)
"""Struct, field, and the section whose names may stand there instead of a definition."""


def cluster_file_schema(catalog: Catalog | None = None) -> dict[str, Any]:
    """The schema of `ClusterSpec` widened to what `resolve_cluster` accepts in a file."""
    known = catalog or Catalog.shipped()
    (root, *_), definitions = struct_schemas(ClusterSpec, *STRUCTS.values())
    for section, struct in STRUCTS.items():
        _allow_base(definitions[struct.__name__], known.names(section))
    for struct_name, field, section in _NAMED:
        properties = definitions[struct_name]["properties"]
        properties[field] = {"anyOf": [_name_of(known.names(section)), {"$ref": _ref(section)}]}
    server = definitions["ServerSpec"]["properties"]
    server["fabric"] = {"type": "string", "description": "the network such servers usually stand on"}
    cluster = definitions["ClusterSpec"]
    # A server of the catalogue brings its usual fabric.
    cluster["required"] = [name for name in cluster["required"] if name != "fabric"]
    cluster["properties"]["catalog"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "files of further chips, servers and fabrics, relative to this one",
    }
    for section in SECTIONS:
        cluster["properties"][section] = {"type": "object", "additionalProperties": {"$ref": _ref(section)}}
    return {**root, "$defs": definitions}


def _ref(section: str) -> str:
    return f"#/$defs/{STRUCTS[section].__name__}"


def _name_of(names: list[str]) -> dict[str, Any]:
    """Any string, where an editor offers the catalogue's names."""
    return {"anyOf": [{"enum": sorted(names)}, {"type": "string"}]}


def _allow_base(definition: dict[str, Any], names: list[str]) -> None:
    """An entry may say `base: NAME`, and then states only what differs; its name is its key."""
    properties = definition["properties"]
    properties["base"] = {**_name_of(names), "description": "the entry that this one is a variant of"}
    properties["aliases"] = {"type": "array", "items": {"type": "string"}}
    properties["default_server"] = {"type": "string"}
    required = [name for name in definition.pop("required", []) if name != "name"]
    definition["anyOf"] = [{"required": ["base"]}, {"required": required}]
