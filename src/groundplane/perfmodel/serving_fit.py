"""Fits the few numbers of an engine's profile to measured runs: robust least squares in logarithms.

Numbers stay near where they start (a weak prior) and within a factor that physics allows. Knows nothing of
files.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from scipy.optimize import least_squares

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.serving_profiles import FITTED, EngineProfile

Times = Callable[[EngineProfile], tuple[FloatArray, FloatArray]]
"""Time to first token and per token of the runs under a profile."""

_REACH = 6.0
_SCALE_REACH = 2.5
_SCALES = frozenset({"weights", "experts", "narrow", "widened", "prompts", "links", "cache", "stall"})
_PRIOR = {True: 0.35, False: 1.0}
"""How far, in logarithms, a scale or a time may usually go from its start: one standard deviation."""

_LEAST_SPREAD = 0.1
_STEPS = 60
_FEW_STEPS = 12


def fit_profile(
    start: EngineProfile,
    times: Times,
    ttft_s: FloatArray,
    tpot_s: FloatArray,
    weight: FloatArray,
    near: EngineProfile | None = None,
) -> EngineProfile:
    """The profile whose times come nearest to measured ones.

    Args:
        start: where the fit begins, and what its prior is.
        times: of the runs under a profile.
        ttft_s, tpot_s: measured.
        weight: of each run, 0 to leave it out.
        near: where to search from, if not from `start`, and with fewer steps.
    """
    begin = np.log(np.array([getattr(start, name) for name in FITTED]))
    scales = np.array([name in _SCALES for name in FITTED])
    reach = np.log(np.where(scales, _SCALE_REACH, _REACH))
    sigma = np.where(scales, _PRIOR[True], _PRIOR[False])
    seen = weight > 0
    root = np.sqrt(weight[seen])

    def profile_at(point: FloatArray) -> EngineProfile:
        values = np.exp(point)
        return msgspec.structs.replace(start, **dict(zip(FITTED, values.tolist(), strict=True)))

    def residuals(point: FloatArray) -> FloatArray:
        ttft, tpot = times(profile_at(point))
        per_token = root * _bounded(np.log(tpot[seen] / tpot_s[seen]) / _LEAST_SPREAD)
        first = root * _bounded(np.log(ttft[seen] / ttft_s[seen]) / (2.0 * _LEAST_SPREAD))
        prior = (point - begin) / sigma
        return np.concatenate([per_token, first, prior])

    first_guess = begin if near is None else np.log(np.array([getattr(near, name) for name in FITTED]))
    inside = np.clip(first_guess, begin - 0.999 * reach, begin + 0.999 * reach)
    found = least_squares(
        residuals,
        inside,
        bounds=(begin - reach, begin + reach),
        x_scale=sigma,
        max_nfev=_STEPS if near is None else _FEW_STEPS,
        diff_step=1e-3,
    )
    return profile_at(found.x)


def _bounded(value: FloatArray) -> FloatArray:
    """Grows like the value, then like its square root, so that outliers hardly count (square: absolute)."""
    size = np.abs(value)
    return np.asarray(np.sign(value) * np.sqrt(2.0 * (np.sqrt(1.0 + size * size) - 1.0)), dtype=np.float64)
