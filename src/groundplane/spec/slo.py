"""Service level objectives: bounds on latencies, written "ttft_p99=500ms,tpot_p99=50ms"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from groundplane.spec import units
from groundplane.spec.errors import InputError, unknown_name

Metric = Literal["ttft", "tpot", "itl", "e2e"]
METRICS: Final = ("ttft", "tpot", "itl", "e2e")
STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99", "p999")
PERCENT: Final = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}
"""Percentile by the name that bounds and results carry."""


class Bound(Struct, frozen=True, forbid_unknown_fields=True):
    """`statistic` of `metric` is at most `limit_s`."""

    metric: Metric
    statistic: str
    limit_s: Annotated[float, Meta(gt=0.0)]

    @property
    def name(self) -> str:
        """As it is written: "ttft_p99"."""
        return f"{self.metric}_{self.statistic}"


class Slo(Struct, frozen=True, forbid_unknown_fields=True):
    """All bounds, each metric and statistic once."""

    bounds: tuple[Bound, ...] = ()

    def __iter__(self) -> Iterator[Bound]:
        return iter(self.bounds)

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def request_limit_s(self, metric: Metric) -> float | None:
        """What one request may take to count as good: the metric's tightest bound, None without one."""
        limits = [bound.limit_s for bound in self.bounds if bound.metric == metric]
        return min(limits) if limits else None

    def show(self) -> str:
        """As written, for reading."""
        return ", ".join(f"{bound.name} <= {units.show_duration(bound.limit_s)}" for bound in self.bounds)


def parse_slo(text: str) -> Slo:
    """Bounds from "ttft_p99=500ms,tpot_p99=50ms"; "ttft=500ms" means its 99th percentile.

    Raises:
        InputError: no such bound (with the nearest name), a bound twice, or a limit that is no duration.
    """
    bounds: list[Bound] = []
    names = [f"{metric}_{statistic}" for metric in METRICS for statistic in STATISTICS]
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, sign, limit = (piece.strip() for piece in part.partition("="))
        if not sign:
            raise InputError("must be NAME=DURATION pairs, such as ttft_p99=500ms", field="slo", value=part)
        full = f"{name}_p99" if name in METRICS else name
        if full not in names:
            raise unknown_name("bound", name, names, field="slo")
        if any(bound.name == full for bound in bounds):
            raise InputError("is given twice", field=f"slo.{full}")
        limit_s = units.parse(limit, units.SECONDS, field=f"slo.{full}")
        if limit_s <= 0:
            raise InputError("must be more than 0", field=f"slo.{full}", value=limit)
        metric, _, statistic = full.partition("_")
        bounds.append(msgspec.convert({"metric": metric, "statistic": statistic, "limit_s": limit_s}, Bound))
    if not bounds:
        raise InputError("must name a bound, such as ttft_p99=500ms", field="slo", value=text)
    return Slo(tuple(bounds))
