"""Five days of 16,384 accelerators with Llama 3's failure rates; `benchmarks/llama3_run.py` runs all 54.

What it is compared with, and what is assumed, stands there.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "llama3_run.py"


@pytest.mark.skipif(not BENCHMARK.exists(), reason="needs the benchmarks of the source tree")
def test_llama_3_has_the_interruptions_and_the_effective_time_of_the_real_one() -> None:
    found = runpy.run_path(str(BENCHMARK))["llama3_run"](days=5.0, seed=1)
    assert found["published_interruptions"] == pytest.approx(38.8, abs=0.1)
    assert found["interruptions"] == pytest.approx(found["published_interruptions"], rel=0.15)
    assert 0.90 < found["effective_time"] < 0.97
    assert found["ledger_closes"]
    assert found["device_ns"] == 5 * 86_400 * 10**9 * (2_048 + 8) * 8
