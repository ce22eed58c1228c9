"""Quantities as people write them, and as the code holds them.

Inside, every quantity is a float or an int in its SI base unit (bytes, seconds, bytes per second,
FLOPs, ...). Words such as GiB, Gb/s and TFLOP/s exist only here, where they are parsed and printed.
The difference that hurts most in this field is kept: `Gb/s` is bits, `GB/s` is bytes, `GiB` is 2**30.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from groundplane.spec.errors import InputError, nearest_name

_DECIMAL: Final = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}


@dataclass(frozen=True)
class Dimension:
    """A kind of quantity: its name, its base unit, and every spelling accepted for it."""

    name: str
    example: str
    scale_of: dict[str, Fraction]
    bare_allowed: bool


def _bytes_spellings(suffix: str) -> dict[str, Fraction]:
    spellings = {f"{prefix}B{suffix}": Fraction(scale) for prefix, scale in (_DECIMAL | _BINARY).items()}
    bits = {
        f"{prefix}{bit}{suffix}": Fraction(scale, 8)
        for prefix, scale in _DECIMAL.items()
        for bit in ("b", "bit")
    }
    return spellings | (bits if suffix else {})


def _scaled(unit: str, prefixes: dict[str, int]) -> dict[str, Fraction]:
    return {f"{prefix}{unit}": Fraction(scale) for prefix, scale in prefixes.items()}


_RATE: Final = _bytes_spellings("/s") | {
    f"{prefix}bps": Fraction(scale, 8) for prefix, scale in _DECIMAL.items()
}

BYTES: Final = Dimension("size", "80 GiB", _bytes_spellings(""), bare_allowed=True)
BYTES_PER_S: Final = Dimension("bandwidth", "400 Gb/s", _RATE, bare_allowed=False)
FLOPS: Final = Dimension(
    "work", "3.2 EFLOP", _scaled("FLOP", _DECIMAL) | _scaled("FLOPs", _DECIMAL), bare_allowed=True
)
FLOPS_PER_S: Final = Dimension(
    "compute rate",
    "989 TFLOP/s",
    _scaled("FLOP/s", _DECIMAL)
    | _scaled("FLOPS", _DECIMAL)
    | _scaled("FLOPs/s", _DECIMAL)
    | _scaled("OP/s", _DECIMAL),
    bare_allowed=False,
)
SECONDS: Final = Dimension(
    "duration",
    "500ms",
    {
        "ns": Fraction(1, 10**9),
        "us": Fraction(1, 10**6),
        "µs": Fraction(1, 10**6),
        "ms": Fraction(1, 10**3),
        "s": Fraction(1),
        "min": Fraction(60),
        "m": Fraction(60),
        "h": Fraction(3600),
        "d": Fraction(86400),
        "days": Fraction(86400),
        "w": Fraction(7 * 86400),
    },
    bare_allowed=False,
)
TOKENS: Final = Dimension(
    "token count",
    "15T tokens",
    {
        f"{prefix}{space}{word}": Fraction(scale)
        for prefix, scale in (_DECIMAL | {"B": 10**9}).items()
        for space in ("", " ")
        for word in ("", "tokens", "token")
    },
    bare_allowed=True,
)
WATTS: Final = Dimension("power", "700 W", _scaled("W", _DECIMAL), bare_allowed=False)
JOULES: Final = Dimension(
    "energy",
    "3 kWh",
    _scaled("J", _DECIMAL) | {f"{p}Wh": Fraction(s * 3600) for p, s in _DECIMAL.items()},
    bare_allowed=False,
)

DIMENSIONS: Final = {
    "bytes": BYTES,
    "bytes_per_s": BYTES_PER_S,
    "flops": FLOPS,
    "flops_per_s": FLOPS_PER_S,
    "s": SECONDS,
    "tokens": TOKENS,
    "w": WATTS,
    "j": JOULES,
}
"""Dimension by the unit suffix that names carry (`memory_bytes`, `link_bytes_per_s`, `timeout_s`)."""

_QUANTITY: Final = re.compile(r"^\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")


def parse_exact(value: str | int | float, dimension: Dimension, *, field: str | None = None) -> Fraction:
    """The quantity in base units, exactly as written.

    Args:
        value: text such as "400 Gb/s", or a bare number where the dimension allows one.
        dimension: what kind of quantity is expected.
        field: the field's path, for the error.

    Raises:
        InputError: no number, unknown unit, a unit of another dimension, not finite, or negative.
    """
    rule = f"must be a {dimension.name} such as {dimension.example!r}"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(rule, field=field, value=value)
    if isinstance(value, int | float):
        if not dimension.bare_allowed:
            raise InputError(f"needs a unit: {rule}", field=field, value=value)
        if not math.isfinite(value):
            raise InputError(rule, field=field, value=value)
        number, unit = Fraction(value), ""
    else:
        match = _QUANTITY.match(value)
        if match is None:
            raise InputError(rule, field=field, value=value)
        number, unit = Fraction(match[1].replace("_", "")), re.sub(r"\s+", " ", match[2])
    if number < 0:
        raise InputError(f"must not be negative: {rule}", field=field, value=value)
    if unit == "" and dimension.bare_allowed:
        return number
    scale = dimension.scale_of.get(unit)
    if scale is None:
        raise _unknown_unit(value, unit, dimension, field)
    return number * scale


def parse(value: str | int | float, dimension: Dimension, *, field: str | None = None) -> float:
    """As `parse_exact`, rounded to the nearest float."""
    return float(parse_exact(value, dimension, field=field))


def parse_int(value: str | int | float, dimension: Dimension, *, field: str | None = None) -> int:
    """As `parse_exact`, for quantities that are counted: whole base units only.

    Raises:
        InputError: also when the value is not a whole number of base units.
    """
    exact = parse_exact(value, dimension, field=field)
    if exact.denominator != 1:
        raise InputError(
            f"must be a whole number of base units of {dimension.name}", field=field, value=value
        )
    return int(exact)


def parse_ns(value: str | int | float, *, field: str | None = None) -> int:
    """A duration in integer nanoseconds, rounded to the nearest."""
    return round(parse_exact(value, SECONDS, field=field) * 10**9)


def _unknown_unit(value: object, unit: str, dimension: Dimension, field: str | None) -> InputError:
    if unit == "":
        return InputError(
            f"needs a unit: must be a {dimension.name} such as {dimension.example!r}",
            field=field,
            value=value,
        )
    for other in DIMENSIONS.values():
        if other is not dimension and unit in other.scale_of:
            return InputError(
                f"must be a {dimension.name} such as {dimension.example!r}, not a {other.name}",
                field=field,
                value=value,
            )
    return InputError(
        f"unknown unit {unit!r}: must be a {dimension.name} such as {dimension.example!r}",
        field=field,
        value=value,
        nearest=nearest_name(unit, (spelling for spelling in dimension.scale_of if spelling)),
    )


def _show(value: float, unit: str, steps: list[tuple[float, str]], digits: int) -> str:
    if value == 0:
        return f"0 {unit}"
    for scale, prefix in steps:
        if abs(value) >= scale * (1 - 0.5 * 10**-digits):
            return f"{value / scale:.{digits}g} {prefix}{unit}"
    scale, prefix = steps[-1]
    return f"{value / scale:.{digits}g} {prefix}{unit}"


_BIG: Final = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]


def show_bytes(value_bytes: float) -> str:
    """A size for reading, in binary units: "14.9 GiB"."""
    return _show(
        value_bytes, "B", [(2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki"), (1.0, "")], 4
    )


def show_bytes_per_s(value_bytes_per_s: float) -> str:
    """A bandwidth for reading, in bytes: "50 GB/s"."""
    return _show(value_bytes_per_s, "B/s", _BIG, 4)


def show_flops_per_s(value_flops_per_s: float) -> str:
    """A compute rate for reading: "989 TFLOP/s"."""
    return _show(value_flops_per_s, "FLOP/s", _BIG, 4)


def show_count(value: float) -> str:
    """A plain count for reading: "15 T", "820"."""
    return _show(value, "", _BIG, 4).strip()


def show_duration(value_s: float) -> str:
    """A duration for reading: "312 ms", "4.2 s", "3 h 12 min", "54 d 2 h"."""
    if abs(value_s) < 120:
        return _show(value_s, "s", [(1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n")], 3)
    if value_s < 7200:
        return f"{int(value_s // 60)} min {int(value_s % 60)} s"
    if value_s < 2 * 86400:
        return f"{int(value_s // 3600)} h {int(value_s % 3600 // 60)} min"
    return f"{int(value_s // 86400)} d {int(value_s % 86400 // 3600)} h"
