"""Fits the few numbers of an engine's profile to measured runs: robust Gauss-Newton in logarithms.

Numbers stay near where they start (a weak prior) and within a factor that physics allows. Derivatives of the
simulated times are taken once, by differences, and serve all fits that leave some runs out. Knows nothing of
files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from scipy.optimize import least_squares

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.serving_profiles import FITTED, EngineProfile

Times = Callable[[EngineProfile], tuple[FloatArray, FloatArray]]
"""Time to first token and per token of the runs under a profile."""

_TIGHT: Final = frozenset({"weights", "experts", "cache", "prompts"})
_LOOSE: Final = frozenset({"links", "floors"})
_REACH: Final = (1.6, 2.5, 8.0)
_PRIOR: Final = (0.1, 0.25, 1.0)
"""How far a scale of what kernel tables say, another scale, or a time may go from its start: the largest
factor, and one standard deviation of its logarithm."""

_SPREAD: Final = (0.2, 0.1)
"""Errors, in logarithms, beyond which a first token's time and a token's time count less than their square.
"""

_STEP: Final = 0.02
_LONGEST: Final = 0.5
_ROUNDS: Final = 6
_FEW_ROUNDS: Final = 2


@dataclass(frozen=True)
class Slopes:
    """Derivatives of the logarithms of all times, shape (2 N, parameters), taken at a profile."""

    values: FloatArray
    profile: EngineProfile


@dataclass(frozen=True)
class Runs:
    """Measured seconds of N runs, each with its weight, 0 to leave it out."""

    ttft_s: FloatArray
    tpot_s: FloatArray
    weight: FloatArray


def fit_profile(
    start: EngineProfile, times: Times, runs: Runs, *, near: Slopes | None = None
) -> tuple[EngineProfile, Slopes]:
    """The profile whose times come nearest to measured ones, and the slopes used last.

    Args:
        start: where the fit begins, and what its prior is.
        times: of the runs under a profile.
        runs: what was measured.
        near: slopes of a fit to nearly the same runs, to begin from and to keep.
    """
    prior = _logs(start)
    place = [0 if name in _TIGHT else 1 if name in _LOOSE else 2 for name in FITTED]
    sigma, reach = np.array(_PRIOR)[place], np.log(np.array(_REACH)[place])
    root = np.sqrt(np.concatenate([runs.weight, runs.weight]))
    spread = np.repeat(_SPREAD, runs.weight.size)
    measured = np.log(np.concatenate([runs.ttft_s, runs.tpot_s]))

    def errors(point: FloatArray) -> FloatArray:
        return np.asarray(_log_times(times, start, point) - measured, dtype=np.float64)

    def rated(error: FloatArray, point: FloatArray) -> FloatArray:
        return np.concatenate([root * _bounded(error / spread), (point - prior) / sigma])

    point = prior if near is None else np.clip(_logs(near.profile), prior - reach, prior + reach)
    error = errors(point)
    slopes = near
    for _ in range(_ROUNDS if near is None else _FEW_ROUNDS):
        if near is None or slopes is None:
            slopes = _slopes(times, start, point, error + measured)
        values = slopes.values
        low = np.maximum(prior - reach, point - _LONGEST) - point
        high = np.minimum(prior + reach, point + _LONGEST) - point
        moved = least_squares(
            lambda d, e=error, p=point, j=values: rated(e + j @ d, p + d),
            np.clip(np.zeros(point.size), low + 1e-9, high - 1e-9),
            bounds=(low, high),
            x_scale=sigma,
        ).x
        best = float(np.sum(rated(error, point) ** 2))
        for share in (1.0, 0.5, 0.2):
            tried = errors(point + share * moved)
            if float(np.sum(rated(tried, point + share * moved) ** 2)) < best:
                point, error = point + share * moved, tried
                break
        else:
            break
    profile = _at(start, point)
    return profile, Slopes(slopes.values if slopes is not None else np.zeros((0, 0)), profile)


def _slopes(times: Times, start: EngineProfile, point: FloatArray, at: FloatArray) -> Slopes:
    columns = []
    for place in range(point.size):
        moved = point.copy()
        moved[place] += _STEP
        columns.append((_log_times(times, start, moved) - at) / _STEP)
    return Slopes(np.column_stack(columns), _at(start, point))


def _log_times(times: Times, start: EngineProfile, point: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.concatenate(times(_at(start, point)))), dtype=np.float64)


def _logs(profile: EngineProfile) -> FloatArray:
    return np.log(np.array([getattr(profile, name) for name in FITTED], dtype=np.float64))


def _at(start: EngineProfile, point: FloatArray) -> EngineProfile:
    values = (float(f"{value:.4g}") for value in np.exp(point))
    return msgspec.structs.replace(start, **dict(zip(FITTED, values, strict=True)))


def _bounded(value: FloatArray) -> FloatArray:
    """Grows like the value, then like its square root, so that outliers hardly count (square: absolute)."""
    size = np.abs(value)
    return np.asarray(np.sign(value) * np.sqrt(2.0 * (np.sqrt(1.0 + size * size) - 1.0)), dtype=np.float64)
