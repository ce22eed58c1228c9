from __future__ import annotations

import pytest

from groundplane.control.core import ControlCore
from groundplane.control.replay import replay
from groundplane.sim.fuzz import journal_of_seed, run_seed, run_seeds
from groundplane.sim.rough_world import RoughWorld

NUM_SEEDS = 150


def test_seeds_pass_with_faults() -> None:
    report = run_seeds(0, NUM_SEEDS)
    assert report.failures == 0, report.first_failure
    assert report.seeds == NUM_SEEDS
    assert report.faults > 10 * NUM_SEEDS
    assert report.events > 50 * NUM_SEEDS


def test_a_seed_is_a_whole_world() -> None:
    assert run_seed(7) == run_seed(7)
    assert run_seed(7).digest != run_seed(8).digest
    assert replay(journal_of_seed(7)).digest == run_seed(7).digest


def test_worlds_are_rough_enough() -> None:
    """Over some seeds all that can go wrong does, and news of all kinds come that must be ignored."""
    ignored: dict[str, int] = {}
    num_restarts = num_gangs_over_nodes = num_fragmented = 0
    for seed in range(120):
        world = RoughWorld(seed, ControlCore, ControlCore.restore)
        world.run()
        state = world.driver.core.state
        for reason, number in state.ignored.items():
            ignored[reason] = ignored.get(reason, 0) + number
        num_restarts += sum(job.restarts_used for job in state.jobs.values())
        num_gangs_over_nodes += sum(len(work.boots) > 1 for work in world.engine.works.values())
        num_fragmented += any(clock.total_ns for clock in state.clocks.values())
    assert set(ignored) >= {
        "report on a work that is gone",
        "report that changes nothing",
        "job submitted twice",
        "cancel of a job that is not there or over",
        "old news of a node",
        "timer that is not set or not due",
        "old generation of a service",
    }
    assert min(num_restarts, num_gangs_over_nodes, num_fragmented) >= 10


def test_a_failure_names_its_seed_and_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlCore, "handle", lambda core, now_ns, event: 1 // 0)
    report = run_seeds(5, 3)
    assert report.failing_seeds == (5, 6, 7)
    assert report.first_failure is not None
    assert report.first_failure.seed == 5
    assert report.first_failure.message.startswith("ZeroDivisionError")
