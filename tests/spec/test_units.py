"""Quantities: hand-made values, and round trips for anything Hypothesis can think of."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.spec import units
from groundplane.spec.errors import InputError

SPELLINGS = [
    (name, spelling)
    for name, dimension in units.DIMENSIONS.items()
    for spelling in dimension.scale_of
    if spelling
]


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("400 Gb/s", units.BYTES_PER_S, 50e9),
        ("400Gbit/s", units.BYTES_PER_S, 50e9),
        ("400 Gbps", units.BYTES_PER_S, 50e9),
        ("50 GB/s", units.BYTES_PER_S, 50e9),
        ("1 GiB/s", units.BYTES_PER_S, 2.0**30),
        ("80 GiB", units.BYTES, 80 * 2**30),
        ("80 GB", units.BYTES, 80e9),
        ("4096", units.BYTES, 4096),
        ("989 TFLOP/s", units.FLOPS_PER_S, 989e12),
        ("1979 TOP/s", units.FLOPS_PER_S, 1979e12),
        ("312 TFLOPS", units.FLOPS_PER_S, 312e12),
        ("3.2 EFLOP", units.FLOPS, 3.2e18),
        ("15T tokens", units.TOKENS, 15e12),
        ("300B", units.TOKENS, 300e9),
        ("2 k tokens", units.TOKENS, 2000),
        ("500ms", units.SECONDS, 0.5),
        ("1.5 us", units.SECONDS, 1.5e-6),
        ("3µs", units.SECONDS, 3e-6),
        ("2 h", units.SECONDS, 7200),
        ("1 w", units.SECONDS, 604800),
        ("10.2 kW", units.WATTS, 10200),
        ("3 kWh", units.JOULES, 10.8e6),
        (".5 GiB", units.BYTES, 2**29),
        ("1_000 MB", units.BYTES, 1e9),
        ("1e3 GB", units.BYTES, 1e12),
    ],
)
def test_known_quantities(text: str, dimension: units.Dimension, value: float) -> None:
    assert units.parse(text, dimension) == value


def test_bits_bytes_and_binary_prefixes_stay_apart() -> None:
    rates = [units.parse(f"8 {unit}", units.BYTES_PER_S) for unit in ("Gb/s", "GB/s", "GiB/s")]
    assert rates == [1e9, 8e9, 8 * 2.0**30]


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=10**6), st.sampled_from(SPELLINGS))
def test_every_spelling_scales_exactly(number: int, spelling: tuple[str, str]) -> None:
    dimension = units.DIMENSIONS[spelling[0]]
    exact = units.parse_exact(f"{number} {spelling[1]}", dimension)
    assert exact == number * dimension.scale_of[spelling[1]]
    assert units.parse_exact(f"{number}{spelling[1]}", dimension) == exact


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=2**62))
def test_whole_bytes_survive_exactly(size: int) -> None:
    assert units.parse_int(f"{size} B", units.BYTES) == size
    assert units.parse_int(size, units.BYTES) == size


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=10**15))
def test_nanoseconds_survive_exactly(time_ns: int) -> None:
    assert units.parse_ns(f"{time_ns} ns") == time_ns
    assert units.parse_ns(f"{Fraction(time_ns, 1000).limit_denominator(1000).numerator} us") >= 0


SHOWN = [
    (units.show_bytes_per_s, units.BYTES_PER_S, 5e-4),
    (units.show_flops_per_s, units.FLOPS_PER_S, 5e-4),
    (units.show_bytes, units.BYTES, 5e-4),
]


@settings(deadline=None)
@given(st.floats(min_value=1.0, max_value=1e20), st.sampled_from(SHOWN))
def test_what_is_shown_reads_back(value: float, shown: tuple[object, units.Dimension, float]) -> None:
    show, dimension, tolerance = shown
    text = show(value)  # type: ignore[operator]
    assert units.parse(text, dimension) == pytest.approx(value, rel=tolerance)


@settings(deadline=None)
@given(st.floats(min_value=1e-9, max_value=119.0))
def test_short_durations_read_back(value: float) -> None:
    assert units.parse(units.show_duration(value), units.SECONDS) == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.312, "312 ms"),
        (4.2, "4.2 s"),
        (150, "2 min 30 s"),
        (3 * 3600 + 12 * 60, "3 h 12 min"),
        (54 * 86400 + 7200, "54 d 2 h"),
    ],
)
def test_durations_for_reading(seconds: float, text: str) -> None:
    assert units.show_duration(seconds) == text


def test_sizes_and_counts_for_reading() -> None:
    assert units.show_bytes(14.9 * 2**30) == "14.9 GiB"
    assert units.show_bytes_per_s(50e9) == "50 GB/s"
    assert units.show_flops_per_s(989e12) == "989 TFLOP/s"
    assert units.show_count(15e12) == "15 T"


@pytest.mark.parametrize(
    ("value", "dimension", "words"),
    [
        ("fast", units.BYTES_PER_S, "must be a bandwidth such as '400 Gb/s'"),
        ("400", units.BYTES_PER_S, "needs a unit"),
        (400, units.BYTES_PER_S, "needs a unit"),
        ("80 GiB", units.BYTES_PER_S, "not a size"),
        ("5 s", units.BYTES, "not a duration"),
        ("-1 GB", units.BYTES, "must not be negative"),
        ("80 GIB", units.BYTES, "unknown unit 'GIB'"),
        (True, units.BYTES, "must be a size"),
        (math.inf, units.BYTES, "must be a size"),
        (math.nan, units.BYTES, "must be a size"),
        (None, units.BYTES, "must be a size"),
        ("", units.BYTES, "must be a size"),
    ],
)
def test_refusals(value: object, dimension: units.Dimension, words: str) -> None:
    with pytest.raises(InputError) as caught:
        units.parse(value, dimension, field="x")  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert caught.value.field == "x"


def test_a_misspelt_unit_names_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        units.parse("80 GIB", units.BYTES)
    assert caught.value.nearest in {"GiB", "GB"}


def test_a_fraction_of_a_byte_is_refused() -> None:
    with pytest.raises(InputError, match="whole number"):
        units.parse_int("1.5 B", units.BYTES)
    assert units.parse_int("1.5 KiB", units.BYTES) == 1536
