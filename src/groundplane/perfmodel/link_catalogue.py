"""Curves of the link tiers of a cluster: its own measured points, fitted tables, or defaults.

The fitted tiers lie in `catalog/calibration/collectives.json`, written by `calibration/fit_collectives.py`. A
cluster's tier inside a domain is found by its chip, then by the chip's scale-up fabric; the tier between
domains by the kind of its network.
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Final, Literal

import msgspec
import numpy as np

from groundplane.perfmodel.evidence import Evidence, FloatArray, evidence_of
from groundplane.perfmodel.kernel_fit import fit_curve
from groundplane.perfmodel.links import KindCurve, TierCurve
from groundplane.spec.cluster import ClusterSpec, CollectivePoint

DATA_SHEET: Final = Evidence("data-sheet", 0.6, 1.0, 1.7, 0, "defaults by kind of fabric")


USUAL_LATENCY_S: Final = 2e-5
"""One-way latency up to which a network counts as one of those that were measured."""


PLAIN_CARD_BYTES_PER_S: Final = 1.25e9
"""The card that a server has where none is described: 10 Gb/s."""


class FittedTier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier that was measured: where, and the curve of each collective.

    `chips` are catalogue names; `fabrics` and `sources` what the tables call the fabric and who published it;
    `link` is the network's kind for a tier between domains, `stack` the version of the
    library where one fabric was measured with several. `default` marks the tier that stands for its
    chips, or for its kind of network, in a cluster that was not measured.
    """

    name: str
    scope: Literal["scaleup", "scaleout"]
    chips: tuple[str, ...]
    fabrics: tuple[str, ...]
    sources: tuple[str, ...]
    bytes_per_s: float
    kinds: dict[str, KindCurve]
    residuals: Evidence
    link: str = ""
    stack: str = ""
    default: bool = False

    @property
    def tier(self) -> TierCurve:
        """The curve alone."""
        return TierCurve(bytes_per_s=self.bytes_per_s, kinds=self.kinds)


class LinkCalibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The calibration file of collectives."""

    source: str
    form: str
    tiers: tuple[FittedTier, ...]
    other_site: Evidence
    """How a chip's default tier did on sites that had no part in its fit."""


@functools.cache
def calibration() -> LinkCalibration:
    """The shipped calibration."""
    text = resources.files("groundplane.catalog").joinpath("calibration", "collectives.json").read_bytes()
    return msgspec.json.decode(text, type=LinkCalibration)


def default_kinds(scope: str, link: str) -> dict[str, KindCurve]:
    """Curves where nothing was measured, by the nature of the links."""
    latency_s, step_s, efficiency, ramp_bytes = _DEFAULTS.get((scope, link), _DEFAULTS[scope, ""])
    ranks = (2, 8)
    curve = KindCurve(
        ranks=ranks,
        latencies_s=(latency_s, latency_s + 2.0 * step_s),
        efficiencies=(efficiency, efficiency),
        ramp_bytes=ramp_bytes,
        step_latency_s=step_s,
    )
    return {"all_reduce": curve}


_DEFAULTS: Final = {
    ("scaleup", "nvlink"): (9e-6, 3e-6, 0.75, 4e6),
    ("scaleup", "mesh"): (1.4e-5, 2e-6, 0.7, 3e6),
    ("scaleup", "torus"): (5e-6, 2e-6, 0.85, 1e6),
    ("scaleup", "pcie"): (7e-6, 5e-6, 0.45, 2e5),
    ("scaleup", "loopback"): (1e-4, 1e-4, 0.5, 1e6),
    ("scaleup", ""): (1e-5, 4e-6, 0.7, 3e6),
    ("scaleout", "infiniband"): (2.5e-5, 9e-6, 0.92, 4e6),
    ("scaleout", "roce"): (3e-5, 1e-5, 0.9, 5e6),
    ("scaleout", "efa"): (7e-5, 2e-5, 0.85, 1.5e7),
    ("scaleout", "slingshot"): (3e-5, 1e-5, 0.85, 5e6),
    ("scaleout", "loopback"): (2e-4, 1e-4, 0.5, 1e6),
    ("scaleout", ""): (5e-5, 1.5e-5, 0.8, 8e6),
}
"""(scope, kind of links) -> latency of two, seconds a doubling of the group, efficiency, ramp in bytes."""


def link_class(cluster: ClusterSpec) -> str:
    """The nature of the links inside a domain of the cluster."""
    chip = cluster.chip
    fabric = chip.scaleup_fabric.lower()
    if cluster.fabric.kind == "loopback" or chip.kind == "cpu":
        return "loopback"
    if cluster.server.scaleup_torus or cluster.fabric.torus or "torus" in fabric:
        return "torus"
    if chip.scaleup_bytes_per_s is None:
        return "pcie"
    return "nvlink" if "nvlink" in fabric else "mesh"


def scaleup_tier(cluster: ClusterSpec) -> tuple[TierCurve, Evidence]:
    """The tier inside a scale-up domain."""
    chip = cluster.chip
    nature = link_class(cluster)
    fallback = 2e9 if nature == "loopback" else 2.5e10
    nominal = chip.scaleup_bytes_per_s or chip.pcie_bytes_per_s or fallback
    points = [point for point in cluster.collectives if point.nodes == 1 and point.ranks > 1]
    if points:
        return fit_tier(points, default_kinds("scaleup", nature)["all_reduce"], nominal, between=False)
    timed = {name for tier in calibration().tiers if not tier.default for name in tier.chips}
    known = [tier for tier in calibration().tiers if tier.scope == "scaleup" and tier.default]
    for tier in known:
        if chip.name in tier.chips:
            grade = tier.residuals.grade if chip.name in timed else "family"
            return TierCurve(nominal, tier.kinds), msgspec.structs.replace(tier.residuals, grade=grade)
    generation = re.match(r"[A-Za-z]+\d*", chip.scaleup_fabric)
    for tier in known:
        if generation is not None and any(generation[0] in fabric for fabric in tier.fabrics):
            return TierCurve(nominal, tier.kinds), calibration().other_site
    return TierCurve(nominal, default_kinds("scaleup", nature)), DATA_SHEET


def scaleout_tier(cluster: ClusterSpec) -> tuple[TierCurve, Evidence] | None:
    """The tier between domains, or None where the whole cluster is one domain."""
    if cluster.scaleup_size >= cluster.num_chips:
        return None
    kind = cluster.fabric.kind
    nominal = cluster.server.nic_bytes_per_s or cluster.fabric.link_bytes_per_s or PLAIN_CARD_BYTES_PER_S
    points = [point for point in cluster.collectives if point.nodes > 1]
    if points:
        return fit_tier(points, default_kinds("scaleout", kind)["all_reduce"], nominal, between=True)
    tier = nearest_network(calibration().tiers, kind, nominal)
    if tier is not None:
        kinds = {**default_kinds("scaleout", kind), **_moe_kinds(), **tier.kinds}
        return TierCurve(nominal, kinds), _wider(tier.residuals, calibration().other_site)
    return TierCurve(nominal, {**default_kinds("scaleout", kind), **_moe_kinds()}), DATA_SHEET


def nearest_network(
    tiers: tuple[FittedTier, ...], link: str, cards_bytes_per_s: float, kind: str = "all_reduce"
) -> FittedTier | None:
    """The default tier between domains of a kind of network that has a collective, nearest in card speed."""
    known = [tier for tier in tiers if tier.scope == "scaleout" and tier.default and tier.link == link]
    known = [tier for tier in known if kind in tier.kinds]
    return min(known, key=lambda tier: abs(np.log(tier.bytes_per_s / cards_bytes_per_s)), default=None)


def fit_tier(
    points: list[CollectivePoint], start: KindCurve, bytes_per_s: float, *, between: bool
) -> tuple[TierCurve, Evidence]:
    """A tier from timed collectives of one cluster, each kind by itself.

    Args:
        points: at least one.
        start: first guess for every kind.
        bytes_per_s: nominal bandwidth that efficiencies are relative to.
        between: the points span nodes, and group sizes count nodes.
    """
    kinds: dict[str, KindCurve] = {}
    ratios: list[float] = []
    for kind in sorted({point.operation for point in points}):
        own = [point for point in points if point.operation == kind]
        ranks = np.array([float(point.nodes if between else point.ranks) for point in own])
        sent = np.array([_sent(point, count) for point, count in zip(own, ranks, strict=True)])
        measured = np.array([point.time_s for point in own])
        kinds[kind] = _fit_kind(sent, ranks, measured, start, bytes_per_s)
        predicted = kinds[kind].latency_s(ranks) + kinds[kind].transfer_s(sent, ranks, bytes_per_s)
        ratios += list(measured / predicted)
    evidence = evidence_of("measured", np.array(ratios), "this cluster's probe", least_spread=0.1)
    return TierCurve(bytes_per_s=bytes_per_s, kinds=kinds), evidence


class _Line(msgspec.Struct, frozen=True):
    latency: float
    efficiency: float
    ramp_bytes: float


def _fit_kind(
    sent: FloatArray, ranks: FloatArray, measured: FloatArray, start: KindCurve, bytes_per_s: float
) -> KindCurve:
    largest = int(np.argmax(sent))
    rate = sent[largest] / measured[largest] / bytes_per_s if sent[largest] > 0 else start.efficiencies[0]
    sizes = tuple(sorted({int(count) for count in ranks}))

    def curve_of(line: _Line) -> KindCurve:
        return msgspec.structs.replace(
            start,
            ranks=sizes,
            latencies_s=(line.latency,) * len(sizes),
            efficiencies=(line.efficiency,) * len(sizes),
            ramp_bytes=line.ramp_bytes,
        )

    def predict(line: _Line) -> FloatArray:
        curve = curve_of(line)
        return curve.latency_s(ranks) + curve.transfer_s(sent, ranks, bytes_per_s)

    first = _Line(0.8 * float(measured.min()), max(float(rate), 1e-6), start.ramp_bytes)
    spread = {"latency": 1.0, "efficiency": 1.0, "ramp_bytes": 2.0}
    return curve_of(fit_curve(first, spread, measured, predict))


def _moe_kinds() -> dict[str, KindCurve]:
    """MoE dispatch and combine between domains, where some tier has them."""
    for tier in calibration().tiers:
        if tier.scope == "scaleout" and "moe_dispatch" in tier.kinds:
            return {kind: curve for kind, curve in tier.kinds.items() if kind.startswith("moe_")}
    return {}


def _wider(first: Evidence, second: Evidence) -> Evidence:
    return max(first, second, key=lambda one: one.ratio_p90 / one.ratio_p10)


def _sent(point: CollectivePoint, ranks: float) -> float:
    share = (ranks - 1.0) / ranks
    factor = {"all_reduce": 2.0 * share, "barrier": 0.0, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0}
    return point.size_bytes * factor.get(point.operation, share)
