"""JSON Schema of spec structs, as people write them: quantities are text with a unit, or bare numbers."""

from __future__ import annotations

from typing import Any

import msgspec


def struct_schemas(*structs: type) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A reference to each struct, and all definitions that they need, by name."""
    roots, definitions = msgspec.json.schema_components(structs, ref_template="#/$defs/{name}")
    return list(roots), _with_written_quantities(definitions)


def file_schema(struct: type) -> dict[str, Any]:
    """The whole schema of a file that holds one struct."""
    (root,), definitions = struct_schemas(struct)
    return {**root, "$defs": definitions}


def _with_written_quantities(schema: Any) -> Any:
    """The schema without the number type that msgspec puts beside a quantity's own choice of types.

    Together the two would allow bare numbers only, and an editor would underline every "400 Gb/s".
    """
    if isinstance(schema, list | tuple):
        return [_with_written_quantities(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    held = {name: _with_written_quantities(value) for name, value in schema.items()}
    if "anyOf" in held and held.get("type") in ("number", "integer"):
        del held["type"]
    return held
