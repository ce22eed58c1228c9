"""What tests of plans share: one model of one cluster, and a calibration that no fit moves."""

from __future__ import annotations

import msgspec
import pytest

from groundplane.perfmodel.evidence import Evidence
from groundplane.perfmodel.profiles import StackProfile, TrainingCalibration


@pytest.fixture
def calibration(monkeypatch: pytest.MonkeyPatch) -> TrainingCalibration:
    """A calibration of one plain stack, in place of the shipped one."""
    evidence = Evidence("measured", 0.9, 1.0, 1.1, 20, "a test")
    made = TrainingCalibration(
        source="a test",
        profiles=(
            msgspec.structs.replace(StackProfile("megatron-core"), fused_loss=True),
            StackProfile("torchtitan", selective_linears=0.5),
        ),
        spreads={"any": evidence, "any, inferred": evidence},
        without_source={},
    )
    for module in ("groundplane.perfmodel.profiles", "groundplane.design.training_plan"):
        monkeypatch.setattr(f"{module}.training_calibration", lambda: made)
    return made
