"""How far predictions were from measurements: what `groundplane validate` prints, for every kind of data.

Errors are (predicted - measured) / measured. Coverage is the share of measurements inside the predicted 10th
to 90th percentile. Knows nothing of what was predicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np

LEAST_OF_A_SOURCE: Final = 5
"""Rows below which a source is listed apart: a median of four says little."""


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row: its measurement, the prediction and its interval, all in the same unit.

    `row` is the 1-based line of the file (the header is line 1), or the place in the shipped points.
    """

    row: int
    source: str
    measured: float
    predicted: float
    low: float
    high: float
    inferred: bool = False

    @property
    def error_pct(self) -> float:
        """Signed error in per cent of the measurement."""
        return 100.0 * (self.predicted / self.measured - 1.0)


class Excluded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row that was not compared, and why."""

    row: int
    reason: str


class Errors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Errors of one group of rows; None where it is empty."""

    source: str
    n: int
    median_abs_pct: float | None
    mean_abs_pct: float | None
    p90_abs_pct: float | None
    bias_pct: float | None
    coverage_pct: float | None


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole comparison. `pooled` holds complete rows, `inferred` those where a field was assumed."""

    sources: list[Errors]
    small_sources: list[Errors]
    pooled: Errors
    inferred: Errors
    excluded: list[Excluded]


def errors_of(source: str, outcomes: Iterable[Outcome]) -> Errors:
    """The errors of some rows under one name."""
    rows = list(outcomes)
    if not rows:
        return Errors(source, 0, None, None, None, None, None)
    signed = np.array([row.error_pct for row in rows])
    inside = [row.low <= row.measured <= row.high for row in rows]
    return Errors(
        source=source,
        n=len(rows),
        median_abs_pct=_short(np.median(np.abs(signed))),
        mean_abs_pct=_short(np.mean(np.abs(signed))),
        p90_abs_pct=_short(np.quantile(np.abs(signed), 0.9)),
        bias_pct=_short(np.mean(signed)),
        coverage_pct=_short(100.0 * np.mean(inside)),
    )


def report_of(outcomes: list[Outcome], excluded: list[Excluded]) -> Report:
    """Groups rows by source, in the order in which sources first appear."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.source, []).append(outcome)
    errors = [errors_of(source, rows) for source, rows in groups.items()]
    return Report(
        sources=[one for one in errors if one.n >= LEAST_OF_A_SOURCE],
        small_sources=[one for one in errors if one.n < LEAST_OF_A_SOURCE],
        pooled=errors_of("pooled", (row for row in outcomes if not row.inferred)),
        inferred=errors_of("inferred", (row for row in outcomes if row.inferred)),
        excluded=sorted(excluded, key=lambda one: one.row),
    )


def _short(value: np.floating | float) -> float:
    return round(float(value), 3)
