"""How far a prediction of serving may be off, from what the iteration model was measured on.

Spreads are those of runs that the fit had not seen: narrow where the model was measured on the chip in that
format, wider where it was not (`ServingCalibration.spread`). Beyond them, a number format or a chip of which
nothing was measured widens more. The widths for those are judgements, marked by the grade. Knows nothing of
queues.
"""

from __future__ import annotations

import functools
from typing import Final

import msgspec

from groundplane.perfmodel.evidence import Evidence, Grade
from groundplane.perfmodel.serving_profiles import serving_calibration
from groundplane.sim.serving.described import BuiltPool

_UNMEASURED_FORMAT: Final = 1.3
_UNMEASURED_CHIP: Final = 1.6
"""Powers that the ratios of an interval are raised to: a judgement, there is nothing to fit it to."""


class ServingEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Spreads of times to first token and per token, and what was measured of model, chip and format."""

    grade: Grade
    ttft: Evidence
    tpot: Evidence
    reasons: tuple[str, ...]


def pool_evidence(pool: BuiltPool) -> ServingEvidence:
    """What stands behind predictions of one pool."""
    calibration = serving_calibration()
    model, chip, weights = pool.kind
    chips, formats = measured()
    reasons: list[str] = []
    power = 1.0
    first = calibration.spread("ttft", pool.engine, model, chip, weights)
    each = calibration.spread("tpot", pool.engine, model, chip, weights)
    grade = each.grade
    if grade != "measured":
        known = f"{model} in {weights} on {chip} by {pool.engine}"
        reasons.append(f"no run of {known} was measured: the spread of unseen pairs holds")
    if weights not in formats:
        power *= _UNMEASURED_FORMAT
        reasons.append(f"no run with {weights} weights was measured: intervals are widened")
    if chip not in chips:
        grade, power = "data-sheet", power * _UNMEASURED_CHIP
        reasons.append(f"no serving run on {chip} was measured: intervals are widened")
    return ServingEvidence(grade, _widened(first, power, grade), _widened(each, power, grade), tuple(reasons))


@functools.cache
def measured() -> tuple[frozenset[str], frozenset[str]]:
    """Chips and formats of weights with serving runs behind the calibration."""
    keys = [key.split("/") for key in serving_calibration().corrections]
    kinds = [key for key in keys if len(key) == 4]
    # bf16 is what every engine runs by default; fp8 in blocks and by tensor are one format here.
    formats = {"bf16", *(key[3] for key in kinds)}
    return frozenset(key[2] for key in kinds), frozenset(formats)


def weakest(pools: tuple[BuiltPool, ...]) -> ServingEvidence:
    """The evidence of the pool that is known least."""
    order = {"measured": 0, "family": 1, "data-sheet": 2}
    return max((pool_evidence(pool) for pool in pools), key=lambda one: (order[one.grade], _width(one.tpot)))


def _width(evidence: Evidence) -> float:
    return evidence.ratio_p90 / evidence.ratio_p10


def _widened(evidence: Evidence, power: float, grade: Grade) -> Evidence:
    return msgspec.structs.replace(
        evidence, grade=grade, ratio_p10=evidence.ratio_p10**power, ratio_p90=evidence.ratio_p90**power
    )
