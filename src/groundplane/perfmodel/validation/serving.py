"""Times to first token and per token predicted against measured serving runs, at the stated concurrency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.serving_profiles import Correction, ServingCalibration, serving_calibration
from groundplane.perfmodel.validation.report import Excluded, Outcome
from groundplane.perfmodel.validation.report import errors_of as plain_errors_of
from groundplane.perfmodel.validation.serving_prices import ServingPricer
from groundplane.perfmodel.validation.serving_rows import COLUMNS, ServingCase, cases_of
from groundplane.perfmodel.validation.serving_throughput import COLUMNS as THROUGHPUT_COLUMNS
from groundplane.perfmodel.validation.serving_throughput import throughput_outcomes
from groundplane.perfmodel.validation.table import Row, read_table, shipped_table


class ServingErrors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Errors of a group of runs in per cent; `coverage_pct` counts both times inside their intervals."""

    source: str
    n: int
    ttft_median_abs_pct: float | None = None
    ttft_mean_abs_pct: float | None = None
    ttft_bias_pct: float | None = None
    ttft_coverage_pct: float | None = None
    tpot_median_abs_pct: float | None = None
    tpot_mean_abs_pct: float | None = None
    tpot_bias_pct: float | None = None
    tpot_coverage_pct: float | None = None
    throughput_median_abs_pct: float | None = None
    throughput_mean_abs_pct: float | None = None
    throughput_bias_pct: float | None = None
    coverage_pct: float | None = None
    predicted_pct: float | None = None


class ServingReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The comparison: complete rows pooled, those with open fields apart, each model by profiles that were
    fitted without it."""

    sources: list[ServingErrors]
    pooled: ServingErrors
    inferred: ServingErrors
    by_chip: list[ServingErrors]
    by_engine: list[ServingErrors]
    by_model: list[ServingErrors]
    by_precision: list[ServingErrors]
    leave_one_model_out: list[ServingErrors]
    excluded: list[Excluded]


@dataclass(frozen=True)
class _Outcome:
    case: ServingCase
    ttft_s: float
    tpot_s: float
    ttft_inside: bool
    tpot_inside: bool


def validate_serving(data: str | Path | None = None) -> ServingReport:
    """Compares serving runs; without `data` the cited ones of the catalogue.

    Args:
        data: a CSV file with the columns `COLUMNS`, one run a row, or of throughput (`THROUGHPUT_COLUMNS`),
            recognised by its column `metric`.

    Raises:
        InputError: unreadable file, a missing column, or a value that is no positive number.
    """
    if data is not None and "metric" in read_table(data, ())[0].values:
        return _throughput_report(read_table(data, THROUGHPUT_COLUMNS))
    rows = shipped_table("points_serving.csv", COLUMNS) if data is None else read_table(data, COLUMNS)
    cases, excluded = cases_of(rows)
    calibration = serving_calibration()
    known = {profile.name: profile for profile in calibration.profiles}
    excluded += [Excluded(c.row, f"engine {c.engine!r} is not known") for c in cases if c.engine not in known]
    cases = [case for case in cases if case.engine in known]
    pricer = ServingPricer(cases)
    outcomes = _outcomes(cases, *pricer.times(known), calibration, corrected=True)
    complete = [one for one in outcomes if not one.case.inferred]
    rows_given = len(complete) + len(excluded)
    pooled = errors_of("pooled", complete)
    share = 100.0 * len(complete) / rows_given if rows_given else None
    return ServingReport(
        sources=_grouped(complete, lambda case: case.source),
        pooled=msgspec.structs.replace(pooled, predicted_pct=None if share is None else round(share, 2)),
        inferred=errors_of("inferred", (one for one in outcomes if one.case.inferred)),
        by_chip=_grouped(complete, lambda case: case.system),
        by_engine=_grouped(complete, lambda case: case.engine),
        by_model=_grouped(complete, lambda case: case.model_name),
        by_precision=_grouped(complete, lambda case: case.precision),
        leave_one_model_out=_left_out(pricer, calibration),
        excluded=sorted(excluded, key=lambda one: one.row),
    )


def _throughput_report(rows: list[Row]) -> ServingReport:
    outcomes, excluded = throughput_outcomes(rows)
    groups: dict[str, list[Outcome]] = {"pooled": outcomes}
    for one in outcomes:
        groups.setdefault(one.source, []).append(one)
    pooled, *sources = (_throughput_errors(name, members) for name, members in groups.items())
    nothing = ServingErrors("inferred", 0)
    return ServingReport(sources, pooled, nothing, [], [], [], [], [], excluded)


def _throughput_errors(name: str, outcomes: list[Outcome]) -> ServingErrors:
    if not outcomes:
        return ServingErrors(name, 0)
    plain = plain_errors_of(name, outcomes)
    return ServingErrors(
        name,
        len(outcomes),
        throughput_median_abs_pct=plain.median_abs_pct,
        throughput_mean_abs_pct=plain.mean_abs_pct,
        throughput_bias_pct=plain.bias_pct,
        coverage_pct=plain.coverage_pct,
    )


def errors_of(name: str, outcomes: Iterable[_Outcome]) -> ServingErrors:
    """The errors of some runs under one name."""
    rows = list(outcomes)
    if not rows:
        return ServingErrors(name, 0)
    ttft = np.array([100.0 * (one.ttft_s / one.case.ttft_s - 1.0) for one in rows])
    tpot = np.array([100.0 * (one.tpot_s / one.case.tpot_s - 1.0) for one in rows])
    rate = np.array([
        100.0 * ((one.case.ttft_s + one.case.output * one.case.tpot_s)
                 / (one.ttft_s + one.case.output * one.tpot_s) - 1.0)
        for one in rows
    ])  # fmt: skip
    first, each = [one.ttft_inside for one in rows], [one.tpot_inside for one in rows]
    return ServingErrors(
        source=name,
        n=len(rows),
        ttft_median_abs_pct=_short(np.median(np.abs(ttft))),
        ttft_mean_abs_pct=_short(np.mean(np.abs(ttft))),
        ttft_bias_pct=_short(np.mean(ttft)),
        ttft_coverage_pct=_short(100.0 * np.mean(first)),
        tpot_median_abs_pct=_short(np.median(np.abs(tpot))),
        tpot_mean_abs_pct=_short(np.mean(np.abs(tpot))),
        tpot_bias_pct=_short(np.mean(tpot)),
        tpot_coverage_pct=_short(100.0 * np.mean(each)),
        throughput_median_abs_pct=_short(np.median(np.abs(rate))),
        coverage_pct=_short(100.0 * np.mean(first + each)),
    )


def _outcomes(
    cases: Sequence[ServingCase], ttft: FloatArray, tpot: FloatArray, calibration: ServingCalibration, *,
    corrected: bool,
) -> list[_Outcome]:  # fmt: skip
    """Cases with times predicted; `corrected` by what was measured of their kind, else as kinds unseen."""
    found = []
    for case, first_s, each_s in zip(cases, ttft.tolist(), tpot.tolist(), strict=True):
        factor, spreads = Correction(1.0, 1.0, 0), (f"ttft/{case.engine}", f"tpot/{case.engine}")
        wide, narrow = (calibration.spreads[name] for name in spreads)
        if corrected:
            factor = calibration.correction(case.engine, *case.kind)
            wide = calibration.spread("ttft", case.engine, *case.kind)
            narrow = calibration.spread("tpot", case.engine, *case.kind)
        first, each = first_s * factor.ttft, each_s * factor.tpot
        found.append(
            _Outcome(
                case,
                first,
                each,
                first * wide.ratio_p10 <= case.ttft_s <= first * wide.ratio_p90,
                each * narrow.ratio_p10 <= case.tpot_s <= each * narrow.ratio_p90,
            )
        )
    return found


def _left_out(pricer: ServingPricer, calibration: ServingCalibration) -> list[ServingErrors]:
    """Errors of each model under profiles fitted without it, uncorrected, where the fit knew it."""
    outcomes: dict[str, list[_Outcome]] = {}
    for key, profile in calibration.without_model.items():
        model, engine = key.rsplit("/", 1)
        chosen = np.array(
            [c.model_name == model and c.engine == engine and not c.inferred for c in pricer.cases],
            dtype=bool,
        )
        if chosen.any():
            part = pricer.part(chosen)
            times = part.times({engine: profile})
            outcomes.setdefault(model, []).extend(_outcomes(part.cases, *times, calibration, corrected=False))
    every = [one for rows in outcomes.values() for one in rows]
    return [errors_of(model, rows) for model, rows in outcomes.items()] + [errors_of("pooled", every)]


def _grouped(outcomes: list[_Outcome], key: Callable[[ServingCase], str]) -> list[ServingErrors]:
    groups: dict[str, list[_Outcome]] = {}
    for one in outcomes:
        groups.setdefault(key(one.case), []).append(one)
    return [errors_of(name, rows) for name, rows in groups.items()]


def _short(value: np.floating | float) -> float:
    return round(float(value), 3)
