"""Step times predicted against published training runs, with two yardsticks beside: a null model, and the
errors of profiles that were fitted without the source they are tried on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from groundplane.perfmodel.case_prices import CasePricer
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.null_model import fit_null, null_step_s
from groundplane.perfmodel.profiles import FITTED, TrainingCalibration, training_calibration
from groundplane.perfmodel.published import COLUMNS, Case, Run, case_of, runs_of
from groundplane.perfmodel.validation.ranking import Ranking, rankings
from groundplane.perfmodel.validation.report import Errors, Excluded, Outcome, Report, errors_of, report_of
from groundplane.perfmodel.validation.table import read_table, shipped_table


class TrainingReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The comparison, and what stands beside it.

    `left_out` holds, for each source, its errors under the profile that was fitted without it. `null_pooled`
    and `null_inferred` are the errors of the null model, whose one number is fitted to these very rows.
    `parameters` counts each stack's fitted numbers.
    `ranking` says how good the layouts are that the model would pick in each sweep.
    """

    report: Report
    left_out: list[Errors]
    null_pooled: Errors
    null_inferred: Errors
    parameters: dict[str, int]
    ranking: list[Ranking]


def validate_training(data: str | Path | None = None) -> TrainingReport:
    """Compares step times; without `data` the cited runs of the catalogue.

    Args:
        data: a CSV file with the columns `COLUMNS`, one metric a row.

    Raises:
        InputError: unreadable file, a missing column, or a value that is no positive number.
    """
    rows = shipped_table("points_training.csv", COLUMNS) if data is None else read_table(data, COLUMNS)
    cases, excluded = cases_of(runs_of(rows))
    calibration = training_calibration()
    predicted = CasePricer(cases).step_s(calibration.by_name())
    outcomes = [
        _outcome(case, seconds, calibration) for case, seconds in zip(cases, predicted.tolist(), strict=True)
    ]
    null = null_step_s(cases, fit_null(cases))
    null_outcomes = [_plain(case, seconds) for case, seconds in zip(cases, null.tolist(), strict=True)]
    return TrainingReport(
        report_of(outcomes, excluded),
        _left_out(cases, calibration),
        errors_of("null model, pooled", (one for one in null_outcomes if not one.inferred)),
        errors_of("null model, inferred", (one for one in null_outcomes if one.inferred)),
        {profile.name: len(FITTED) for profile in calibration.profiles},
        rankings(cases, predicted),
    )


def cases_of(runs: Sequence[Run]) -> tuple[list[Case], list[Excluded]]:
    """Runs that can be priced, and for each other row the reason why not."""
    cases: list[Case] = []
    excluded: list[Excluded] = []
    for run in runs:
        found = case_of(run)
        if isinstance(found, Case):
            cases.append(found)
        else:
            excluded += [Excluded(row, found.reason) for row in run.rows]
    return cases, excluded


def _outcome(case: Case, predicted_s: float, calibration: TrainingCalibration) -> Outcome:
    spread = calibration.spread_of(
        case.stack, complete=case.complete, several_servers=case.cluster.num_nodes > 1
    )
    low, high = predicted_s * spread.ratio_p10, predicted_s * spread.ratio_p90
    return Outcome(case.row, case.source, case.measured_s, predicted_s, low, high, not case.complete)


def _plain(case: Case, predicted_s: float) -> Outcome:
    return Outcome(
        case.row, case.source, case.measured_s, predicted_s, predicted_s, predicted_s, not case.complete
    )


def _left_out(cases: Sequence[Case], calibration: TrainingCalibration) -> list[Errors]:
    """Errors of each source under the profile fitted without it, where the fit knew the source at all."""
    found: list[Errors] = []
    for source in dict.fromkeys(case.source for case in cases):
        profile = calibration.without_source.get(source)
        if profile is None:
            continue
        own = [case for case in cases if case.source == source]
        stacks: dict[str, Any] = {
            case.stack: msgspec.structs.replace(profile, name=case.stack) for case in own
        }
        seconds: FloatArray = np.asarray(CasePricer(own).step_s(stacks))
        found.append(errors_of(source, (_plain(c, s) for c, s in zip(own, seconds.tolist(), strict=True))))
    return found
