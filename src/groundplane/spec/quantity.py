"""Annotated types for struct fields that hold quantities.

A field declared `memory_bytes: Bytes = msgspec.field(name="memory")` is written `memory: 80 GiB` in a file
and held as a number of bytes. The loader (`groundplane.spec.load`) reads the dimension from here.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from groundplane.spec import units

MAX_SECONDS = 3_155_760_000.0
"""Longest duration, 100 years: as nanoseconds, and added to the time now, it still fits into 64 bits."""
MAX_COUNT = 2**53
"""Largest count: every JSON reader holds it exactly."""


def _meta(suffix: str, *, positive: bool = False) -> Meta:
    dimension = units.DIMENSIONS[suffix]
    schema: dict[str, Any] = {
        "anyOf": [{"type": "string"}, {"type": "number"}],
        "description": f"a {dimension.name}, such as {dimension.example!r}",
        "examples": [dimension.example],
    }
    bound: dict[str, Any] = {"gt": 0} if positive else {"ge": 0}
    if suffix == "s":
        bound["le"] = MAX_SECONDS
    return Meta(extra={"dimension": suffix}, extra_json_schema=schema, **bound)


Bytes = Annotated[int, _meta("bytes")]
BytesPerSecond = Annotated[float, _meta("bytes_per_s", positive=True)]
FlopsPerSecond = Annotated[float, _meta("flops_per_s", positive=True)]
Flops = Annotated[float, _meta("flops")]
Seconds = Annotated[float, _meta("s")]
Tokens = Annotated[int, _meta("tokens")]
Watts = Annotated[float, _meta("w")]

PositiveInt = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Name = Annotated[
    str,
    Meta(
        # `$` alone lets a line end follow.
        pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?(?!\n)$",
        description="lower-case letters, digits, '.', '_', '-', at most 63, a letter or digit at both ends",
    ),
]
