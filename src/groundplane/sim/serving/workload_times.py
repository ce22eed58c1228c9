"""Arrival times as traces write them, in integer nanoseconds: times of day, and numbers of any precision.

Fractions may have any number of digits; what is finer than a nanosecond is cut off.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from groundplane.sim.serving.workload_rows import IntArray
from groundplane.spec.request_trace import TimeUnit

_DIGITS: Final[dict[TimeUnit, int]] = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""Decimal places of a nanosecond in each unit."""

_TIME: Final = re.compile(
    r"\s*(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d*))?)?\s*(Z|UTC|[+-]\d\d:?\d\d)?\s*"
)
_NUMBER: Final = re.compile(r"\s*\+?(\d+)(?:\.(\d*))?\s*")

_TIME_RULE: Final = "must be a time such as 2023-11-16 18:17:03.9799600, or a number"
_NUMBER_RULE: Final = "must be a number of 0 or more"


def times_of_day_ns(values: Sequence[Any]) -> IntArray:
    """Times such as "2023-11-16 18:17:03.9799600", with or without a zone, since 1970.

    Raises:
        ValueError: no such time.
    """
    days: dict[str, int] = {}
    found = np.empty(len(values), dtype=np.int64)
    for index, value in enumerate(values):
        match = _TIME.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(_TIME_RULE)
        date, hour, minute, second, fraction, zone = match.groups()
        day = days.get(date)
        if day is None:
            try:
                day = (datetime.date.fromisoformat(date) - datetime.date(1970, 1, 1)).days
            except ValueError:
                raise ValueError(_TIME_RULE) from None
            days[date] = day
        seconds = int(hour) * 3600 + int(minute) * 60 + int(second or 0)
        # A leap second is the one after 59; hours and minutes end where clocks end.
        if int(hour) > 23 or int(minute) > 59 or int(second or 0) > 60:
            raise ValueError(_TIME_RULE)
        if zone and zone[0] in "+-":
            shift = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
            seconds -= shift if zone[0] == "+" else -shift
        found[index] = (day * 86400 + seconds) * 10**9 + int((fraction or "").ljust(9, "0")[:9])
    return found


def numbers_ns(values: Sequence[Any], unit: TimeUnit) -> IntArray:
    """Numbers in `unit`, text or not; digits beyond those of a float are kept where they are text.

    Raises:
        ValueError: no number, not finite, negative, or beyond 292 years.
    """
    digits = _DIGITS[unit]
    scale = 10**digits
    found = np.empty(len(values), dtype=np.int64)
    for index, value in enumerate(values):
        if isinstance(value, bool):
            raise ValueError(_NUMBER_RULE)
        match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
        if match is not None:
            fraction = (match[2] or "").ljust(digits, "0")[:digits]
            whole = int(match[1]) * scale + int(fraction or 0)
        else:
            number = float(value)
            if not 0 <= number < float("inf"):
                raise ValueError("must not be negative" if number < 0 else _NUMBER_RULE)
            whole = value * scale if isinstance(value, int) else round(number * scale)
        if whole >= 2**63:
            raise ValueError("must be less than 292 years")
        found[index] = whole
    return found


def unit_of_size(values: Sequence[Any]) -> TimeUnit:
    """The unit that makes the largest number a time since 1970 in this century; seconds if none does."""
    numbers = [float(value) for value in (values[0], values[-1]) if _finite(value)]
    largest = max(numbers, default=0.0)
    for unit, scale in (("ns", 1e9), ("us", 1e6), ("ms", 1e3)):
        if largest > 9e8 * scale:
            return unit  # type: ignore[return-value]
    return "s"


def _finite(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False
