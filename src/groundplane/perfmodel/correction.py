"""A smooth correction on a coarse grid: what physics leaves over, interpolated in log space.

Values are natural logarithms of measured / physics at the nodes of a grid over log2 coordinates; between
nodes they are multilinear, outside they stay as at the edge. Few nodes an axis keep it a trend and not a
table.
"""

from __future__ import annotations

import itertools

import msgspec
import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.spec.errors import InvariantError


class GridCorrection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Log corrections at the nodes of a grid; `values` runs fastest along the last axis."""

    axes: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        nodes = 1
        for axis in self.axes:
            nodes *= len(axis)
        if nodes != len(self.values) or any(len(axis) < 2 for axis in self.axes):
            raise InvariantError(f"a correction over {self.axes} cannot hold {len(self.values)} values")

    def factor(self, *coordinates: FloatArray) -> FloatArray:
        """What to multiply physics by, at coordinates that are not yet logarithms (all positive)."""
        table = np.asarray(self.values).reshape([len(axis) for axis in self.axes])
        places = [_place(np.log2(value), axis) for value, axis in zip(coordinates, self.axes, strict=True)]
        total: FloatArray = np.zeros(np.broadcast_shapes(*(value.shape for value in coordinates)))
        for corner in itertools.product((0, 1), repeat=len(places)):
            weight: FloatArray = np.ones(())
            for side, (_, share) in zip(corner, places, strict=True):
                weight = weight * (share if side else 1.0 - share)
            total = (
                total
                + weight * table[tuple(index + side for side, (index, _) in zip(corner, places, strict=True))]
            )
        return np.asarray(np.exp(total), dtype=np.float64)


def hat_weights(axes: tuple[tuple[float, ...], ...], *coordinates: FloatArray) -> FloatArray:
    """Weights of each grid node for each point, shape (points, nodes): the design matrix of a fit."""
    num_points = coordinates[0].size
    weights: FloatArray = np.ones((num_points, 1))
    for value, axis in zip(coordinates, axes, strict=True):
        index, share = _place(np.log2(value), axis)
        along = np.zeros((num_points, len(axis)))
        rows = np.arange(num_points)
        along[rows, index] = 1.0 - share
        along[rows, index + 1] = share
        weights = (weights[:, :, None] * along[:, None, :]).reshape(num_points, -1)
    return weights


def fit_correction(
    axes: tuple[tuple[float, ...], ...],
    log_ratio: FloatArray,
    *coordinates: FloatArray,
    smoothness: float,
    shrinkage: float,
    huber: float = 0.06,
    importance: FloatArray | None = None,
) -> GridCorrection:
    """The correction nearest to log ratios (measured / physics) at the points.

    Ridge regression on the hat functions: `smoothness` weighs differences of neighbouring nodes, `shrinkage`
    the values themselves, so that nodes without points fall to their neighbours and then to no correction.
    Outliers weigh less (Huber), points with less `importance` too.
    """
    design = hat_weights(axes, *coordinates)
    shape = [len(axis) for axis in axes]
    nodes = np.arange(design.shape[1]).reshape(shape)
    penalty = shrinkage * np.eye(design.shape[1])
    for axis in range(len(shape)):
        low = np.take(nodes, range(shape[axis] - 1), axis=axis).ravel()
        high = np.take(nodes, range(1, shape[axis]), axis=axis).ravel()
        step = np.zeros((low.size, design.shape[1]))
        step[np.arange(low.size), low] = -1.0
        step[np.arange(low.size), high] = 1.0
        penalty += smoothness * step.T @ step
    values: FloatArray = np.zeros(design.shape[1])
    given = np.ones_like(log_ratio) if importance is None else importance
    weight: FloatArray = given
    for _ in range(4):
        normal = design.T @ (design * weight[:, None]) + penalty
        values = np.asarray(np.linalg.solve(normal, design.T @ (weight * log_ratio)), dtype=np.float64)
        error = np.abs(log_ratio - design @ values)
        weight = given * np.minimum(1.0, huber / np.maximum(error, 1e-12))
    return GridCorrection(axes=axes, values=tuple(round(float(value), 4) for value in values))


def _place(
    position: FloatArray, axis: tuple[float, ...]
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.intp]], FloatArray]:
    knots = np.asarray(axis)
    inside = np.clip(position, knots[0], knots[-1])
    index = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(axis) - 2)
    share = (inside - knots[index]) / (knots[index + 1] - knots[index])
    return index, np.asarray(share, dtype=np.float64)
