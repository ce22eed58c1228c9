"""Curves of the link tiers of a cluster: its own measured points, or defaults by kind of fabric."""

from __future__ import annotations

from typing import Final

import numpy as np

from groundplane.perfmodel.evidence import Evidence
from groundplane.perfmodel.links import KindCurve, TierCurve, fit_tier
from groundplane.spec.cluster import ClusterSpec, CollectivePoint

DATA_SHEET: Final = Evidence("data-sheet", 0.6, 1.0, 1.7, 0, "defaults by kind of fabric")

_SCALEUP: Final = KindCurve(latency_s=8e-6, step_latency_s=2e-6, efficiency=0.85, ramp_bytes=4e6, ramp=0.6)
_PCIE: Final = KindCurve(latency_s=1e-5, step_latency_s=5e-6, efficiency=0.6, ramp_bytes=1e6, ramp=0.6)
_LOOPBACK: Final = KindCurve(latency_s=1e-4, step_latency_s=5e-5, efficiency=0.5, ramp_bytes=1e6, ramp=0.5)
_SCALEOUT: Final = {
    "infiniband": KindCurve(latency_s=2e-5, step_latency_s=6e-6, efficiency=0.92, ramp_bytes=4e6, ramp=0.6),
    "roce": KindCurve(latency_s=2.5e-5, step_latency_s=7e-6, efficiency=0.88, ramp_bytes=5e6, ramp=0.6),
    "ethernet": KindCurve(latency_s=5e-5, step_latency_s=1e-5, efficiency=0.8, ramp_bytes=8e6, ramp=0.6),
    "efa": KindCurve(latency_s=7e-5, step_latency_s=1e-5, efficiency=0.85, ramp_bytes=1.5e7, ramp=0.6),
    "slingshot": KindCurve(latency_s=3e-5, step_latency_s=8e-6, efficiency=0.85, ramp_bytes=5e6, ramp=0.6),
}


def scaleup_tier(cluster: ClusterSpec) -> tuple[TierCurve, Evidence]:
    """The tier inside a scale-up domain."""
    chip = cluster.chip
    loopback = cluster.fabric.kind == "loopback" or chip.kind == "cpu"
    nominal = chip.scaleup_bytes_per_s or chip.pcie_bytes_per_s or (2e9 if loopback else 2.5e10)
    start = _LOOPBACK if loopback else _SCALEUP if chip.scaleup_bytes_per_s else _PCIE
    points = [point for point in cluster.collectives if point.nodes == 1 and point.ranks > 1]
    if points:
        return fit_tier(points, [_sent(point, point.ranks) for point in points], start, nominal)
    return TierCurve(bytes_per_s=nominal, kinds={"all_reduce": start}), DATA_SHEET


def scaleout_tier(cluster: ClusterSpec) -> tuple[TierCurve, Evidence] | None:
    """The tier between domains, or None where the whole cluster is one domain."""
    if cluster.scaleup_size >= cluster.num_chips:
        return None
    server = cluster.server
    nominal = server.nic_bytes_per_s or 1.25e9
    start = _SCALEOUT.get(cluster.fabric.kind, _SCALEOUT["ethernet"] if server.nics else _LOOPBACK)
    points = [point for point in cluster.collectives if point.nodes > 1]
    if points:
        return fit_tier(points, [_sent(point, point.nodes) for point in points], start, nominal)
    return TierCurve(bytes_per_s=nominal, kinds={"all_reduce": start}), DATA_SHEET


def _sent(point: CollectivePoint, ranks: int) -> float:
    factor = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}.get(
        point.operation
    )
    if point.operation == "barrier":
        return 0.0
    share = 1.0 if factor is None else factor * (ranks - 1) / ranks
    return float(np.float64(point.size_bytes) * share)
