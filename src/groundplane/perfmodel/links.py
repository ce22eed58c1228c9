"""The curve of one tier of links: latency, a middle that grows slower than the message, and bandwidth.

Libraries switch protocol and algorithm as messages grow (NCCL: LL, LL128, Simple; tree, ring, NVLS); each is
a straight line of time over bytes, with more latency and more bandwidth than the one before. Their lower
envelope is a concave curve, which latency + x/B + c x^(1-a) follows with few numbers; what steps remain, a
coarse correction over the message size takes up where enough was measured. Knows nothing of clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel.correction import GridCorrection
from groundplane.perfmodel.evidence import FloatArray


class KindCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One collective on one tier.

    Latency and efficiency are given for the group sizes in `ranks` (domains, for a tier between domains),
    interpolated in log2 of the size, and kept beyond, where each doubling adds `step_latency_s`. transfer =
    (x + x^(1 - ramp) ramp_bytes^ramp) / (bandwidth x efficiency), x = bytes a rank (or domain) sends.

    `switch_adds`: the switch sums up an all-reduce (NVLink SHARP), every rank sends its buffer once, and
    bytes stop growing with the group beyond the largest size measured.
    """

    ranks: tuple[int, ...]
    latencies_s: tuple[float, ...]
    efficiencies: tuple[float, ...]
    ramp_bytes: float
    ramp: float = 0.5
    step_latency_s: float = 0.0
    switch_adds: bool = False
    correction: GridCorrection | None = None

    def latency_s(self, ranks: FloatArray) -> FloatArray:
        """Seconds for the smallest message among `ranks`."""
        place = np.log2(np.maximum(ranks, 1.0))
        known = np.log2(np.asarray(self.ranks, dtype=np.float64))
        beyond = np.maximum(place - known[-1], 0.0) * self.step_latency_s
        return np.asarray(np.interp(place, known, self.latencies_s) + beyond, dtype=np.float64)

    def transfer_s(self, moved: FloatArray, ranks: FloatArray, bytes_per_s: FloatArray | float) -> FloatArray:
        """Seconds beyond the latency to move `moved` bytes over links of `bytes_per_s`."""
        known = np.log2(np.asarray(self.ranks, dtype=np.float64))
        share = np.interp(np.log2(np.maximum(ranks, 1.0)), known, self.efficiencies)
        middle = moved ** (1.0 - self.ramp) * self.ramp_bytes**self.ramp
        return np.asarray((moved + middle) / (np.asarray(bytes_per_s) * share), dtype=np.float64)

    def corrected(self, message_bytes: FloatArray) -> FloatArray | float:
        """What to multiply the time of a message of this size by."""
        if self.correction is None:
            return 1.0
        return self.correction.factor(np.maximum(message_bytes, 1.0))


class TierCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links of one tier: `bytes_per_s` is a rank's nominal bandwidth, one direction."""

    bytes_per_s: float
    kinds: Mapping[str, KindCurve]

    def curve(self, kind: str) -> KindCurve:
        """The curve of a collective, or that of its nearest kin where it has none of its own."""
        for candidate in (kind, *_KIN.get(kind, ()), "all_reduce"):
            if candidate in self.kinds:
                return self.kinds[candidate]
        return next(iter(self.kinds.values()))


_KIN: Final[dict[str, tuple[str, ...]]] = {
    "all_gather": ("reduce_scatter",),
    "reduce_scatter": ("all_gather",),
    "all_to_all": ("all_gather", "reduce_scatter"),
    "broadcast": ("all_gather",),
    "reduce": ("broadcast", "reduce_scatter"),
    "send_recv": ("broadcast", "all_to_all", "all_gather"),
    "moe_dispatch": ("moe_combine", "all_to_all"),
    "moe_combine": ("moe_dispatch", "all_to_all"),
}
