"""The interval between saves: the published formula, and how it follows what is measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.platform.storage.checkpoint_interval import CheckpointInterval, daly_interval_s


def test_the_interval_by_hand() -> None:
    # 5 min a save, a failure a day: sqrt(2 * 300 * 86400) = 7200; ratio 300 / 172800 = 1/576, its root 1/24.
    assert daly_interval_s(300, 86_400) == pytest.approx(7200 * (1 + 1 / 72 + 1 / 5184) - 300)
    assert daly_interval_s(100, 50) == 50


@given(st.floats(0.01, 1e3), st.floats(1e3, 1e7))
def test_it_loses_least_time(cost_s: float, mtbf_s: float) -> None:
    """Against the exact cost of Daly's model: work per interval against its expected wall time."""

    def lost(interval_s: float) -> float:
        return mtbf_s * math.expm1((interval_s + cost_s) / mtbf_s) / interval_s

    best = daly_interval_s(cost_s, mtbf_s)
    assert lost(best) <= min(lost(best * 0.8), lost(best * 1.25)) * (1 + 1e-9)


def test_it_follows_costs_and_failures() -> None:
    interval = CheckpointInterval(assumed_mtbf_s=10_000)
    interval.saved(2.0, 30.0)
    assert interval.interval_s == pytest.approx(daly_interval_s(2, 10_000))
    interval.ran(2_000, failed=True)
    assert interval.mtbf_s == 6_000
    sooner = interval.interval_s
    assert sooner == pytest.approx(daly_interval_s(2, 6_000))
    interval.ran(100_000, failed=False)
    assert interval.interval_s > sooner
    interval.saved(12.0, 30.0)
    assert interval.cost_s == pytest.approx(5.0)
    assert interval.explain()["failures_seen"] == 1


def test_it_is_bounded_by_the_save_that_runs_and_by_limits() -> None:
    assert CheckpointInterval(1e4, cost_s=0.001, background_s=60).interval_s == 60
    assert CheckpointInterval(1e4, cost_s=0.0001, least_s=5).interval_s == 5
    assert CheckpointInterval(1e12, cost_s=100, most_s=3600).interval_s == 3600
