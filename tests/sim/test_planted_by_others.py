"""Every fault that somebody planted who had not read the checker is caught within 200 seeds."""

from __future__ import annotations

import os

import planted_devices  # noqa: F401 - its faults enter the list
import pytest
from planted_by_others import FAULTS, Patch

from groundplane.control.core import ControlCore
from groundplane.sim.fuzz import run_seed

SEEDS = int(os.environ.get("GROUNDPLANE_PLANTED_SEEDS", "200"))
CAUGHT = ("ViolationError", "InvariantError")
"""What counts: the checker's word, or the core's own; a slip of the fault itself does not."""


def test_there_are_enough_of_them() -> None:
    assert len(FAULTS) >= 20


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert caught_at(FAULTS[name], monkeypatch) is not None, f"{name} was not caught in {SEEDS} seeds"


def caught_at(plant: Patch, patch: pytest.MonkeyPatch) -> int | None:
    """The first seed that fails with the fault and not without it."""
    plant(patch)
    for seed in range(SEEDS):
        failure = run_seed(seed, restore_core=ControlCore.restore).failure
        if failure is not None:
            assert failure.message.startswith(CAUGHT), failure.message
            patch.undo()
            if run_seed(seed).failure is None:
                return seed
            plant(patch)
    return None
