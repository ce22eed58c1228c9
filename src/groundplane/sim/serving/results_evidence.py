"""How far a prediction of serving may be off, from what the iteration model was measured on.

The spreads are those of (model, system) pairs that the fit had not seen. Beyond them, what was never measured
widens: a model of another kind does not (the spread is already that of unseen ones), a number format does, a
chip does most. The widths for those are judgements, marked by the grade. Knows nothing of queues.
"""

from __future__ import annotations

from typing import Final

import msgspec

from groundplane.perfmodel.evidence import Evidence, Grade
from groundplane.perfmodel.serving_profiles import serving_calibration
from groundplane.sim.serving.described import BuiltPool

MEASURED_CHIPS: Final = (
    "h100-80gb-sxm", "h200-141gb-sxm", "b200-180gb-sxm", "b300-288gb-sxm", "gb200-186gb", "gb300-288gb",
)  # fmt: skip
"""Chips with serving runs behind the calibration."""

MEASURED_FORMATS: Final = ("bf16", "fp8", "fp8_block", "fp4", "int4_weight_only")
"""Formats of weights with serving runs behind it."""

_UNMEASURED_FORMAT: Final = 1.3
_UNMEASURED_CHIP: Final = 1.6
"""Powers that the ratios of an interval are raised to: a judgement, there is nothing to fit it to."""


class ServingEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Spreads of times to first token and per token, and what was measured of this model, chip and format."""

    grade: Grade
    ttft: Evidence
    tpot: Evidence
    reasons: tuple[str, ...]


def pool_evidence(pool: BuiltPool) -> ServingEvidence:
    """What stands behind predictions of one pool."""
    calibration = serving_calibration()
    seen_model = f"{pool.model.name}/{pool.engine}" in calibration.without_model
    chip, formats = pool.pricer.chip.name, {pool.formats.linear, pool.formats.experts}
    reasons: list[str] = []
    grade: Grade = "measured"
    power = 1.0
    if not seen_model:
        grade = "family"
        reasons.append(
            f"no run of {pool.model.name} on {pool.engine} was measured: the spread of unseen models holds"
        )
    unknown = sorted(formats - set(MEASURED_FORMATS))
    if unknown:
        grade, power = "family", power * _UNMEASURED_FORMAT
        reasons.append(f"no run with {', '.join(unknown)} weights was measured: intervals are widened")
    if chip not in MEASURED_CHIPS:
        grade, power = "data-sheet", power * _UNMEASURED_CHIP
        reasons.append(f"no serving run on {chip} was measured: intervals are widened")
    return ServingEvidence(
        grade,
        _widened(calibration.spreads[f"ttft/{pool.engine}"], power, grade),
        _widened(calibration.spreads[f"tpot/{pool.engine}"], power, grade),
        tuple(reasons),
    )


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
