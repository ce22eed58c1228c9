"""The curve of one tier of links: latency, a middle that grows slower than the message, and bandwidth.

Libraries switch protocol and algorithm as messages grow (NCCL: LL, LL128, Simple; tree, ring, NVLS); each is
a straight line of time over bytes, with more latency and more bandwidth than the one before. Their lower
envelope is a concave curve, which latency + x/B + c x^(1-a) follows with few numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from groundplane.perfmodel.curves import FloatArray
from groundplane.perfmodel.evidence import Evidence
from groundplane.perfmodel.kernel_fit import least_squares
from groundplane.spec.cluster import CollectivePoint


class KindCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One collective on one tier.

    latency = `latency_s` + `step_latency_s` x (ranks - 1)^`step_power`;
    transfer = x / (bandwidth x `efficiency`) x (1 + (`ramp_bytes` / x)^`ramp`), x = bytes a rank sends.
    """

    latency_s: float
    step_latency_s: float
    efficiency: float
    ramp_bytes: float
    ramp: float = 0.5
    step_power: float = 0.5

    def latency(self, ranks: FloatArray) -> FloatArray:
        """Seconds for the smallest message among `ranks`."""
        steps = np.maximum(ranks - 1.0, 0.0) ** self.step_power
        return np.asarray(self.latency_s + self.step_latency_s * steps, dtype=np.float64)

    def transfer_s(self, moved: FloatArray, bytes_per_s: FloatArray | float) -> FloatArray:
        """Seconds beyond the latency to move `moved` bytes a rank."""
        rate = np.asarray(bytes_per_s, dtype=np.float64) * self.efficiency
        middle = moved ** (1.0 - self.ramp) * self.ramp_bytes**self.ramp
        return np.asarray((moved + middle) / rate, dtype=np.float64)


class TierCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links of one tier: `bytes_per_s` is a rank's nominal bandwidth, one direction."""

    bytes_per_s: float
    kinds: dict[str, KindCurve]

    def curve(self, kind: str) -> KindCurve:
        """The curve of a collective, or that of its nearest kin where it has none of its own."""
        for candidate in (kind, *_KIN.get(kind, ()), "all_reduce"):
            if candidate in self.kinds:
                return self.kinds[candidate]
        return next(iter(self.kinds.values()))


_KIN = {
    "all_gather": ("reduce_scatter",),
    "reduce_scatter": ("all_gather",),
    "all_to_all": ("all_gather", "reduce_scatter"),
    "broadcast": ("all_gather",),
    "reduce": ("reduce_scatter", "broadcast"),
    "send_recv": ("broadcast", "all_gather"),
    "barrier": ("all_reduce",),
}


def fit_tier(
    points: Sequence[CollectivePoint], bus_bytes_of: Sequence[float], start: KindCurve, bytes_per_s: float
) -> tuple[TierCurve, Evidence]:
    """A tier from timed collectives of one machine, each kind by itself.

    Args:
        points: at least one.
        bus_bytes_of: bytes a rank sends, for each point.
        start: first guess for every kind.
        bytes_per_s: nominal bandwidth that efficiencies are relative to.
    """
    kinds: dict[str, KindCurve] = {}
    ratios: list[float] = []
    for kind in sorted({point.operation for point in points}):
        chosen = [index for index, point in enumerate(points) if point.operation == kind]
        moved = np.array([bus_bytes_of[index] for index in chosen])
        ranks = np.array([float(points[index].ranks) for index in chosen])
        measured = np.array([points[index].time_s for index in chosen])
        kinds[kind] = _fit_kind(moved, ranks, measured, start, bytes_per_s)
        predicted = kinds[kind].latency(ranks) + kinds[kind].transfer_s(moved, bytes_per_s)
        ratios += list(measured / predicted)
    low, middle, high = (float(value) for value in np.quantile(ratios, [0.1, 0.5, 0.9]))
    evidence = Evidence(
        "measured", min(low, 0.9), middle, max(high, 1.1), len(ratios), "this cluster's probe"
    )
    return TierCurve(bytes_per_s=bytes_per_s, kinds=kinds), evidence


def _fit_kind(
    moved: FloatArray, ranks: FloatArray, measured: FloatArray, start: KindCurve, bytes_per_s: float
) -> KindCurve:
    largest = int(np.argmax(moved))
    rate = moved[largest] / measured[largest] / bytes_per_s if moved[largest] > 0 else start.efficiency
    names = ("latency_s", "efficiency", "ramp_bytes")
    first = np.log([float(measured.min()) * 0.8, max(float(rate), 1e-6), start.ramp_bytes])

    def curve_of(logs: FloatArray) -> KindCurve:
        values = dict(zip(names, (float(value) for value in np.exp(logs)), strict=True))
        return msgspec.structs.replace(start, step_latency_s=0.0, **values)

    def residuals(logs: FloatArray) -> FloatArray:
        curve = curve_of(logs)
        predicted = curve.latency(ranks) + curve.transfer_s(moved, bytes_per_s)
        return np.asarray(np.log(measured / predicted), dtype=np.float64)

    return curve_of(least_squares(residuals, first))
