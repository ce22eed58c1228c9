"""The default policy against the named ones: on a small generated workload, and on recorded arrivals.

`benchmarks/cluster_quality.py` is the whole comparison, over loads and seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from groundplane.sim.scenario import Question, ask, place_of
from groundplane.sim.summary import ClusterSummary, jain_index
from groundplane.sim.traces import TraceOptions, read_trace
from groundplane.sim.workload import at_load, generate


def by_policy(question: Question) -> dict[str, ClusterSummary]:
    return {answer.summary.policy: answer.summary for answer in ask(question)}


def test_jain() -> None:
    assert jain_index([1.0, 1.0, 1.0]) == pytest.approx(1.0)
    assert jain_index([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain_index([]) == 1.0


def test_the_default_policy_waits_less_than_backfill_and_fifo() -> None:
    place = place_of("8x8")
    jobs = generate(num_jobs=600, load=0.9, num_nodes=8, devices_per_node=8, seed=5)
    found = by_policy(Question(place, jobs, ("fifo", "backfill", "default")))
    assert all(summary.succeeded == 600 and summary.ledger_closes for summary in found.values())
    waits_s = [found[name].mean_wait_s for name in ("default", "backfill", "fifo")]
    assert waits_s == sorted(waits_s)


@pytest.mark.shared
def test_the_default_policy_on_recorded_arrivals(shared: Path) -> None:
    """One load and one draw of run times; large gangs wait at least 20 % less than with backfill."""
    traces = shared / "traces"
    options = TraceOptions(8, 1, traces / "philly-runtimes" / "philly_runtime.csv")
    place = place_of("32x8")
    jobs = at_load(read_trace(traces / "philly-gavel", options), 0.8, place.num_devices)
    found = by_policy(Question(place, jobs, ("fifo", "backfill", "fair-share", "default"), 1))
    ours = found.pop("default")
    for other in found.values():
        assert ours.mean_wait_s < 1.03 * other.mean_wait_s
        assert ours.p95_wait_s < 1.03 * other.p95_wait_s
        assert ours.fragmentation < 1.03 * other.fragmentation
        assert ours.jain > 0.97 * other.jain
    assert ours.large_gang_wait_s is not None
    assert found["backfill"].large_gang_wait_s is not None
    assert ours.large_gang_wait_s < 0.8 * found["backfill"].large_gang_wait_s
