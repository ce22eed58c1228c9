"""Curves from measured points: those of `groundplane probe`, or any table of timed kernels.

A fit is a damped Gauss-Newton over the logarithms of few parameters (Levenberg 1944, Marquardt 1963) on log
ratios with a robust weight (Huber), so that one disturbed timing does not bend the curve, and with a weak
pull to the first guess, so that what the points do not determine stays where physics put it. Numpy only: it
runs inside `groundplane plan` on a probed machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np

from groundplane.perfmodel.curves import MatmulCurve, MemoryCurve
from groundplane.perfmodel.evidence import Evidence, FloatArray, evidence_of
from groundplane.perfmodel.kernel_catalogue import base_curve, canonical_dtype
from groundplane.spec.cluster import ChipSpec, MatmulPoint
from groundplane.spec.errors import InputError

MAX_STEPS: Final = 60
_HUBER: Final = 0.08
"""Log residual beyond which a point's pull stops growing."""

_PROBE_SPREAD: Final = {"efficiency": 1.0, "floor_s": 1.0, "fill_k": 1.0, "memory_efficiency": 0.5}
"""How far (in natural log) a probe may move each parameter from its first guess before it must argue."""

CurveT = TypeVar("CurveT", bound=msgspec.Struct)


def fit_curve(
    start: CurveT,
    spread: Mapping[str, float],
    measured_s: FloatArray,
    predict: Callable[[CurveT], FloatArray],
) -> CurveT:
    """The curve of `start`'s form that comes nearest to measured times.

    Args:
        start: first guess, and all parameters that stay.
        spread: parameter to fit -> its prior standard deviation in natural log.
        measured_s: times.
        predict: times of a curve for the same points.
    """
    names = list(spread)
    first = np.log([float(getattr(start, name)) for name in names])

    def curve_of(logs: FloatArray) -> CurveT:
        values = {name: float(value) for name, value in zip(names, np.exp(logs), strict=True)}
        return msgspec.structs.replace(start, **values)

    def residuals(logs: FloatArray) -> FloatArray:
        return np.asarray(np.log(measured_s / predict(curve_of(logs))), dtype=np.float64)

    pull = 0.1 / np.array([spread[name] for name in names])
    return curve_of(least_squares(residuals, first, pull))


def fit_matmul(points: Sequence[MatmulPoint], start: MatmulCurve) -> MatmulCurve:
    """The curve nearest to a few timed products: rate, floor, loop fill and, from 12 points on, memory rate.

    Args:
        points: timed products; format and number of processes are the caller's business.
        start: peak, memory bandwidth, tiles and first guesses.

    Raises:
        InputError: fewer than 3 points.
    """
    if len(points) < 3:
        raise InputError("needs at least 3 measured products", value=len(points))
    rows, columns, depth = _products(points)
    measured = np.array([point.time_s for point in points])
    fastest = float(np.max(2.0 * rows * columns * depth / measured))
    first = msgspec.structs.replace(
        start,
        efficiency=max(fastest / start.peak_flops_per_s, 1e-3),
        floor_s=min(start.floor_s, 0.5 * float(measured.min())),
    )
    spread = {
        name: sd for name, sd in _PROBE_SPREAD.items() if name != "memory_efficiency" or len(points) >= 12
    }
    return fit_curve(first, spread, measured, lambda curve: curve.time_s(rows, columns, depth))


def least_squares(
    residuals: Callable[[FloatArray], FloatArray],
    start: FloatArray,
    pull: FloatArray,
    *,
    huber: float = _HUBER,
    max_steps: int = MAX_STEPS,
    least_gain: float = 1e-8,
) -> FloatArray:
    """Parameters that make Huber-weighted residuals small, drawn to `start` by `pull` (1 / spread) each.

    It ends when a step gains less than `least_gain` of the cost, or after `max_steps`.
    """
    origin = np.asarray(start, dtype=np.float64)
    position = origin.copy()
    damping = 1e-2

    def cost_of(where: FloatArray) -> tuple[float, FloatArray]:
        error = residuals(where)
        size = np.abs(error)
        loss = np.where(size <= huber, 0.5 * error**2, huber * (size - 0.5 * huber))
        return float(loss.sum() + 0.5 * np.sum((pull * (where - origin)) ** 2)), error

    cost, error = cost_of(position)
    for _ in range(max_steps):
        slope = np.empty((error.size, position.size))
        for column in range(position.size):
            moved = position.copy()
            moved[column] += 1e-4
            slope[:, column] = (residuals(moved) - error) / 1e-4
        weight = np.minimum(1.0, huber / np.maximum(np.abs(error), 1e-12))
        normal = slope.T @ (slope * weight[:, None]) + np.diag(pull**2)
        gradient = slope.T @ (weight * error) + pull**2 * (position - origin)
        step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
        trial = position + np.clip(step, -1.0, 1.0)
        trial_cost, trial_error = cost_of(trial)
        if trial_cost < cost:
            gain = cost - trial_cost
            position, cost, error = trial, trial_cost, trial_error
            damping = max(damping / 3.0, 1e-6)
            if gain < least_gain * (1.0 + cost):
                break
        else:
            damping *= 4.0
            if damping > 1e8:
                break
    return position


def _products(points: Sequence[MatmulPoint]) -> FloatArray:
    """Rows, columns and depth of the products that ran: points give the forward shape and the pass."""
    turned = {"data_gradient": (0, 2, 1), "weight_gradient": (2, 1, 0)}
    shapes = []
    for point in points:
        shape = (point.m, point.n, point.k)
        shapes.append([shape[place] for place in turned.get(point.which, (0, 1, 2))])
    return np.array(shapes, dtype=np.float64).T


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
    rows, columns, depth = _products(points)
    ratio = np.array([point.time_s for point in points]) / curve.time_s(rows, columns, depth)
    # Few points that were fitted themselves understate the spread.
    return curve, evidence_of("measured", ratio, "this machine's probe", least_spread=0.05)


def measured_memory(chip: ChipSpec) -> tuple[MemoryCurve, Evidence] | None:
    """The memory curve from the chip's own points: the largest working sets, which no cache holds."""
    if chip.measured is None or not chip.measured.bandwidths:
        return None
    busiest = max(point.processes for point in chip.measured.bandwidths)
    points = [point for point in chip.measured.bandwidths if point.processes == busiest]
    largest = max(point.working_set_bytes for point in points)
    rates = np.array(
        [point.bandwidth_bytes_per_s for point in points if point.working_set_bytes >= largest / 4]
    )
    rate = float(np.median(rates))
    curve = MemoryCurve(memory_bytes_per_s=rate, efficiency=1.0, floor_s=dispatch_overhead_s(chip) or 2e-6)
    return curve, evidence_of("measured", rate / rates, "this machine's probe", least_spread=0.05)


def dispatch_overhead_s(chip: ChipSpec) -> float | None:
    """Seconds of one small operation as the probe saw it, or None without a probe."""
    if chip.measured is None or not chip.measured.overheads:
        return None
    return float(np.median([point.time_s for point in chip.measured.overheads]))
