"""Request bodies in the OpenAPI document, for routes that check their body by our own loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema


def body_operation(kind: type[Any]) -> type[Operation]:
    """An operation whose documented body is the JSON Schema of a struct, written out whole."""

    @dataclass
    class BodyOperation(Operation):
        def __post_init__(self) -> None:
            (schema,), components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
            self.request_body = RequestBody(
                content={"application/json": OpenAPIMediaType(schema=_Written(_inline(schema, components)))},
                required=True,
            )

    return BodyOperation


class _Written(Schema):
    """A schema that is plain data already."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__()
        self._data = data

    def to_schema(self) -> dict[str, Any]:
        """As it was written."""
        return self._data


def _inline(schema: Any, components: dict[str, Any]) -> Any:
    """The schema with each reference replaced by what it names."""
    if isinstance(schema, list):
        return [_inline(part, components) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(components[schema["$ref"].removeprefix("#/$defs/")], components)
    return {name: _inline(part, components) for name, part in schema.items()}
