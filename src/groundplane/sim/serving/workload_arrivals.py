"""Arrival times: gamma gaps, a rate that follows the day, and clients as ServeGen describes them.

All of them draw a process of rate one on operational time and map it through the inverse of the expected
count, so that a changing rate stretches bursts and does not smooth them (Cinlar 1975, section 4.7). Arrays
in seconds; randomness comes in as a generator.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.spec.request_trace import ArrivalSpec

RUN_IN_GAPS: Final = 64.0
"""Mean gaps drawn and dropped before time 0: a process that starts with an arrival has too many at first."""

_SHORTEST_SHAPE: Final = 1e-4
"""Smallest gamma or Weibull shape that is drawn: a gap coefficient of variation of 100."""


def gamma_gaps(rng: np.random.Generator, count: int, cv: float) -> FloatArray:
    """`count` gaps of mean 1 and coefficient of variation `cv`, gamma distributed; all 1 for cv 0."""
    if cv <= 0:
        return np.ones(count)
    shape = 1.0 / cv**2
    return np.asarray(rng.gamma(shape, 1.0 / shape, count), dtype=np.float64)


def weibull_gaps(rng: np.random.Generator, count: int, shape: float) -> FloatArray:
    """`count` gaps of mean 1 from a Weibull distribution of that shape."""
    shape = max(shape, 0.05)
    return np.asarray(rng.weibull(shape, count) / math.gamma(1.0 + 1.0 / shape), dtype=np.float64)


def arrivals_s(
    spec: ArrivalSpec, rng: np.random.Generator, *, count: int | None = None, duration_s: float | None = None
) -> FloatArray:
    """Ascending arrival times from 0, until `count` or `duration_s` is reached, whichever is first.

    Args:
        spec: rate, burstiness and the shape of the day.
        rng: the source of randomness.
        count, duration_s: at least one of them.
    """
    expected = math.inf if duration_s is None else float(_expected(spec, np.array([duration_s]))[0])
    wanted = expected if count is None else min(float(count), expected)
    # Sums of gaps scatter by cv sqrt(n): six deviations more are drawn, and more again in the rare rest.
    operational = np.zeros(0)
    last = -RUN_IN_GAPS * min(spec.burstiness, 1.0)
    while True:
        more = int(wanted + RUN_IN_GAPS + 6.0 * spec.burstiness * math.sqrt(wanted + RUN_IN_GAPS)) + 16
        times = last + np.cumsum(gamma_gaps(rng, more, spec.burstiness))
        last = float(times[-1])
        operational = np.concatenate([operational, times[times >= 0]])
        enough = last >= expected if count is None else len(operational) >= count or last >= expected
        if enough:
            break
    operational = operational[operational <= expected] if duration_s is not None else operational
    operational = operational if count is None else operational[:count]
    return _real_time(spec, operational)


def piecewise_arrivals_s(
    rng: np.random.Generator, edges_s: FloatArray, rates: FloatArray, kinds: FloatArray, shapes: FloatArray
) -> FloatArray:
    """Arrivals whose rate and gap distribution change from window to window.

    Args:
        edges_s: (w + 1,) ascending limits of the windows.
        rates: (w,) arrivals a second.
        kinds: (w,) 1 for Weibull gaps, 0 for gamma gaps.
        shapes: (w,) shape of either.
    """
    cumulative = np.concatenate([[0.0], np.cumsum(rates * np.diff(edges_s))])
    total = float(cumulative[-1])
    if total <= 0:
        return np.zeros(0)
    found = np.zeros(0)
    last = -RUN_IN_GAPS
    while last < total:
        more = int(total - max(last, 0.0) + RUN_IN_GAPS) + 64
        # The i-th gap is drawn from the window that operational time has about reached by then.
        about = np.clip(max(last, 0.0) + np.arange(more) - (RUN_IN_GAPS if last < 0 else 0.0), 0.0, total)
        window = np.clip(np.searchsorted(cumulative, about, side="right") - 1, 0, len(rates) - 1)
        gaps = np.empty(more)
        for index in np.unique(window):
            mine = window == index
            shape = max(float(shapes[index]), _SHORTEST_SHAPE)
            if kinds[index]:
                gaps[mine] = weibull_gaps(rng, int(mine.sum()), shape)
            else:
                gaps[mine] = rng.gamma(shape, 1.0 / shape, int(mine.sum()))
        times = last + np.cumsum(gaps)
        last = float(times[-1])
        found = np.concatenate([found, times[(times >= 0) & (times < total)]])
    return _inverse(found, edges_s, cumulative)


def _inverse(operational: FloatArray, edges_s: FloatArray, cumulative: FloatArray) -> FloatArray:
    """Operational time to seconds; stretches in which nothing is expected are jumped over."""
    steps = np.diff(cumulative)
    window = np.searchsorted(cumulative, operational, side="right") - 1
    window = np.clip(window, 0, len(steps) - 1)
    share = (operational - cumulative[window]) / np.where(steps[window] > 0, steps[window], 1.0)
    return np.asarray(edges_s[window] + share * (edges_s[window + 1] - edges_s[window]), dtype=np.float64)


def _expected(spec: ArrivalSpec, times_s: FloatArray) -> FloatArray:
    """Expected arrivals until each time: the integral of rate (1 + diurnal cos(2 pi (t - peak) / period))."""
    if spec.diurnal == 0 or spec.period_s == 0:
        return spec.rate * times_s
    turn = 2.0 * math.pi / spec.period_s
    swing = np.sin(turn * (times_s - spec.peak_s)) + math.sin(turn * spec.peak_s)
    return np.asarray(spec.rate * (times_s + spec.diurnal / turn * swing), dtype=np.float64)


def _real_time(spec: ArrivalSpec, operational: FloatArray) -> FloatArray:
    if spec.diurnal == 0 or spec.period_s == 0 or not len(operational):
        return operational / spec.rate
    # One period is tabled; all others are copies of it, and each has rate x period arrivals.
    grid = np.linspace(0.0, spec.period_s, 4097)
    table = _expected(spec, grid)
    whole = spec.rate * spec.period_s
    turns = np.floor(operational / whole)
    rest = np.interp(operational - turns * whole, table, grid)
    return np.asarray(turns * spec.period_s + rest, dtype=np.float64)
