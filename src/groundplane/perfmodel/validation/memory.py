"""Predicted memory against what published runs took, and against which of them ran out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel.memory_profile import shipped_memory
from groundplane.perfmodel.memory_training import usable_bytes
from groundplane.perfmodel.published import COLUMNS
from groundplane.perfmodel.validation.memory_cases import CaseMemory
from groundplane.perfmodel.validation.memory_rows import FIT_COLUMNS, MemoryCase, sweep_cases, training_cases
from groundplane.perfmodel.validation.report import Errors, Excluded, Outcome, Report, report_of
from groundplane.perfmodel.validation.table import read_table, shipped_table
from groundplane.spec.errors import InputError

_SHIPPED: Final = "points_memory.csv"


class MemoryErrors(Errors, frozen=True, forbid_unknown_fields=True):
    """Errors of the memory of runs that lived, and how well fit is told from out-of-memory.

    `balanced_accuracy_pct` is the mean of the shares of either kind that were told right; None where the
    table has runs of one kind only.
    """

    balanced_accuracy_pct: float | None = None


def validate_memory(data: str | Path | None = None) -> Report:
    """Compares memory; without `data` the catalogue's cited points. `pooled` is a `MemoryErrors`.

    Args:
        data: a CSV file of training runs (`published.COLUMNS`; rows of metric memory_gb are taken) or of a
            sweep with what ran and what ran out of memory (`FIT_COLUMNS`), recognised by its columns.

    Raises:
        InputError: unreadable file, a missing column, a cell that should be a number and is none, or no row
        of memory.
    """
    cases, excluded = cases_of(data)
    profiles = {profile.name: profile for profile in shipped_memory().profiles}
    memory = CaseMemory(cases, profiles)
    reported = memory.reported_bytes(profiles)
    outcomes = [
        Outcome(
            row=case.row,
            source=case.source,
            measured=case.measured_bytes,
            predicted=float(guess),
            low=float(guess) * profiles[case.stack].ratio_p10,
            high=float(guess) * profiles[case.stack].ratio_p90,
            inferred=case.inferred,
        )
        for case, guess in zip(cases, reported, strict=True)
        if case.measured_bytes is not None
    ]
    whole = report_of(outcomes, excluded)
    limits = np.array([usable_bytes(case.chip_bytes or np.inf, profiles[case.stack]) for case in cases])
    accuracy = balanced_accuracy_pct(
        np.array([case.ran_out for case in cases]), memory.needed_bytes(profiles) > limits
    )
    pooled = MemoryErrors(**msgspec.structs.asdict(whole.pooled), balanced_accuracy_pct=accuracy)
    return msgspec.structs.replace(whole, pooled=pooled)


def cases_of(data: str | Path | None) -> tuple[list[MemoryCase], list[Excluded]]:
    """The cases of a table, told by its columns.

    Raises:
        InputError: as `validate_memory`.
    """
    if data is None:
        return training_cases(shipped_table(_SHIPPED, COLUMNS))
    rows = read_table(data, ("source", "model"))
    if "metric" not in rows[0].values:
        return sweep_cases(read_table(data, FIT_COLUMNS))
    cases, excluded = training_cases(read_table(data, COLUMNS))
    if not cases and not excluded:
        raise InputError("has no row of memory (metric memory_gb)", file=str(data))
    return cases, excluded


def balanced_accuracy_pct(ran_out: np.ndarray, predicted: np.ndarray) -> float | None:
    """Mean of the share of runs out of memory that were told so, and of the others."""
    if ran_out.all() or not ran_out.any():
        return None
    return round(50.0 * float(predicted[ran_out].mean() + (~predicted[~ran_out]).mean()), 3)
