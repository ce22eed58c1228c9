"""The null model: one fitted efficiency times the bubble of 1F1B. What any real model must beat by far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.published import Case
from groundplane.perfmodel.strategy import RECOMPUTE


def null_step_s(cases: Sequence[Case], efficiency: float) -> FloatArray:
    """Seconds of a step: model FLOPs (stated recompute too) at one share of peak, plus (pp - 1) / m of it."""
    return np.array([_ideal_s(case) / efficiency for case in cases])


def fit_null(cases: Sequence[Case]) -> float:
    """The share of peak with the smallest median absolute error in log ratio."""
    ratios = np.array([_ideal_s(case) / case.measured_s for case in cases])
    return float(np.median(ratios))


def _ideal_s(case: Case) -> float:
    layout = case.layouts[0]
    flops = 3.0 * case.model.forward_flops_per_token(case.seq, causal=False).total
    if case.complete and layout["recompute"] == RECOMPUTE.index("full"):
        flops *= 4.0 / 3.0
    rate = case.cluster.chip.peak(case.precision.linear.removesuffix("_block")) * case.num_chips
    bubble = (layout["pp"] - 1.0) / layout["num_micro"]
    return flops * case.global_batch * case.seq / rate * (1.0 + bubble)
