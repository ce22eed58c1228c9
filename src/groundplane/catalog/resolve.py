"""From a name or a file to a complete cluster, server, chip or model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec

from groundplane.catalog.store import SECTIONS, Catalog
from groundplane.spec.cluster import (
    CardSpec,
    ChipSpec,
    ClusterSpec,
    FabricSpec,
    ServerSpec,
    StorageSpec,
    SwitchSpec,
)
from groundplane.spec.errors import InputError, nearest_name, unknown_name
from groundplane.spec.huggingface import llm_from_config, load_llm
from groundplane.spec.llm import LlmSpec
from groundplane.spec.load import Lines, from_data, placed, read_data
from groundplane.spec.topology import TopologyFile, read_topology

_FILE_SUFFIXES: Final = (".yaml", ".yml", ".toml", ".json")
STRUCTS: Final[dict[str, type]] = {
    "chips": ChipSpec,
    "servers": ServerSpec,
    "fabrics": FabricSpec,
    "storages": StorageSpec,
    "cards": CardSpec,
    "switches": SwitchSpec,
}
"""What an entry of each section becomes."""


def resolve_cluster(name_or_path: str | Path, *, catalog: Catalog | None = None) -> ClusterSpec:
    """A cluster from a file or from a preset name.

    Preset names are `CHIPxN` (N chips in the servers that chip usually comes in: "h100x1024"), `SERVERxN` or
    `SERVER-N` (N servers: "dgx-h100x16", "dgx-h100-16").

    Raises:
        InputError: no such file or name (with the nearest), a count that does not fill whole servers, or
            anything wrong in the file.
    """
    known = catalog or Catalog.shipped()
    text = str(name_or_path)
    if is_file_name(name_or_path):
        return load_cluster(name_or_path, catalog=known)
    # Presets are built from files' parts, which live here.
    from groundplane.catalog.presets import preset

    return preset(text, known)


def is_file_name(name_or_path: str | Path) -> bool:
    """Whether a person meant a file, and not a name."""
    text = str(name_or_path)
    return isinstance(name_or_path, Path) or text.lower().endswith(_FILE_SUFFIXES) or "/" in text


def load_cluster(path: str | Path, *, catalog: Catalog | None = None) -> ClusterSpec:
    """A cluster file, in which chip, server, fabric and storage may be names of the catalogue.

    Each may also be a mapping with `base: NAME` and what differs. `catalog: FILE` (or a list, relative
    to this file) and sections such as `chips` and `servers` add entries of the user's own.

    Raises:
        InputError: with file, line and field.
    """
    data, lines = read_data(path)
    file = str(path)
    if not isinstance(data, Mapping):
        raise InputError("must be a mapping", file=file)
    _check_top(data, file, lines)
    known = _own_entries(data, catalog or Catalog.shipped(), Path(path), lines)
    kept = {key: value for key, value in data.items() if key not in SECTIONS and key != "catalog"}
    try:
        complete = expand_cluster(kept, known)
    except InputError as error:
        raise placed(error, file, lines) from None
    cluster = from_data(complete, ClusterSpec, file=file, lines=lines)
    return cluster if cluster.topology is None else _with_topology(cluster, Path(path), lines)


def _with_topology(cluster: ClusterSpec, path: Path, lines: Lines) -> ClusterSpec:
    """The cluster with its topology's file found beside its own, and checked against the number of nodes."""
    named = cluster.topology or TopologyFile("")
    found = msgspec.structs.replace(named, file=str(path.parent / named.file))
    hosts = read_topology(found.file, found.format).hosts
    line, field = lines.get("topology"), "topology.file"
    if len(hosts) not in (1, cluster.num_nodes):
        rule = f"must describe the {cluster.num_nodes} nodes of the cluster, or one of them"
        raise InputError(rule, file=str(path), line=line, field=field, value=len(hosts))
    odd = next((host for host in hosts if host.num_devices not in (0, cluster.server.num_chips)), None)
    if odd is not None:
        rule = f"must give {odd.name} the {cluster.server.num_chips} chips of the server"
        raise InputError(rule, file=str(path), line=line, field=field, value=odd.num_devices)
    return msgspec.structs.replace(cluster, topology=found)


def resolve_entry(section: str, name: str, *, catalog: Catalog | None = None) -> Any:
    """An entry of any section as its struct, by name or alias.

    Raises:
        InputError: unknown section or name (with the nearest), or an entry that is wrong.
    """
    known = catalog or Catalog.shipped()
    if section not in SECTIONS:
        raise unknown_name("section", section, SECTIONS)
    data = known.entry(section, name)
    if section == "servers":
        data = _with_chip(data, known)
        data.pop("fabric", None)
    return from_data(data, STRUCTS[section])


def resolve_chip(name: str, *, catalog: Catalog | None = None) -> ChipSpec:
    """A chip of the catalogue; errors as `resolve_entry`."""
    chip: ChipSpec = resolve_entry("chips", name, catalog=catalog)
    return chip


def resolve_server(name: str, *, catalog: Catalog | None = None) -> ServerSpec:
    """A server of the catalogue; errors as `resolve_entry`."""
    server: ServerSpec = resolve_entry("servers", name, catalog=catalog)
    return server


def resolve_fabric(name: str, *, catalog: Catalog | None = None) -> FabricSpec:
    """A fabric of the catalogue; errors as `resolve_entry`."""
    fabric: FabricSpec = resolve_entry("fabrics", name, catalog=catalog)
    return fabric


def resolve_storage(name: str, *, catalog: Catalog | None = None) -> StorageSpec:
    """Shared storage of the catalogue; errors as `resolve_entry`."""
    storage: StorageSpec = resolve_entry("storages", name, catalog=catalog)
    return storage


def resolve_llm(name_or_path: str | Path) -> LlmSpec:
    """A model of the catalogue by name, or from a `config.json` or the folder that holds one.

    Raises:
        InputError: no such file or name (with the nearest), or anything that the config reader refuses.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith(".json") or Path(text).is_dir():
        return load_llm(name_or_path)
    entry = model_entry(text)
    return llm_from_config(entry["config"], name=entry["name"], file=None)


def model_names() -> list[str]:
    """Names of the catalogue's models, sorted."""
    folder = resources.files("groundplane.catalog") / "data" / "models"
    return sorted(item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json"))


def model_entry(name: str) -> dict[str, Any]:
    """One model's published config with its source: `name`, `source`, `config`.

    Raises:
        InputError: unknown name, with the nearest.
    """
    names = {known.casefold(): known for known in model_names()}
    true_name = names.get(name.casefold())
    if true_name is None:
        raise unknown_name("model", name, names.values())
    file = resources.files("groundplane.catalog") / "data" / "models" / f"{true_name}.json"
    return {"name": true_name, **json.loads(file.read_text("utf-8"))}


def _check_top(data: Mapping[str, Any], file: str, lines: Lines) -> None:
    """Refuses a misspelt top-level field before any name is looked up: `chipz` would hide what it defines."""
    fields = [field.encode_name for field in msgspec.structs.fields(ClusterSpec)]
    kind = data.get("kind", "cluster")
    if kind != "cluster":
        raise InputError("must be cluster", file=file, line=lines.get("kind"), field="kind", value=kind)
    for key in data:
        if key not in (*fields, "kind", "catalog", *SECTIONS):
            near = nearest_name(str(key), (*fields, "catalog", *SECTIONS))
            raise InputError("unknown field", file=file, line=lines.get(key), field=str(key), nearest=near)


def _own_entries(data: Mapping[str, Any], known: Catalog, path: Path, lines: Lines) -> Catalog:
    listed = data.get("catalog", [])
    for item in [listed] if isinstance(listed, str) else listed:
        if not isinstance(item, str):
            raise InputError(
                "must be a file name", file=str(path), line=lines.get("catalog"), field="catalog"
            )
        known = catalog_with_file(path.parent / item, known)
    return _with_checked(
        {key: value for key, value in data.items() if key in SECTIONS}, known, str(path), lines
    )


def catalog_with_file(path: str | Path, catalog: Catalog | None = None) -> Catalog:
    """A catalogue with a file of a user's own entries added, every one of them checked.

    Raises:
        InputError: with file, line and field.
    """
    data, lines = read_data(path)
    return _with_checked(data, catalog or Catalog.shipped(), str(path), lines)


def _with_checked(data: Any, known: Catalog, file: str, lines: Lines) -> Catalog:
    together = known.with_sections(data, file=file, lines=lines)
    for section, entries in data.items():
        for name in entries:
            try:
                resolve_entry(section, str(name), catalog=together)
            except InputError as error:
                field = ".".join(part for part in (section, str(name), error.field) if part)
                inner = InputError(error.rule, field=field, value=error.value, nearest=error.nearest)
                raise placed(inner, file, lines) from None
    return together


def expand_cluster(data: dict[str, Any], known: Catalog) -> dict[str, Any]:
    """The file's data with every name replaced; a server's own fabric serves where none is given."""
    complete = dict(data)
    if "server" in complete:
        server = _expand_server(complete["server"], known)
        usual = server.pop("fabric", None) if isinstance(server, dict) else None
        complete["server"] = server
        if "fabric" not in complete and usual is not None:
            complete["fabric"] = usual
    for field, section in (("fabric", "fabrics"), ("storage", "storages")):
        if field in complete:
            complete[field] = _within(field, lambda f=field, s=section: known.expand(s, complete[f]))
    return complete


def _expand_server(value: Any, known: Catalog) -> Any:
    return _within("server", lambda: _with_chip(known.expand("servers", value), known))


def _with_chip(server: Any, known: Catalog) -> Any:
    if isinstance(server, dict) and "chip" in server:
        return {**server, "chip": _within("chip", lambda: known.expand("chips", server["chip"]))}
    return server


def _within(field: str, expand: Any) -> Any:
    try:
        return expand()
    except InputError as error:
        inner = ".".join(part for part in (field, error.field) if part)
        raise InputError(error.rule, field=inner, value=error.value, nearest=error.nearest) from None
