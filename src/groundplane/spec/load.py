"""From a file or plain data to a checked struct, with errors that say where.

YAML and TOML are read alike. Quantities are parsed by the dimension of their field, unknown fields are
refused with the nearest valid name, and every error carries file, line, field path and value. Knows of
no particular struct.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import yaml
from msgspec import inspect as shapes

from groundplane.spec import units
from groundplane.spec.errors import InputError, nearest_name

T = TypeVar("T")
Lines = dict[str, int]
MAX_FILE_BYTES = 16 * 2**20
"""Largest spec file that is read: more is a mistake in the path, not a spec."""


def load(path: str | Path, struct: type[T]) -> T:
    """Reads one YAML, TOML or JSON file into `struct`.

    Raises:
        InputError: missing or unreadable file, syntax, or anything that `from_data` refuses.
    """
    data, lines = read_data(path)
    return from_data(data, struct, file=str(path), lines=lines)


def read_data(path: str | Path) -> tuple[Any, Lines]:
    """The file's plain data, and the line of each field path in it.

    Raises:
        InputError: missing or unreadable file, unknown suffix, or a syntax error.
    """
    file = Path(path)
    readers = {".yaml": _read_yaml, ".yml": _read_yaml, ".json": _read_yaml, ".toml": _read_toml}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise InputError("must be a .yaml, .toml or .json file", file=str(path))
    return reader(read_text(file), str(path))


def read_text(file: Path) -> str:
    """The text of a file a person named.

    Raises:
        InputError: missing (with the nearest name beside it), a folder, unreadable, too large or not UTF-8.
    """
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"must be smaller than {units.show_bytes(MAX_FILE_BYTES)}", file=str(file))
        return file.read_bytes().decode()
    except FileNotFoundError:
        beside = [entry.name for entry in file.parent.iterdir()] if file.parent.is_dir() else []
        raise InputError("no such file", file=str(file), nearest=nearest_name(file.name, beside)) from None
    except UnicodeDecodeError:
        raise InputError("must be UTF-8 text", file=str(file)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(file)) from None


def from_data(
    data: Any, struct: type[T], *, file: str | None = None, lines: Lines | None = None, bare: bool = False
) -> T:
    """Checks plain data and builds `struct` from it.

    Args:
        data: dicts, lists and scalars, as a parser gives them.
        struct: a msgspec struct type.
        file: named in errors.
        lines: line of each field path, for errors.
        bare: accept numbers without a unit for every quantity, in base units (data that a program wrote).

    Raises:
        InputError: unknown or missing field, wrong type, unit or range.
    """
    shape = _shape_of(cast("Hashable", struct))
    try:
        plain = _prepare(data, shape, "", bare)
        return msgspec.convert(plain, struct)
    except InputError as error:
        raise placed(error, file, lines) from None
    except msgspec.ValidationError as error:
        raise placed(_from_msgspec(error, data, shape), file, lines) from None


@functools.cache
def _shape_of(struct: type) -> shapes.Type:
    """What msgspec knows of a struct: it never changes, and finding it out takes most of a load's time."""
    return shapes.type_info(struct)


def placed(error: InputError, file: str | None, lines: Lines | None) -> InputError:
    """The error with its file, and the line of its field or of the nearest thing around it that has one."""
    line = None
    path = error.field or ""
    while lines and line is None:
        line = lines.get(path)
        if not path:
            break
        path = re.sub(r"(\.[^.\[\]]*|\[\d+\]|^[^.\[\]]+)$", "", path)
    return error.at(file=file, line=line)


def _prepare(data: Any, shape: Any, path: str, bare: bool) -> Any:
    """The data with quantities parsed and unknown fields refused; shapes that do not fit pass through."""
    dimension = None
    while isinstance(shape, shapes.Metadata):
        dimension = (shape.extra or {}).get("dimension", dimension)
        shape = shape.type
    if dimension is not None and data is not None:
        return _quantity(data, dimension, shape, path, bare)
    if isinstance(shape, shapes.UnionType):
        return _prepare_union(data, shape, path, bare)
    if isinstance(shape, shapes.StructType) and isinstance(data, Mapping):
        return _prepare_struct(data, shape, path, bare)
    if isinstance(shape, shapes.DictType) and isinstance(data, Mapping):
        return {key: _prepare(value, shape.value_type, _join(path, key), bare) for key, value in data.items()}
    if isinstance(shape, shapes.ListType | shapes.VarTupleType) and isinstance(data, list | tuple):
        return [_prepare(item, shape.item_type, f"{path}[{index}]", bare) for index, item in enumerate(data)]
    return data


def _prepare_union(data: Any, shape: shapes.UnionType, path: str, bare: bool) -> Any:
    if data is None:
        return None
    options: list[Any] = [option for option in shape.types if not isinstance(option, shapes.NoneType)]
    if isinstance(data, Mapping):
        structs: list[Any] = [option for option in options if isinstance(option, shapes.StructType)]
        tagged = [
            option for option in structs if option.tag_field and data.get(option.tag_field) == option.tag
        ]
        options = (
            tagged
            or structs
            or [option for option in options if isinstance(option, shapes.DictType)]
            or options
        )
    return _prepare(data, options[0], path, bare) if len(options) == 1 else data


def _prepare_struct(
    data: Mapping[str, Any], shape: shapes.StructType, path: str, bare: bool
) -> dict[str, Any]:
    fields = {field.encode_name: field for field in shape.fields}
    if shape.tag_field and data.get(shape.tag_field, shape.tag) != shape.tag:
        # Before any field: those of another kind of file are all unknown here, and none of them is the fault.
        raise InputError(
            f"must be {shape.tag}", field=_join(path, shape.tag_field), value=data[shape.tag_field]
        )
    known = [*fields, *([shape.tag_field] if shape.tag_field else [])]
    for key in data:
        if key not in known and shape.forbid_unknown_fields:
            near = nearest_name(str(key), known)
            raise InputError(
                "unknown field" + ("" if near else f"; known: {', '.join(known)}"),
                field=_join(path, key),
                nearest=near,
            )
    for name, field in fields.items():
        if field.required and name not in data:
            raise InputError("is required", field=_join(path, name))
    return {
        key: _prepare(value, fields[key].type, _join(path, key), bare) if key in fields else value
        for key, value in data.items()
    }


def _quantity(data: Any, suffix: str, shape: Any, path: str, bare: bool) -> float | int:
    whole = isinstance(shape, shapes.IntType)
    if bare and isinstance(data, int | float) and not isinstance(data, bool):
        return int(data) if whole and float(data).is_integer() else data
    dimension = units.DIMENSIONS[suffix]
    if whole:
        return units.parse_int(data, dimension, field=path)
    return units.parse(data, dimension, field=path)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _from_msgspec(error: msgspec.ValidationError, data: Any, shape: Any) -> InputError:
    """One of ours from msgspec's message, which ends in ``- at `$.path` ``."""
    text = str(error)
    match = re.search(r" - at `(?:key in )?\$\.?(.*)`$", text)
    path = match[1] if match else ""
    rule = text[: match.start()] if match else text
    rule = rule[:1].lower() + rule[1:]
    if isinstance(error.__cause__, InputError):
        cause = error.__cause__
        inner = ".".join(part for part in (path, cause.field) if part)
        return InputError(cause.rule, field=inner or None, value=cause.value, nearest=cause.nearest)
    value, description = _look_up(data, shape, path)
    if description and "regex" in rule:
        rule = f"must be {description}"
    if rule.startswith("invalid") and isinstance(value, str):
        choices = _choices(shape, path)
        if choices:
            rule = "must be " + ("one of " if len(choices) > 1 else "") + ", ".join(choices)
            return InputError(rule, field=path or None, value=value, nearest=nearest_name(value, choices))
    rule = _in_words(rule)
    return InputError(rule, field=path or None, value=value)


def _choices(shape: Any, path: str) -> list[str]:
    """The words that a field of fixed choices allows; none where it is no such field."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", path):
        shape = _bare_shape(shape)
        if isinstance(shape, shapes.StructType) and name == shape.tag_field:
            return [str(shape.tag)]
        if isinstance(shape, shapes.StructType):
            shape = next((field.type for field in shape.fields if field.encode_name == name), None)
        else:
            shape = getattr(shape, "item_type" if index else "value_type", None)
    shape = _bare_shape(shape)
    return [str(value) for value in shape.values] if isinstance(shape, shapes.LiteralType) else []


def _bare_shape(shape: Any) -> Any:
    """A type without its annotations, and the one real option of an optional one."""
    while isinstance(shape, shapes.Metadata | shapes.UnionType):
        if isinstance(shape, shapes.Metadata):
            shape = shape.type
            continue
        options = [option for option in shape.types if not isinstance(option, shapes.NoneType)]
        if len(options) != 1:
            return shape
        shape = options[0]
    return shape


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
}


def _in_words(rule: str) -> str:
    """Msgspec's "expected `int` >= 1, got `str`" as "must be a whole number >= 1"."""
    match = re.match(r"expected `(\w+)(?: \| (?:null|\w+))*`( [<>]=? ?\S+)?(?:, got `\w+`)?$", rule)
    if match is None or match[1] not in _WORDS:
        return rule
    return f"must be {_WORDS[match[1]]}{match[2] or ''}"


def _look_up(data: Any, shape: Any, path: str) -> tuple[Any, str | None]:
    """The value at a field path and the description its type carries, as far as both can be followed."""
    description = None
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", path):
        while isinstance(shape, shapes.Metadata):
            shape = shape.type
        try:
            data = data[name] if name else data[int(index)]
        except (KeyError, IndexError, TypeError, ValueError):
            return ..., None
        if isinstance(shape, shapes.StructType):
            shape = next((field.type for field in shape.fields if field.encode_name == name), None)
        else:
            shape = getattr(shape, "item_type", getattr(shape, "value_type", None))
    if isinstance(shape, shapes.Metadata):
        description = (shape.extra_json_schema or {}).get("description")
    return (data if isinstance(data, str | int | float | bool | None) else ...), description


def _read_yaml(text: str, file: str) -> tuple[Any, Lines]:
    loader = yaml.SafeLoader(text)
    lines: Lines = {}
    try:
        node = loader.get_single_node()
        data = _yaml_value(loader, node, "", lines, file) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(
            f"is not valid YAML: {error.problem or error.context}",
            file=file,
            line=mark.line + 1 if mark else None,
        ) from None
    except yaml.YAMLError as error:
        raise InputError(f"is not valid YAML: {str(error).splitlines()[0]}", file=file) from None
    finally:
        loader.dispose()
    return data, lines


def _yaml_value(loader: yaml.SafeLoader, node: yaml.Node, path: str, lines: Lines, file: str) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            inner = _join(path, key)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str | int | float | bool):
                raise InputError("a key must be a plain word", file=file, line=line, field=path or None)
            if key in mapping:
                raise InputError("is given twice", file=file, line=line, field=inner)
            lines[inner] = line
            mapping[key] = _yaml_value(loader, value_node, inner, lines, file)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [
            _yaml_value(loader, item, f"{path}[{index}]", lines, file)
            for index, item in enumerate(node.value)
        ]
    return loader.construct_object(node, deep=True)


def _read_toml(text: str, file: str) -> tuple[Any, Lines]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"at line (\d+)", str(error))
        rule = re.sub(r" \(at .*\)$", "", str(error))
        raise InputError(
            f"is not valid TOML: {rule}", file=file, line=int(match[1]) if match else None
        ) from None
    return data, _toml_lines(text)


def _toml_lines(text: str) -> Lines:
    """Line of each key, from the headers and `key =` lines; enough for errors, not a second parser."""
    lines: Lines = {"": 1}
    prefix = ""
    arrays: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$", raw)
        key = re.match(r"\s*([A-Za-z0-9_.\"'-]+)\s*=", raw)
        if header:
            prefix = re.sub(r"[\"']", "", header[2])
            if header[1] == "[[":
                arrays[prefix] = arrays.get(prefix, -1) + 1
                prefix = f"{prefix}[{arrays[prefix]}]"
            lines[prefix] = number
        elif key:
            lines.setdefault(_join(prefix, re.sub(r"[\"']", "", key[1])), number)
    return lines
