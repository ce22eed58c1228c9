"""What stands behind a predicted number: how directly it was measured, and how far off such numbers were.

The residuals are ratios measured / predicted on configurations that the fit had not seen. Knows nothing of
what is predicted.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Numbers = npt.ArrayLike
"""A number or an array of numbers; arrays broadcast against each other."""

Grade = Literal["measured", "family", "data-sheet"]
"""`measured`: fitted to this chip or fabric; `family`: to its kin; `data-sheet`: to nothing."""

_ORDER: dict[Grade, int] = {"measured": 0, "family": 1, "data-sheet": 2}


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Grade and residual spread of one kind of prediction.

    `ratio_p10`, `ratio_p50` and `ratio_p90` are quantiles of measured / predicted: multiply a predicted time
    by them for its interval. `num_points` counts the measurements behind them, 0 where they are a judgement.
    """

    grade: Grade
    ratio_p10: float
    ratio_p50: float
    ratio_p90: float
    num_points: int
    source: str


def evidence_of(grade: Grade, ratio: FloatArray, source: str, *, least_spread: float = 0.0) -> Evidence:
    """Evidence from ratios measured / predicted; the interval is at least `least_spread` wide either way."""
    low, middle, high = (float(value) for value in np.quantile(ratio, [0.1, 0.5, 0.9]))
    return Evidence(
        grade, min(low, 1.0 - least_spread), middle, max(high, 1.0 + least_spread), int(ratio.size), source
    )


def weaker(first: Evidence, second: Evidence) -> Evidence:
    """The evidence that says less: the worse grade, then the wider spread."""
    return max(first, second, key=lambda one: (_ORDER[one.grade], one.ratio_p90 / one.ratio_p10))
