"""Prices from measured points themselves, where a machine was probed: no fit, only interpolation.

Operators are interpolated by size on logarithmic axes; matrix products and attention by the rate (FLOP/s) of
the nearest shapes. Points measured with as many processes at once as will run are preferred. Knows nothing
of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from groundplane.spec.cluster import AttentionPoint, MatmulPoint, MeasuredChip
from groundplane.spec.errors import InputError

_P = TypeVar("_P", bound=Any)
Which = Literal["forward", "data_gradient", "weight_gradient"]


class MeasuredTables:
    """The measurements of one chip, ready to be asked; of several process counts the nearest to `processes`.

    Raises:
        InputError: from any method, when the cluster file holds no measurement of the kind asked for.
    """

    def __init__(self, measured: MeasuredChip, processes: int) -> None:
        self.measured = measured
        self.processes = processes

    def has_dtype(self, dtype: str) -> bool:
        """Whether products of a number format were measured."""
        return any(point.dtype == dtype for point in self.measured.matmuls)

    def matmul_s(self, dtype: str, m: float, n: float, k: float, which: Which) -> float:
        """Seconds of one of the three products of a linear layer with m tokens, n outputs and k inputs."""
        points = self._nearest(
            [point for point in self.measured.matmuls if point.dtype == dtype and point.which == which],
            f"matrix products in {dtype}",
        )
        shapes = np.array([(point.m, point.n, point.k) for point in points], dtype=np.float64)
        rates = np.array([_matmul_flops(point) / max(point.time_s, 1e-12) for point in points])
        return float(2.0 * m * n * k / _near_rate(shapes, rates, np.array([m, n, k])))

    def attention_s(
        self, dtype: str, batch: float, seq: float, heads: float, head_dim: float, *, backward: bool
    ) -> float:
        """Seconds of causal attention, forward or backward, with as many key/value heads as heads."""
        points = self._nearest(
            [point for point in self.measured.attentions if point.dtype == dtype], f"attention in {dtype}"
        )
        shapes = np.array([(point.seq, point.head_dim) for point in points], dtype=np.float64)
        times = [point.backward_s if backward else point.forward_s for point in points]
        rates = np.array(
            [_attention_flops(p) / max(time_s, 1e-12) for p, time_s in zip(points, times, strict=True)]
        )
        flops = 4.0 * batch * heads * seq * seq * head_dim
        return float(flops / _near_rate(shapes, rates, np.array([seq, head_dim])))

    def operator_s(self, operation: str, dtype: str, elements: float) -> tuple[float, float]:
        """Seconds forward and backward of an element-wise operator over so many output elements."""
        points = self._nearest(
            [p for p in self.measured.operators if p.operation == operation and p.dtype == dtype],
            f"operator {operation} in {dtype}",
        )
        points = sorted(points, key=lambda point: point.elements)
        sizes = np.array([point.elements for point in points], dtype=np.float64)
        forward = np.array([point.forward_s for point in points])
        backward = np.array([point.backward_s for point in points])
        return _along(sizes, forward, elements), _along(sizes, backward, elements)

    def overhead_s(self, operation: str) -> float:
        """Seconds of one operator that has nothing to compute ("eager_forward", "eager_backward")."""
        points = self._nearest(
            [point for point in self.measured.overheads if point.operation == operation], operation
        )
        return points[0].time_s

    def first_touch_bytes_per_s(self) -> float:
        """Rate at which freshly mapped memory is filled, beyond the cost of writing it."""
        points = self._nearest(
            [point for point in self.measured.bandwidths if point.operation == "first_touch"], "first touch"
        )
        return points[0].bandwidth_bytes_per_s

    def _nearest(self, points: Sequence[_P], kind: str) -> list[_P]:
        if not points:
            raise InputError(f"holds no measurement of {kind}: run groundplane probe again", field="measured")
        counts = {point.processes for point in points}
        best = min(counts, key=lambda count: (abs(count - self.processes), -count))
        return [point for point in points if point.processes == best]


def _matmul_flops(point: MatmulPoint) -> float:
    return 2.0 * point.m * point.n * point.k


def _attention_flops(point: AttentionPoint) -> float:
    return 4.0 * point.batch * point.heads * point.seq**2 * point.head_dim


def _near_rate(shapes: np.ndarray, rates: np.ndarray, shape: np.ndarray) -> float:
    """Mean rate weighted by the inverse fourth power of the distance in log2 of the shape; exact at a
    point."""
    squared = (np.log2(shapes / shape) ** 2).sum(axis=1) + 1e-9
    weights = squared**-2
    return float(np.exp((np.log(rates) * weights).sum() / weights.sum()))


def _along(sizes: np.ndarray, times: np.ndarray, size: float) -> float:
    """Log-log interpolation; beyond the largest size in proportion, below the smallest its own time."""
    if size >= sizes[-1]:
        return float(times[-1] * size / sizes[-1])
    logs = np.interp(np.log(max(size, 1.0)), np.log(sizes), np.log(np.maximum(times, 1e-12)))
    return float(np.exp(logs))
