"""One job from submission to its one end, with what can come between. Times by hand, in seconds."""

from __future__ import annotations

import pytest
from control_hand import Hand, S, ends, places, starts, stops, timers

from groundplane.control import jobs
from groundplane.control.actions import StartWork
from groundplane.control.events import (
    JobCancelRequested,
    NodeFenced,
    NodeSilent,
    RestartPolicy,
    TimerFired,
    WorkGone,
    WorkReady,
    WorkStarted,
)
from groundplane.control.jobs import backoff_ns


def test_a_job_runs_and_ends(hand: Hand) -> None:
    hand.node("n0")
    actions = hand.submit("j", ranks=2, devices=2)
    assert actions == [StartWork("j.a1", "attempt", "j", 1, actions[0].placement)]
    assert places(actions) == [("n0", (0, 1)), ("n0", (2, 3))]
    assert hand.state("j") == "starting"
    assert hand.started("j.a1", 1) == []
    assert hand.state("j") == "running"
    assert ends(hand.gone("j.a1", "succeeded", 5)) == [("j", "succeeded")]
    assert hand.state("j") == "succeeded"
    assert hand.core.state.works == {}
    assert hand.core.pending_actions() == []


def test_a_failed_attempt_restarts_whole_after_its_back_off(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j", ranks=4, budget=2)
    hand.started("j.a1", 1)
    assert timers(hand.gone("j.a1", "failed", 10)) == {"j.backoff": 11.0}
    assert hand.state("j") == "backing_off"
    assert starts(hand.tell(TimerFired("j.backoff"), 11)) == ["j.a2"]
    assert timers(hand.gone("j.a2", "failed", 12)) == {"j.backoff": 14.0}  # second in a row: 2 s
    assert starts(hand.tell(TimerFired("j.backoff"), 14)) == ["j.a3"]
    assert ends(hand.gone("j.a3", "failed", 20)) == [("j", "failed")]
    assert hand.core.state.jobs["j"].reason == "failed after 2 restarts: failed"


def test_a_checkpoint_resets_the_count_in_a_row_and_not_the_budget(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j", budget=2)
    hand.gone("j.a1", "failed", 1)
    hand.tell(TimerFired("j.backoff"), 2)
    hand.started("j.a2", 3)
    hand.checkpoint("j.a2", 10, 4)
    assert timers(hand.gone("j.a2", "failed", 5)) == {"j.backoff": 6.0}  # 1 s again
    hand.tell(TimerFired("j.backoff"), 6)
    assert ends(hand.gone("j.a3", "failed", 7)) == [("j", "failed")]


@pytest.mark.parametrize(
    ("in_row", "wait"), [(1, 3), (2, 6), (3, 12), (4, 20), (100, 20)], ids=lambda value: str(value)
)
def test_back_off_doubles_up_to_its_limit(in_row: int, wait: int) -> None:
    assert backoff_ns(RestartPolicy(5, 3, 20), in_row) == wait


def test_cancel_while_queued_and_backing_off_is_immediate(hand: Hand) -> None:
    hand.submit("queued")
    assert ends(hand.tell(JobCancelRequested("queued"))) == [("queued", "cancelled")]
    hand.node("n0")
    hand.submit("j")
    hand.gone("j.a1", "failed", 1)
    assert ends(hand.tell(JobCancelRequested("j"), 1)) == [("j", "cancelled")]
    assert hand.tell(TimerFired("j.backoff"), 9) == []
    assert hand.core.state.timers == {}


def test_cancel_while_running_waits_for_proof(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.submit("j")
    hand.submit("next")
    assert stops(hand.tell(JobCancelRequested("j"), 3)) == [("j.a1", "cancelled on request")]
    assert hand.state("j") == "stopping"
    assert hand.tell(JobCancelRequested("j"), 4) == []  # once is enough
    assert hand.core.pending_actions()[0].reason == "cancelled on request"  # type: ignore[union-attr]
    actions = hand.gone("j.a1", "stopped", 5)
    assert ends(actions) == [("j", "cancelled")]
    assert starts(actions) == ["next.a1"]


def test_a_job_that_succeeds_before_it_can_be_stopped_has_succeeded(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j")
    hand.tell(JobCancelRequested("j"), 1)
    assert ends(hand.gone("j.a1", "succeeded", 2)) == [("j", "succeeded")]


def test_time_limit_counts_from_the_first_start(hand: Hand) -> None:
    hand.submit("j", limit_s=10)
    assert timers(hand.node("n0", at_s=5)) == {"j.limit": 15.0}
    hand.gone("j.a1", "failed", 6)
    assert timers(hand.tell(TimerFired("j.backoff"), 7)) == {}
    assert stops(hand.tell(TimerFired("j.limit"), 15)) == [("j.a2", "time limit reached")]
    assert ends(hand.gone("j.a2", "failed", 16)) == [("j", "failed")]
    assert hand.core.state.jobs["j"].reason == "time limit reached"


def test_time_limit_while_backing_off(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j", limit_s=10, backoff_s=8)
    hand.gone("j.a1", "failed", 6)
    assert ends(hand.tell(TimerFired("j.limit"), 10)) == [("j", "failed")]


def test_silence_takes_nothing(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j")
    hand.started("j.a1")
    assert hand.tell(NodeSilent("n0"), 3600) == []
    assert hand.state("j") == "running"
    assert ends(hand.gone("j.a1", "succeeded", 3601)) == [("j", "succeeded")]


def test_a_gang_that_lost_a_node_ends_and_proves_it_before_it_restarts(hand: Hand) -> None:
    hand.node("n0", devices=2)
    hand.node("n1", devices=2)
    hand.submit("j", ranks=4)
    hand.started("j.a1", 1)
    actions = hand.tell(NodeFenced("n1"), 2)
    assert stops(actions) == [("j.a1", "node n1 was lost")]
    assert hand.core.state.nodes["n1"].leases == {}
    assert hand.core.state.nodes["n0"].leases == {"j.a1": (0, 1)}
    hand.node("n1", devices=2, boot=2, at_s=3)
    assert timers(hand.gone("j.a1", "stopped", 4)) == {"j.backoff": 5.0}
    actions = hand.tell(TimerFired("j.backoff"), 5)
    assert starts(actions) == ["j.a2"]
    assert actions[0].fence == 2  # type: ignore[union-attr]


def test_a_gang_whose_every_node_is_fenced_is_gone_at_once(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j")
    actions = hand.tell(NodeFenced("n0"), 2)
    assert stops(actions) == []
    assert timers(actions) == {"j.backoff": 3.0}
    assert hand.core.state.jobs["j"].reason == "node n0 was lost"


def test_success_is_believed_though_it_comes_late(hand: Hand) -> None:
    """The node died right after the job had ended there, and its last report was found on its disk."""
    hand.node("n0")
    hand.submit("j")
    hand.tell(NodeFenced("n0"), 2)
    assert ends(hand.tell(WorkGone("j.a1", 1, "succeeded"), 2.5)) == [("j", "succeeded")]
    assert hand.tell(TimerFired("j.backoff"), 3) == []


def test_success_that_comes_after_the_restart_stops_it(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j")
    hand.tell(NodeFenced("n0"), 2)
    hand.node("n0", boot=2)
    assert starts(hand.tell(TimerFired("j.backoff"), 3)) == ["j.a2"]
    actions = hand.tell(WorkGone("j.a1", 1, "succeeded"), 4)
    assert stops(actions) == [("j.a2", "an earlier attempt had succeeded")]
    assert ends(hand.gone("j.a2", "stopped", 5)) == [("j", "succeeded")]


def test_reports_late_twice_or_of_another_fence_change_nothing(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j")
    for stale in (
        WorkGone("j.a1", 0, "failed"),
        WorkGone("j.a1", 2, "failed"),
        WorkGone("j.a9", 1, "failed"),
        WorkGone("x.a1", 1, "succeeded"),
        WorkStarted("j.a1", 7),
        TimerFired("nobody"),
        NodeSilent("nowhere"),
        JobCancelRequested("nobody"),
    ):
        assert hand.tell(stale) == []
    assert hand.state("j") == "starting"
    hand.started("j.a1")
    assert hand.started("j.a1") == []
    hand.gone("j.a1", "succeeded")
    assert hand.tell(WorkGone("j.a1", 1, "failed")) == []
    assert hand.tell(WorkReady("j.a1", 1)) == []
    assert hand.submit("j") == []
    assert sum(hand.core.state.ignored.values()) == 12


def test_a_checkpoint_implies_the_start_whose_report_was_lost(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.submit("j")
    hand.checkpoint("j.a1", 3, 2)
    assert hand.state("j") == "running"
    assert hand.accounts("n0") == {"allocated_idle": 2.0}


def test_an_early_timer_waits_for_its_time(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j")
    hand.gone("j.a1", "failed", 1)
    assert hand.tell(TimerFired("j.backoff"), 1.5) == []
    assert starts(hand.tell(TimerFired("j.backoff"), 2)) == ["j.a2"]
    assert hand.core.state.now_ns == 2 * S


def test_a_stop_that_nobody_asked_for_costs_neither_budget_nor_wait(hand: Hand) -> None:
    """The operator took the platform down: that is no failure of the job."""
    hand.node("n0", devices=1)
    hand.submit("j", budget=0)
    hand.started("j.a1", 1)
    actions = hand.gone("j.a1", "stopped", 5)
    assert starts(actions) == ["j.a2"]
    assert timers(actions) == {}
    job = hand.core.state.jobs["j"]
    assert (job.state, job.restarts_used, job.restarts_in_row) == ("starting", 0, 0)
    assert hand.accounts("n0") == {"allocated_idle": 1.0, "wasted_by_failure": 4.0}
    assert ends(hand.gone("j.a2", "failed", 6)) == [("j", "failed")]


def test_the_oldest_ended_jobs_are_forgotten(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ENDED_JOBS_KEPT", 2)
    hand.node("n0", devices=1)
    for number in range(4):
        hand.submit(f"j{number}")
        hand.gone(f"j{number}.a1", "succeeded")
    hand.submit("j4")
    assert list(hand.core.state.jobs) == ["j2", "j3", "j4"]
    assert hand.core.state.num_ended == {"succeeded": 4}
    late = hand.core.state.ignored.get("report on a work that is gone", 0)
    hand.tell(WorkGone("j0.a1", 1, "succeeded"))
    assert hand.core.state.ignored["report on a work that is gone"] == late + 1
