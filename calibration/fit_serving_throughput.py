"""Fits the profile of TensorRT-LLM before 1.0 to its own tables of output tokens a second.

Called by `fit_serving.py`. Folds are whole (model, chip) pairs.
"""

from __future__ import annotations

import sys

import common
import numpy as np

from groundplane.perfmodel.evidence import Evidence, FloatArray, evidence_of
from groundplane.perfmodel.serving_fit import Runs, Slopes, fit_profile
from groundplane.perfmodel.serving_profiles import EngineProfile
from groundplane.perfmodel.validation.serving_throughput import (
    COLUMNS,
    ENGINE,
    MOST_SEQUENCES,
    ThroughputCase,
    throughput_cases,
)
from groundplane.perfmodel.validation.table import read_table

FILE = "serving_measured.csv"
START = EngineProfile(ENGINE, host_s=3e-3, host_sequence_s=2e-5, max_sequences=MOST_SEQUENCES)


def throughput_profile() -> tuple[EngineProfile, Evidence]:
    """The profile, and measured / predicted on folds it had not seen."""
    cases = throughput_cases(read_table(common.measured_folder() / FILE, COLUMNS))[0]
    profile, slopes = fit(cases, np.ones(len(cases)), None)
    fold = common.folds_of([(case.model_name, case.chip) for case in cases])
    unseen = np.zeros(len(cases))
    for number in range(common.FOLDS):
        part, _ = fit(cases, (fold != number).astype(float), slopes)
        held = fold == number
        unseen[held] = rates([case for case, mine in zip(cases, held, strict=True) if mine], part)
    measured = np.array([case.measured for case in cases])
    for name, rate in (("fitted", rates(cases, profile)), ("unseen", unseen)):
        error = common.abs_pct(measured / rate)
        sys.stdout.write(
            f"{ENGINE} {name}: n {error.size}, median {np.median(error):.1f} mean {error.mean():.1f}\n"
        )
    sys.stdout.write(f"{profile}\n")
    return profile, evidence_of("measured", measured / unseen, f"unseen (model, chip) folds of {ENGINE}")


def fit(cases: list[ThroughputCase], weight: FloatArray, near: Slopes | None) -> tuple[EngineProfile, Slopes]:
    """Tokens' times in place of both times that `fit_profile` compares."""
    measured = 1.0 / np.array([case.measured for case in cases])

    def times(profile: EngineProfile) -> tuple[FloatArray, FloatArray]:
        found = 1.0 / rates(cases, profile)
        return found, found

    return fit_profile(START, times, Runs(measured, measured, weight), near=near)


def rates(cases: list[ThroughputCase], profile: EngineProfile) -> FloatArray:
    """Output tokens a second."""
    return np.array([case.predicted(profile) for case in cases])
