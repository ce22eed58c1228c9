"""Fits a stack profile's numbers to measured steps, and says how far such predictions are off where not
fitted.

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
    "scaled_rate": (0.7, 1.6),
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
"""Pull to the start of a fit in log units: a number moves by half when residuals shrink enough to pay for
it."""

HUBER: Final = 0.07
"""Log residual from which on a run's pull stops growing."""

GUESSED: Final = frozenset({"layout", "expert parallelism"})
"""Open fields of runs that no fit looks at."""

ENOUGH: Final = 6
"""Complete runs from which on a fit looks at no others."""

STEPS: Final = 20
"""Steps of a fit; the last ones change little."""

LEAST_GAIN: Final = 1e-5
"""Share of the cost that a step must gain for another to follow: far below what a fold changes."""

FOLDS: Final = 5


def fit_profile(
    pricer: CasePricer,
    cases: Sequence[Case],
    start: StackProfile,
    seen: FloatArray | None = None,
    free: Sequence[str] = FITTED,
) -> StackProfile:
    """The profile with the facts of `start` whose step times are nearest to the measured ones, in log ratio.

    Complete runs count fully; where there are at least `ENOUGH` of them the others do not count at all. A
    source of n runs weighs as the square root of n, so that one large sweep does not drown the rest.

    Args:
        pricer: prices `cases`, all of this stack.
        cases: the runs.
        start: facts, and where the numbers begin and are drawn to.
        seen: 1 for runs that may be used, 0 for those held out; all by default.
        free: the numbers that may move.
    """
    low = np.log([BOUNDS[name][0] for name in free])
    high = np.log([BOUNDS[name][1] for name in free])
    measured_s = np.array([case.measured_s for case in cases])
    weight = np.sqrt(_weights(cases, np.ones(len(cases)) if seen is None else seen))

    def profile_of(logs: FloatArray) -> StackProfile:
        values: dict[str, Any] = dict(zip(free, np.exp(np.clip(logs, low, high)).tolist(), strict=True))
        return msgspec.structs.replace(start, **values)

    def residuals(logs: FloatArray) -> FloatArray:
        # Robust by hand: beyond `HUBER` a residual grows as its square root only.
        ratio = np.log(measured_s / pricer.step_s({start.name: profile_of(logs)}))
        size = np.abs(ratio)
        bent = np.sign(ratio) * np.sqrt(HUBER * np.maximum(2.0 * size - HUBER, 0.0))
        return np.asarray(weight * np.where(size <= HUBER, ratio, bent))

    first = np.log([float(getattr(start, name)) for name in free])
    pull = np.full(len(free), PULL)
    return profile_of(
        least_squares(residuals, first, pull, huber=10.0, max_steps=STEPS, least_gain=LEAST_GAIN)
    )


def _weights(cases: Sequence[Case], seen: FloatArray) -> FloatArray:
    """Weight of each run in a fit; they add up to the number of runs that count."""
    complete = np.array([float(case.complete) for case in cases])
    # Ranks that a run leaves open are a guess, and nothing is fitted to a guess.
    seen = seen * np.array([float(not GUESSED.intersection(case.open_fields)) for case in cases])
    used = seen * complete if (seen * complete).sum() >= ENOUGH else seen
    sources = [case.source for case in cases]
    counts = {
        source: sum(used[i] for i, name in enumerate(sources) if name == source) for source in set(sources)
    }
    weight = used / np.sqrt([max(counts[source], 1.0) for source in sources])
    return np.asarray(weight * used.sum() / max(float(weight.sum()), 1e-12))


def folds_of(cases: Sequence[Case], seed: int = 1) -> FloatArray:
    """A fold for each case; cases of one model on as many equal chips stay together."""
    keys = [f"{case.model.name}|{case.cluster.chip.name}|{case.num_chips}|{case.seq}" for case in cases]
    unique = sorted(set(keys))
    drawn = dict(
        zip(unique, (np.random.default_rng(seed).permutation(len(unique)) % FOLDS).tolist(), strict=True)
    )
    return np.array([drawn[key] for key in keys])


def unseen_ratios(
    pricer: CasePricer, cases: Sequence[Case], start: StackProfile, free: Sequence[str] = FITTED
) -> FloatArray:
    """Measured / predicted of each case under a profile fitted to the other folds (see `fit_profile`)."""
    folds = folds_of(cases)
    measured = np.array([case.measured_s for case in cases])
    ratios = np.ones(len(cases))
    for fold in np.unique(folds):
        held = folds == fold
        profile = fit_profile(pricer, cases, start, 1.0 - held, free) if not held.all() else start
        ratios[held] = (measured / pricer.step_s({start.name: profile}))[held]
    return ratios
