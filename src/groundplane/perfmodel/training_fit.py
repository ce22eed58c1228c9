"""Fits a stack profile's numbers to measured steps, and says how far such predictions are off where not fitted.

The fit is robust and drawn to where physics puts each number, so that numbers which the measurements do not
determine stay there. Knows cases and profiles, no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from groundplane.perfmodel.case_prices import CasePricer
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.kernel_fit import least_squares
from groundplane.perfmodel.profiles import FITTED, StackProfile
from groundplane.perfmodel.published import Case

BOUNDS: Final = {
    "sustained": (0.5, 1.15),
    "small_share": (0.3, 1.3),
    "hidden_passes": (0.1, 60.0),
    "host_s_per_operator": (1e-6, 3e-4),
    "step_overhead_s": (1e-4, 0.3),
    "stall_s": (1e-5, 5.0),
    "hop_s": (1e-6, 2e-3),
    "link_share": (0.2, 1.3),
    "exposed_share": (0.01, 1.0),
    "optimizer_passes": (3.0, 60.0),
}
"""Physical limits of each fitted number."""

PULL: Final = 0.08
"""Pull to the start of a fit in log units: a number moves by half when residuals shrink enough to pay for it."""

FOLDS: Final = 5


def fit_profile(pricer: CasePricer, measured_s: FloatArray, start: StackProfile) -> StackProfile:
    """The profile with the facts of `start` whose step times are nearest to the measured ones, in log ratio.

    Args:
        pricer: cases of this stack.
        measured_s: seconds of each of them.
        start: facts, and where the numbers begin and are drawn to.
    """
    low = np.log([BOUNDS[name][0] for name in FITTED])
    high = np.log([BOUNDS[name][1] for name in FITTED])

    def profile_of(logs: FloatArray) -> StackProfile:
        values: dict[str, Any] = dict(zip(FITTED, np.exp(np.clip(logs, low, high)).tolist(), strict=True))
        return msgspec.structs.replace(start, **values)

    def residuals(logs: FloatArray) -> FloatArray:
        return np.asarray(np.log(measured_s / pricer.step_s({start.name: profile_of(logs)})))

    first = np.log([float(getattr(start, name)) for name in FITTED])
    return profile_of(least_squares(residuals, first, huber=0.07, pull=np.full(len(FITTED), PULL)))


def folds_of(cases: Sequence[Case], seed: int = 1) -> FloatArray:
    """A fold for each case; cases of one model on as many equal chips stay together."""
    keys = [f"{case.model.name}|{case.cluster.chip.name}|{case.num_chips}|{case.seq}" for case in cases]
    unique = sorted(set(keys))
    drawn = dict(
        zip(unique, (np.random.default_rng(seed).permutation(len(unique)) % FOLDS).tolist(), strict=True)
    )
    return np.array([drawn[key] for key in keys])


def unseen_ratios(cases: Sequence[Case], start: StackProfile) -> FloatArray:
    """Measured / predicted of each case under a profile fitted to the other folds."""
    folds = folds_of(cases)
    measured = np.array([case.measured_s for case in cases])
    ratios = np.ones(len(cases))
    for fold in range(FOLDS):
        held = folds == fold
        if not held.any():
            continue
        seen = [case for case, out in zip(cases, held, strict=True) if not out]
        unseen = [case for case, out in zip(cases, held, strict=True) if out]
        profile = start if not seen else fit_profile(CasePricer(seen), measured[~held], start)
        ratios[held] = measured[held] / CasePricer(unseen).step_s({start.name: profile})
    return ratios
