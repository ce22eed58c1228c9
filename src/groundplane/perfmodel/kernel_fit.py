"""Curves from measured points: those of `groundplane probe`, or any table of timed products.

The fit is a damped Gauss-Newton over the logarithms of few parameters (Levenberg 1944, Marquardt 1963), on
log ratios with a robust weight (Huber), so that one disturbed timing does not bend the curve. Numpy only: it
runs inside `groundplane plan` on a probed machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel.curves import FloatArray, MatmulCurve, MemoryCurve
from groundplane.perfmodel.evidence import Evidence
from groundplane.perfmodel.kernel_catalogue import base_curve, canonical_dtype
from groundplane.spec.cluster import ChipSpec, MatmulPoint
from groundplane.spec.errors import InputError

MAX_STEPS: Final = 60
_HUBER: Final = 0.1
"""Log residual beyond which a point's pull stops growing."""


def fit_matmul(points: Sequence[MatmulPoint], start: MatmulCurve) -> MatmulCurve:
    """The curve of `start`'s form that comes nearest to the points.

    Fits rate, floor, loop fill and, where at least 12 points are given, the memory efficiency.

    Args:
        points: timed products; format and number of processes are the caller's business.
        start: peak, memory bandwidth, tiles and first guesses.

    Raises:
        InputError: fewer than 3 points.
    """
    if len(points) < 3:
        raise InputError("needs at least 3 measured products", value=len(points))
    shape = np.array([(point.m, point.n, point.k) for point in points], dtype=np.float64)
    measured = np.array([point.time_s for point in points])
    names = ["efficiency", "floor_s", "fill_k"] + (["memory_efficiency"] if len(points) >= 12 else [])
    fastest = float(np.max(2.0 * shape.prod(axis=1) / measured))
    first = {
        "efficiency": max(fastest / start.peak_flops_per_s, 1e-3),
        "floor_s": min(start.floor_s, 0.5 * float(measured.min())),
        "fill_k": start.fill_k,
        "memory_efficiency": start.memory_efficiency,
    }

    def curve_of(logs: FloatArray) -> MatmulCurve:
        values = {name: float(np.exp(log)) for name, log in zip(names, logs, strict=True)}
        return msgspec.structs.replace(start, **values)

    def residuals(logs: FloatArray) -> FloatArray:
        predicted = curve_of(logs).time_s(shape[:, 0], shape[:, 1], shape[:, 2])
        return np.asarray(np.log(measured / predicted), dtype=np.float64)

    logs = least_squares(residuals, np.log([first[name] for name in names]))
    return curve_of(logs)


def least_squares(
    residuals: Callable[[FloatArray], FloatArray],
    start: FloatArray,
    *,
    huber: float = _HUBER,
    pull: float = 0.1,
    max_steps: int = MAX_STEPS,
) -> FloatArray:
    """Parameters that make Huber-weighted residuals small, starting at `start` and drawn to it by `pull`.

    The weak pull keeps a parameter that the points do not determine where physics put it.
    """
    origin = np.asarray(start, dtype=np.float64)
    position = origin.copy()
    damping = 1e-2

    def cost_of(where: FloatArray) -> tuple[float, FloatArray]:
        error = residuals(where)
        size = np.abs(error)
        loss = np.where(size <= huber, 0.5 * error**2, huber * (size - 0.5 * huber))
        return float(loss.sum() + 0.5 * pull**2 * np.sum((where - origin) ** 2)), error

    cost, error = cost_of(position)
    for _ in range(max_steps):
        slope = np.empty((error.size, position.size))
        for column in range(position.size):
            moved = position.copy()
            moved[column] += 1e-4
            slope[:, column] = (residuals(moved) - error) / 1e-4
        weight = np.minimum(1.0, huber / np.maximum(np.abs(error), 1e-12))
        normal = slope.T @ (slope * weight[:, None]) + pull**2 * np.eye(position.size)
        gradient = slope.T @ (weight * error) + pull**2 * (position - origin)
        step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
        trial = position + np.clip(step, -1.0, 1.0)
        trial_cost, trial_error = cost_of(trial)
        if trial_cost < cost:
            gain = cost - trial_cost
            position, cost, error = trial, trial_cost, trial_error
            damping = max(damping / 3.0, 1e-6)
            if gain < 1e-9 * (1.0 + cost):
                break
        else:
            damping *= 4.0
            if damping > 1e8:
                break
    return position


def measured_matmul(chip: ChipSpec, dtype: str) -> tuple[MatmulCurve, Evidence] | None:
    """The curve from the chip's own points, or None where it has too few for this format."""
    if chip.measured is None:
        return None
    name = canonical_dtype(dtype)
    own = [point for point in chip.measured.matmuls if canonical_dtype(point.dtype) == name]
    if len(own) < 3:
        return None
    # All ranks of a node compute at once: points taken under that load come nearest to a training step.
    busiest = max(point.processes for point in own)
    points = [point for point in own if point.processes == busiest]
    if len(points) < 3:
        points = own
    curve = fit_matmul(points, base_curve(chip, name))
    shape = np.array([(point.m, point.n, point.k) for point in points], dtype=np.float64)
    ratio = np.array([point.time_s for point in points]) / curve.time_s(shape[:, 0], shape[:, 1], shape[:, 2])
    return curve, _evidence(ratio, "this machine's probe")


def measured_memory(chip: ChipSpec) -> tuple[MemoryCurve, Evidence] | None:
    """The memory curve from the chip's own points: the largest working sets, which no cache holds."""
    if chip.measured is None or not chip.measured.bandwidths:
        return None
    points = chip.measured.bandwidths
    busiest = max(point.processes for point in points)
    points = tuple(point for point in points if point.processes == busiest)
    largest = max(point.working_set_bytes for point in points)
    rates = np.array(
        [point.bandwidth_bytes_per_s for point in points if point.working_set_bytes >= largest / 4]
    )
    rate = float(np.median(rates))
    curve = MemoryCurve(memory_bytes_per_s=rate, efficiency=1.0, floor_s=dispatch_overhead_s(chip) or 2e-6)
    return curve, _evidence(rate / rates, "this machine's probe")


def dispatch_overhead_s(chip: ChipSpec) -> float | None:
    """Seconds of one small operation as the probe saw it, or None without a probe."""
    if chip.measured is None or not chip.measured.overheads:
        return None
    return float(np.median([point.time_s for point in chip.measured.overheads]))


def _evidence(ratio: FloatArray, source: str) -> Evidence:
    # Few points understate the spread: never less than 5 % either way.
    low, middle, high = (float(value) for value in np.quantile(ratio, [0.1, 0.5, 0.9]))
    return Evidence("measured", min(low, 0.95), middle, max(high, 1.05), int(ratio.size), source)
