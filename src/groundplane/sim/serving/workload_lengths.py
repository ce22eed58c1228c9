"""Lengths of prompts and outputs drawn from a described distribution."""

from __future__ import annotations

import math

import numpy as np

from groundplane.sim.serving.requests import MAX_TOKENS
from groundplane.sim.serving.workload_rows import IntArray
from groundplane.spec.request_trace import LengthSpec


def drawn_tokens(spec: LengthSpec, rng: np.random.Generator, count: int) -> IntArray:
    """`count` token counts of at least 1 (and at most `spec.most`).

    A log-normal of mean m and coefficient of variation c has s^2 = ln(1 + c^2) and location ln m - s^2 / 2.
    """
    if spec.shape == "fixed" or (spec.shape == "lognormal" and spec.cv == 0):
        drawn = np.full(count, spec.mean)
    elif spec.shape == "uniform":
        drawn = rng.uniform(spec.low * spec.mean, (2.0 - spec.low) * spec.mean, count)
    else:
        variance = math.log1p(spec.cv**2)
        drawn = rng.lognormal(math.log(spec.mean) - variance / 2.0, math.sqrt(variance), count)
    most = float(MAX_TOKENS if spec.most is None else min(spec.most, MAX_TOKENS))
    return np.asarray(np.clip(np.rint(drawn), 1.0, most), dtype=np.int64)
