"""What stands behind a predicted number: how directly it was measured, and how far off such numbers were.

The residuals are ratios measured / predicted on configurations that the fit had not seen. Knows nothing of
what is predicted.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Grade = Literal["measured", "family", "data-sheet"]
"""`measured`: fitted to this chip or fabric; `family`: to its kin; `data-sheet`: nothing of its kind was measured."""

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


def weaker(first: Evidence, second: Evidence) -> Evidence:
    """The evidence that says less: the worse grade, then the wider spread."""
    return max(first, second, key=lambda one: (_ORDER[one.grade], one.ratio_p90 / one.ratio_p10))
