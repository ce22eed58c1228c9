from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from groundplane.control.core import ControlCore
from groundplane.control.events import AnyEvent, JobCancelRequested
from groundplane.control.jobs import Jobs
from groundplane.control.journal import decode_record
from groundplane.control.replay import replay
from groundplane.sim.fuzz import (
    journal_of_seed,
    minimise,
    read_case,
    run_case,
    run_seed,
    run_seeds,
    write_case,
)
from groundplane.sim.journal_file import write_journal
from groundplane.sim.rough_world import RoughWorld

NUM_SEEDS = 150


def test_seeds_pass_with_faults() -> None:
    report = run_seeds(0, NUM_SEEDS)
    assert report.failures == 0, report.first_failure
    assert report.seeds == NUM_SEEDS
    assert report.faults > 10 * NUM_SEEDS
    assert report.events > 50 * NUM_SEEDS


@pytest.mark.parametrize("seed", [346, 698, 1901, 3278, 3692])
def test_seeds_that_once_failed(seed: int) -> None:
    """A replica took the place of the head; a spare stayed kept for a service that was removed."""
    assert run_seed(seed).failure is None


def test_a_seed_is_a_whole_world() -> None:
    assert run_seed(7) == run_seed(7)
    assert run_seed(7).digest != run_seed(8).digest
    assert replay(journal_of_seed(7)).digest == run_seed(7).digest


def test_worlds_are_rough_enough() -> None:
    """Over some seeds all that can go wrong does, and news of all kinds come that must be ignored."""
    ignored: dict[str, int] = {}
    num_restarts = num_gangs_over_nodes = num_fragmented = 0
    for seed in range(200):
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


def test_every_kind_of_fault_happens() -> None:
    """Each that the documentation promises, within some seeds."""
    items: set[str] = set()
    log: list[str] = []
    for seed in range(150):
        world = RoughWorld(seed, ControlCore, ControlCore.restore)
        world.run()
        items |= {item.rsplit("/", 1)[-1] for item in world.dice.items}
        items |= {item.split("/")[0] for item in world.dice.items}
        log += world.log
    assert items >= {
        "lost", "repeated", "forged", "late messages", "again", "kill", "slow", "clock back", "silence",
        "partition", "node dies", "rank crashes", "operator ends a work", "clock jumps", "control plane dies",
        "cordon", "snapshot", "sweep",
    }  # fmt: skip
    assert sum("(control plane dies)" in line for line in log) > 100


def test_torn_writes_are_never_seen_again() -> None:
    """Some deaths leave half a record; the next process drops it, and only the last may be torn."""
    num_torn = 0
    for seed in range(60):
        world = RoughWorld(seed, ControlCore, ControlCore.restore)
        tear = world.driver.tear_journal

        def counted(event: AnyEvent, tear: Callable[[AnyEvent], None] = tear) -> None:
            nonlocal num_torn
            num_torn += 1
            tear(event)

        world.driver.tear_journal = counted  # type: ignore[method-assign]
        world.run()
        assert [decode_record(payload).seq for payload in world.driver.journal] == list(
            range(1, len(world.driver.journal) + 1)
        )
    assert num_torn >= 5


def lose_leases_on_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that takes a running job and a cancel: the devices are released without proof."""
    cancel = Jobs.cancel_requested

    def planted(jobs: Jobs, event: JobCancelRequested) -> None:
        cancel(jobs, event)
        job = jobs._context.state.jobs.get(event.job_id)
        if job is not None and job.work_id in jobs._context.state.works:
            work = jobs._context.state.works[job.work_id]
            for node in jobs._context.state.nodes.values():
                node.free = tuple(sorted((*node.free, *node.leases.pop(work.work_id, ()))))

    monkeypatch.setattr(Jobs, "cancel_requested", planted)


def test_a_failing_seed_is_cut_down_and_replays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lose_leases_on_cancel(monkeypatch)
    seed = next(seed for seed in range(200) if run_seed(seed).failure is not None)
    whole = run_seed(seed)
    case = minimise(seed)
    assert case is not None
    assert len(case.kept) < len(whole.items) / 2
    assert len(case.kept) <= 12
    assert {"plan/JobCancelRequested", "plan/JobSubmitted", "plan/NodeJoined"} <= {
        item.rpartition("/")[0] for item in case.kept
    }
    assert len(case.events) < 40
    path = tmp_path / "case.json"
    write_case(path, case)
    again = read_case(path)
    assert again == case
    result = run_case(case)
    assert result.failure is not None
    assert (result.failure.message, result.log) == (case.message, case.events)
    monkeypatch.undo()
    assert run_case(case).failure is None
    assert minimise(seed) is None


def test_what_is_no_case_is_none(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    write_journal(path, journal_of_seed(3))
    assert read_case(path) is None
    assert read_case(tmp_path) is None


def test_leaving_a_part_out_leaves_the_rest() -> None:
    """All of a seed's own plans and faults make the same world; without faults it has none."""
    whole = run_seed(11)
    assert run_seed(11, kept=whole.items).digest == whole.digest
    plans = [item for item in whole.items if item.startswith("plan/")]
    assert run_seed(11, kept=plans).num_faults == 0


def test_a_failure_names_its_seed_and_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlCore, "handle", lambda core, now_ns, event: 1 // 0)
    report = run_seeds(5, 3)
    assert report.failing_seeds == (5, 6, 7)
    assert report.first_failure is not None
    assert report.first_failure.seed == 5
    assert report.first_failure.message.startswith("ZeroDivisionError")
