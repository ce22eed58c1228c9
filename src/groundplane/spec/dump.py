"""Writes a spec struct as the YAML that `spec.load` reads back: the inverse of `from_data`.

Quantities get their unit; fields that equal their default are left out.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml
from msgspec import inspect as shapes

_UNIT_OF = {
    "bytes_per_s": "B/s",
    "flops_per_s": "FLOP/s",
    "flops": "FLOP",
    "s": "s",
    "w": "W",
    "j": "J",
}


def to_yaml(value: msgspec.Struct) -> str:
    """The struct as YAML text; lists of plain records take one line a record."""
    return yaml.safe_dump(
        to_plain(value), sort_keys=False, default_flow_style=None, width=200, allow_unicode=True
    )


def to_plain(value: msgspec.Struct) -> dict[str, Any]:
    """The struct as dicts, lists and scalars, quantities written with their unit to 5 digits."""
    plain = _plain(value, shapes.type_info(type(value)))
    if not isinstance(plain, dict):
        raise TypeError("a struct becomes a dict")
    return plain


def _plain(value: Any, shape: Any) -> Any:
    dimension = None
    while isinstance(shape, shapes.Metadata):
        dimension = (shape.extra or {}).get("dimension", dimension)
        shape = shape.type
    if isinstance(shape, shapes.UnionType):
        return None if value is None else _plain(value, _option(value, shape))
    if dimension is not None:
        unit = _UNIT_OF.get(dimension)
        return value if unit is None else f"{value:.5g} {unit}"
    if isinstance(shape, shapes.StructType):
        return _struct(value, shape)
    if isinstance(shape, shapes.DictType):
        return {key: _plain(item, shape.value_type) for key, item in value.items()}
    if isinstance(shape, shapes.ListType | shapes.VarTupleType):
        return [_plain(item, shape.item_type) for item in value]
    return value


def _option(value: Any, shape: shapes.UnionType) -> Any:
    """The member of a union that a value that is not None was held under."""
    options = [option for option in shape.types if not isinstance(option, shapes.NoneType)]
    for option in options:
        if isinstance(option, shapes.StructType) and isinstance(value, option.cls):
            return option
    return options[0]


def _struct(value: Any, shape: shapes.StructType) -> dict[str, Any]:
    plain: dict[str, Any] = {} if shape.tag_field is None else {shape.tag_field: shape.tag}
    for field in shape.fields:
        held = getattr(value, field.name)
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if field.required or held != default:
            plain[field.encode_name] = _plain(held, field.type)
    return plain
