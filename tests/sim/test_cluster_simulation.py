"""Whole runs of a small cluster: results by hand where they can be, conservation where not."""

from __future__ import annotations

import pytest

from groundplane.control.events import Gang
from groundplane.sim.cluster import run_cluster
from groundplane.sim.faults import FaultRates
from groundplane.sim.physics import UniformPhysics
from groundplane.sim.summary import summarise
from groundplane.sim.workload import SIZE_SHARES, SimJob, gang_of, generate

S = 1_000_000_000
ROUGH = FaultRates().scaled(200)


def job(number: int, submit_s: int, devices: int, run_s: int) -> SimJob:
    return SimJob(f"j{number}", submit_s * S, Gang(1, devices, 0), run_s * S, run_s * S)


def test_two_jobs_by_hand() -> None:
    """One node of two devices; each job takes both for 2 s of start, 100 s of work, no end time."""
    run = run_cluster(
        num_nodes=1,
        devices_per_node=2,
        jobs=[job(0, 0, 2, 100), job(1, 50, 2, 100)],
        physics=UniformPhysics(start_delay_ns=2 * S, stop_delay_ns=0),
    )
    first, second = run.core.state.jobs.values()
    assert first.ended_ns == pytest.approx(102 * S, abs=10**8)
    assert second.first_started_ns == first.ended_ns
    summary = summarise(run)
    assert summary.utilisation == pytest.approx(1.0, abs=1e-6)
    assert summary.ledger["busy"] == pytest.approx(200 / 204, abs=1e-4)
    assert summary.ledger["allocated_idle"] == pytest.approx(4 / 204, abs=1e-4)
    assert summary.ledger_closes
    waits = {row.group: row for row in summary.waits}
    assert waits["2-7"].jobs == waits["all"].jobs == 2
    assert waits["all"].mean_s == pytest.approx(26.0, abs=0.1)


def test_a_run_with_faults_ends_and_closes() -> None:
    jobs = generate(num_jobs=60, load=0.7, num_nodes=4, devices_per_node=8, seed=3)
    run = run_cluster(num_nodes=4, devices_per_node=8, jobs=jobs, seed=3, fault_rates=ROUGH)
    summary = summarise(run)
    assert summary.succeeded == 60
    assert summary.ledger_closes
    assert summary.restarts > 0
    assert summary.lost_work_device_s > 0
    assert all(count > 0 for count in summary.faults.values())
    again = run_cluster(num_nodes=4, devices_per_node=8, jobs=jobs, seed=3, fault_rates=ROUGH)
    assert summarise(again) == summary


def test_work_since_the_last_checkpoint_is_done_again() -> None:
    """With checkpoints far apart a failure costs more."""
    jobs = generate(num_jobs=40, load=0.5, num_nodes=2, devices_per_node=8, seed=1)
    rates = FaultRates(
        ranks_per_device_day=3.0,
        nodes_per_node_day=0.0,
        silences_per_node_day=0.0,
        control_planes_per_day=0.0,
    )
    lost_s = [
        summarise(
            run_cluster(
                num_nodes=2,
                devices_per_node=8,
                jobs=jobs,
                seed=1,
                fault_rates=rates,
                checkpoint_every_ns=every_s * S,
            )
        ).lost_work_device_s
        for every_s in (60, 3600)
    ]
    assert 0 < lost_s[0] < lost_s[1]


def test_the_workload_has_the_load_asked_for() -> None:
    jobs = generate(num_jobs=2000, load=0.8, num_nodes=64, devices_per_node=8, seed=0)
    asked_ns = sum(each.gang.num_ranks * each.gang.devices_per_rank * each.run_ns for each in jobs)
    assert asked_ns / (512 * jobs[-1].submit_ns) == pytest.approx(0.8, rel=0.01)
    assert [each.submit_ns for each in jobs] == sorted(each.submit_ns for each in jobs)
    assert jobs == generate(num_jobs=2000, load=0.8, num_nodes=64, devices_per_node=8, seed=0)
    assert sum(SIZE_SHARES.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("devices", "gang"),
    [(1, Gang(1, 1, 0)), (8, Gang(1, 8, 0)), (32, Gang(4, 8, 0)), (12, Gang(12, 1, 0))],
)
def test_gangs_are_whole_nodes_beyond_one(devices: int, gang: Gang) -> None:
    assert gang_of(devices, 8) == gang


def test_a_gang_is_as_slow_as_its_slowest_node() -> None:
    """All nodes are slow by a half, and nothing else goes wrong: 100 s of work take 150 s."""
    rates = FaultRates(
        ranks_per_device_day=0.0, nodes_per_node_day=0.0, silences_per_node_day=0.0,
        control_planes_per_day=0.0, slow_node_share=1.0, slow_node_factor=1.5,
    )  # fmt: skip
    run = run_cluster(
        num_nodes=1,
        devices_per_node=2,
        jobs=[job(0, 0, 2, 100)],
        fault_rates=rates,
        physics=UniformPhysics(start_delay_ns=2 * S, stop_delay_ns=0),
    )
    assert run.jobs[0].ended_ns == pytest.approx(152 * S, abs=10**8)
