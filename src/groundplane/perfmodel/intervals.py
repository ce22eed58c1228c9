"""The interval of a predicted step, and how directly its prices were measured.

A stack's residuals hold for chips and networks that were measured themselves. Where a kernel or a link is
priced from its kin or a data sheet, its own spread is added, in quadrature in the logarithm and by the share
of the step that it prices. Knows prices and evidence, no layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from groundplane.perfmodel.collectives import cluster_links, collective_evidence
from groundplane.perfmodel.evidence import Evidence, FloatArray, Grade
from groundplane.perfmodel.kernels import kernel_evidence
from groundplane.perfmodel.passes import Precision
from groundplane.perfmodel.training import TrainingPrices
from groundplane.spec.cluster import ClusterSpec

COMMUNICATION: Final = (
    "tensor_communication",
    "expert_communication",
    "context_communication",
    "pipeline_communication",
    "data_communication",
)
"""Stages that links price; the others are priced by kernels."""

GOOD_PART: Final = 0.1
"""Share of a step from which on what prices it grades the whole."""

_ORDER: Final[tuple[Grade, ...]] = ("measured", "family", "data-sheet")


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step of N layouts with their 10th and 90th percentile, shape (N,) each."""

    step_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray


@dataclass(frozen=True)
class StepSpread:
    """What stands behind the step times of one stack on one cluster.

    Attributes:
        stack: residuals of whole steps of the stack.
        kernels: of matrix products on the chip, in the format of the linear layers.
        links: of collectives over the whole cluster.
    """

    stack: Evidence
    kernels: Evidence
    links: Evidence

    def grade_of(self, prices: TrainingPrices) -> list[Grade]:
        """For each layout the weakest evidence of what prices a good part of its step."""
        both = max(self.kernels.grade, self.links.grade, key=_ORDER.index)
        return [
            both if share >= GOOD_PART else self.kernels.grade for share in _talking_share(prices).tolist()
        ]

    def times(self, prices: TrainingPrices) -> StepTimes:
        """The prices with their intervals."""
        step_s = prices.step_s
        talking = _talking_share(prices)
        found = []
        for name in ("ratio_p10", "ratio_p90"):
            stack, kernels, links = (
                _log_ratio(part, name, own=part is self.stack)
                for part in (self.stack, self.kernels, self.links)
            )
            # A stack's quantile may lie on the other side of 1; what comes from elsewhere only widens.
            sign = -1.0 if name == "ratio_p10" else 1.0
            more = ((1.0 - talking) * kernels) ** 2 + (talking * links) ** 2
            size = np.sqrt(max(sign * stack, 0.0) ** 2 + more) + min(sign * stack, 0.0)
            found.append(step_s * np.exp(sign * size))
        return StepTimes(step_s, found[0], found[1])


def step_spread(cluster: ClusterSpec, precision: Precision, stack: Evidence) -> StepSpread:
    """The spread of step times on a cluster.

    Args:
        cluster: where.
        precision: number formats.
        stack: residuals of the stack's runs (see `TrainingCalibration.spread_of`).
    """
    kernels = kernel_evidence(cluster.chip, "matmul", precision.linear)
    domains = -(-cluster.num_chips // max(cluster.scaleup_size, 1))
    links = kernels
    if cluster.num_chips > 1:
        links = collective_evidence(cluster_links(cluster), domains)
    return StepSpread(stack, kernels, links)


def _talking_share(prices: TrainingPrices) -> FloatArray:
    """Share of the step that links price."""
    return np.asarray(np.sum([prices.stages_s[name] for name in COMMUNICATION], axis=0) / prices.step_s)


def _log_ratio(evidence: Evidence, name: str, *, own: bool) -> float:
    """Logarithm of a quantile; 0 for parts that were measured, whose spread is in the stack's own."""
    if not own and evidence.grade == "measured":
        return 0.0
    return float(np.log(getattr(evidence, name)))
