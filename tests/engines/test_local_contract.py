"""The local engine under the suite that holds for every engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from contract_suite import EngineContract
from engine_harness import Harness

from groundplane.platform.engines.contract import Engine
from groundplane.platform.engines.local.engine import LocalEngine


@pytest.mark.real
class TestLocalEngineContract(EngineContract):
    @pytest.fixture
    def make_harness(self, tmp_path: Path, new_harness: Callable[[Engine], Harness]) -> Callable[[], Harness]:
        state = tmp_path / "state with spaces"
        # Two devices on any machine: where there is one CPU both are that one.
        cpus = (sorted(LocalEngine(state).cpus) * 2)[:2]
        return lambda: new_harness(LocalEngine(state, devices=cpus))
