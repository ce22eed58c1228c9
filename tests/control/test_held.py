"""Dependencies, groups with a limit, and deadlines. Times in seconds."""

from __future__ import annotations

import pytest
from control_hand import Hand, S, ends, starts, stops, timers

from groundplane.control.actions import AnyAction
from groundplane.control.core import ControlCore
from groundplane.control.events import (
    Gang,
    JobCancelRequested,
    JobSubmitted,
    NodeJoined,
    RestartPolicy,
    TimerFired,
    WorkGone,
)
from groundplane.spec.errors import InputError


def submit(
    hand: Hand,
    job_id: str,
    *after: str,
    group: str = "",
    limit: int = 0,
    deadline_s: int = 0,
    predicted_s: int = 0,
    at_s: float | None = None,
) -> list[AnyAction]:
    job = JobSubmitted(
        job_id, job_id, "q", 0, Gang(1, 1, 0), RestartPolicy(0, 0, 0), 5 * S, 0, predicted_s * S,
        after=after, group=group, group_limit=limit, deadline_ns=deadline_s * S,
    )  # fmt: skip
    return hand.tell(job, at_s)


def test_a_job_starts_when_all_that_it_needs_have_succeeded(hand: Hand) -> None:
    hand.node("n0", devices=4)
    submit(hand, "a")
    submit(hand, "b")
    assert starts(submit(hand, "c", "a", "b", "a")) == []
    assert hand.state("c") == "held"
    assert starts(hand.gone("a.a1", "succeeded", 1)) == []
    assert starts(hand.gone("b.a1", "succeeded", 2)) == ["c.a1"]
    assert starts(submit(hand, "d", "a")) == ["d.a1"]


def test_what_needs_a_job_that_failed_fails_with_all_that_needs_it(hand: Hand) -> None:
    hand.node("n0", devices=4)
    submit(hand, "a")
    submit(hand, "b", "a")
    submit(hand, "c", "b")
    submit(hand, "d", "c", "a")
    assert ends(hand.gone("a.a1", "failed", 1)) == [(name, "failed") for name in ("a", "b", "d", "c")]
    assert hand.core.state.jobs["b"].reason == "needs a, which has failed"
    assert ends(submit(hand, "e", "d")) == [("e", "failed")]
    assert ends(submit(hand, "f", "nobody")) == [("f", "failed")]
    assert hand.core.state.jobs["f"].reason == "needs nobody, which is not known"


def test_a_held_job_can_be_cancelled(hand: Hand) -> None:
    hand.node("n0", devices=4)
    submit(hand, "a")
    submit(hand, "b", "a")
    submit(hand, "c", "b")
    assert ends(hand.tell(JobCancelRequested("b"), 1)) == [("b", "cancelled"), ("c", "failed")]
    assert hand.core.state.jobs["c"].reason == "needs b, which has been cancelled"
    assert ends(hand.gone("a.a1", "succeeded", 2)) == [("a", "succeeded")]


def test_a_long_chain_ends_at_once(hand: Hand) -> None:
    core = ControlCore()
    gang, policy = Gang(1, 1, 0), RestartPolicy(0, 0, 0)
    core.handle(0, NodeJoined("n0", "gpu", 1, 0))
    core.handle(0, JobSubmitted("j0", "j", "q", 0, gang, policy, 0))
    for number in range(1, 3000):
        core.handle(0, JobSubmitted(f"j{number}", "j", "q", 0, gang, policy, 0, after=(f"j{number - 1}",)))
    fence = core.state.works["j0.a1"].fence
    assert len(ends(core.handle(1, WorkGone("j0.a1", fence, "failed")))) == 3000


def test_of_a_group_only_so_many_run_at_once(hand: Hand) -> None:
    hand.node("n0", devices=8)
    for number in range(5):
        submit(hand, f"t{number}", group="sweep", limit=2)
    submit(hand, "other")
    running = [name for name in hand.core.state.jobs if hand.state(name) == "starting"]
    assert running == ["t0", "t1", "other"]
    assert starts(hand.gone("t1.a1", "failed", 1)) == ["t2.a1"]
    hand.tell(JobCancelRequested("t3"), 2)
    assert starts(hand.gone("t0.a1", "succeeded", 3)) == ["t4.a1"]


def test_a_group_and_what_a_job_needs_go_together(hand: Hand) -> None:
    hand.node("n0", devices=8)
    submit(hand, "a")
    submit(hand, "t0", "a", group="g", limit=1)
    submit(hand, "t1", group="g", limit=1)
    assert hand.state("t1") == "starting"
    assert starts(hand.gone("a.a1", "succeeded", 1)) == []
    assert starts(hand.gone("t1.a1", "succeeded", 2)) == ["t0.a1"]


def test_near_its_deadline_a_job_goes_first_and_at_it_it_is_stopped(hand: Hand) -> None:
    hand.node("n0", devices=1)
    submit(hand, "running")
    submit(hand, "older")
    told = timers(submit(hand, "due", deadline_s=100, predicted_s=20))
    assert told == {"due.deadline": 100, "due.urgent": 60}
    hand.tell(TimerFired("due.urgent"), 60)
    assert starts(hand.gone("running.a1", "succeeded", 70)) == ["due.a1"]
    hand.started("due.a1")
    assert stops(hand.tell(TimerFired("due.deadline"), 100)) == [("due.a1", "deadline reached")]
    assert ends(hand.gone("due.a1", "stopped", 101)) == [("due", "failed")]
    assert not hand.core.state.timers


def test_a_job_that_never_started_fails_at_its_deadline(hand: Hand) -> None:
    submit(hand, "a", deadline_s=10)
    submit(hand, "b", "a", deadline_s=10)
    assert ends(hand.tell(TimerFired("b.deadline"), 10)) == [("b", "failed")]
    assert ends(hand.tell(TimerFired("a.deadline"), 10)) == [("a", "failed")]
    assert hand.core.state.jobs["a"].reason == "deadline reached"


def test_a_job_cannot_need_itself() -> None:
    with pytest.raises(InputError, match="after"):
        JobSubmitted("a", "a", "q", 0, Gang(1, 1, 0), RestartPolicy(0, 0, 0), 0, after=("a",))
