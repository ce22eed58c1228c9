"""Order, backfill and the promise that the head of the queue is not delayed. Times in seconds."""

from __future__ import annotations

import random

import pytest
from control_hand import Hand, S, places, starts
from hypothesis import given, settings
from hypothesis import strategies as some

from groundplane.control.core import ControlCore
from groundplane.control.events import (
    Gang,
    JobCancelRequested,
    JobSubmitted,
    NodeCordoned,
    NodeFenced,
    NodeJoined,
    NodeUncordoned,
    RestartPolicy,
    ServiceScaled,
    TimerFired,
    WorkGone,
)
from groundplane.control.queue import SHORT_ENTRIES


def test_priority_first_then_submission(hand: Hand) -> None:
    hand.submit("low", priority=-1)
    hand.submit("first")
    hand.submit("second")
    hand.submit("high", priority=5)
    assert starts(hand.node("n0", devices=3)) == ["high.a1", "first.a1", "second.a1"]


def test_a_restarted_job_keeps_its_place(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.submit("old", backoff_s=0)
    hand.submit("young")
    hand.gone("old.a1", "failed", 1)
    # Its back-off of 0 s is over only when the timer has fired: the young one runs meanwhile.
    assert hand.state("young") == "starting"
    hand.submit("youngest", at_s=2)
    hand.tell(TimerFired("old.backoff"), 2)
    assert [entry.waiting_id for entry in hand.core.queue.entries] == ["old", "youngest"]


def test_the_head_is_not_delayed_by_longer_jobs(hand: Hand) -> None:
    hand.node("n0", devices=4)
    hand.submit("running", devices=3, predicted_s=100)
    hand.submit("head", devices=4, at_s=10)
    assert hand.core.scheduler.plan() is not None
    assert hand.core.scheduler.plan().start_ns == 100 * S
    assert starts(hand.submit("too long", at_s=20, predicted_s=81)) == []
    assert starts(hand.submit("unknown", at_s=20)) == []
    assert starts(hand.submit("just right", at_s=20, predicted_s=80)) == ["just right.a1"]


def test_a_time_limit_stands_for_a_prediction(hand: Hand) -> None:
    hand.node("n0", devices=4)
    hand.submit("running", devices=3, limit_s=100)
    hand.submit("head", devices=4, at_s=10)
    assert starts(hand.submit("too long", at_s=20, limit_s=81)) == []
    assert starts(hand.submit("just right", at_s=20, limit_s=80)) == ["just right.a1"]


def test_what_the_head_will_not_need_may_be_used_for_as_long_as_one_likes(hand: Hand) -> None:
    hand.node("n0", devices=2)
    hand.node("n1", devices=1)
    hand.submit("running", devices=1, predicted_s=100)  # best fit: n1
    hand.submit("big", devices=2, predicted_s=100)
    hand.submit("head", devices=2)
    hand.gone("running.a1", "succeeded", 5)
    assert places(hand.submit("endless", at_s=6)) == [("n1", (0,))]


def test_a_plan_without_predictions_keeps_its_nodes(hand: Hand) -> None:
    """Where nothing is predicted, nobody gets onto the planned node, so the head waits for its works only."""
    hand.node("n0", devices=2)
    hand.node("n1", devices=2)
    for name in ("a", "b", "c", "d"):
        hand.submit(name)
    hand.submit("head", devices=2)
    plan = hand.core.scheduler.plan()
    assert plan is not None
    assert plan.start_ns == -1
    assert list(plan.holds) == ["n0"]
    hand.gone("a.a1", "succeeded", 1)
    assert starts(hand.submit("e", at_s=1)) == []  # the free device on n0 is held
    actions = hand.gone("c.a1", "succeeded", 2)
    assert places(actions) == [("n1", (0,))]  # e goes where the head will not
    assert starts(hand.gone("b.a1", "succeeded", 3)) == ["head.a1"]


def test_a_full_cluster_gang_under_a_flood_of_small_jobs_starts_in_bounded_time(hand: Hand) -> None:
    """The flood lies about its length. None gets in after the planned start: one generation is waited for."""
    hand.node("n0", devices=4)
    for number in range(4):
        hand.submit(f"s{number}", predicted_s=10)
    hand.submit("head", devices=4, at_s=1)
    number, ends = 4, {f"s{i}": 30.0 for i in range(4)}  # three times as long as predicted
    for at_s in range(2, 200):
        hand.submit(f"s{number}", at_s=at_s, predicted_s=1)
        number += 1
        for job_id, end_s in list(ends.items()):
            if end_s <= at_s:
                hand.gone(f"{job_id}.a1", "succeeded")
                del ends[job_id]
        for job_id, job in hand.core.state.jobs.items():
            if job.state == "starting" and job_id != "head":
                ends.setdefault(job_id, at_s + 30.0)
        if hand.state("head") == "starting":
            break
    assert at_s == 30  # when the four that ran before it are over


def test_one_that_could_never_fit_holds_nobody_up(hand: Hand) -> None:
    hand.node("n0", devices=2)
    hand.submit("hopeless", devices=4)
    assert hand.core.scheduler.plan() is None
    assert starts(hand.submit("small", devices=2)) == ["small.a1"]
    hand.submit("next", devices=2)
    assert starts(hand.gone("small.a1", "succeeded", 1)) == ["next.a1"]
    assert starts(hand.node("n1", devices=4)) == ["hopeless.a1"]


def test_replicas_are_not_expected_to_end_unless_they_are_told_to(hand: Hand) -> None:
    hand.node("n0", devices=2)
    hand.deploy("s", 2)
    hand.ready("s.r1")
    hand.ready("s.r2")
    hand.submit("j", devices=2)
    assert hand.core.scheduler.plan() is None
    hand.tell(ServiceScaled("s", 0), 5)
    assert hand.core.scheduler.plan() is not None
    assert hand.core.scheduler.plan().owner_id == "j"


def test_a_plan_is_made_anew_when_its_node_is_lost(hand: Hand) -> None:
    hand.node("n0", devices=2)
    hand.node("n1", devices=2)
    hand.submit("a", devices=2, predicted_s=10)
    hand.submit("b", devices=2, predicted_s=20)
    hand.submit("head", devices=2)
    plan = hand.core.scheduler.plan()
    assert plan is not None
    assert (list(plan.holds), plan.start_ns) == (["n0"], 10 * S)
    hand.tell(NodeFenced("n0"), 5)
    plan = hand.core.scheduler.plan()
    assert plan is not None
    assert (list(plan.holds), plan.start_ns) == (["n1"], 20 * S)


def test_cancel_of_the_head_lets_the_others_in(hand: Hand) -> None:
    hand.node("n0", devices=2)
    hand.submit("a")
    hand.submit("head", devices=2)
    hand.submit("b")
    assert starts(hand.tell(JobCancelRequested("head"), 1)) == ["b.a1"]
    assert hand.core.scheduler.plan() is None


def test_a_short_job_is_found_behind_any_number_of_long_ones(hand: Hand) -> None:
    core = ControlCore()
    core.handle(0, NodeJoined("n0", "gpu", 3, 10))
    core.handle(0, submission("a", 2, 100))
    core.handle(0, submission("head", 3, 0))
    for number in range(10 * SHORT_ENTRIES):
        core.handle(0, submission(f"long{number}", 1, 1000))
    core.handle(0, NodeCordoned("n0"))
    core.handle(0, submission("short", 1, 10))
    core.handle(1, NodeUncordoned("n0"))
    assert core.state.jobs["short"].state == "starting"


def test_of_the_short_ones_the_first_in_order_fills_the_gap() -> None:
    core = ControlCore()
    core.handle(0, NodeJoined("n0", "gpu", 3, 10))
    core.handle(0, submission("a", 2, 100))
    core.handle(0, submission("head", 3, 0))
    core.handle(0, NodeCordoned("n0"))
    for name, predicted_ns in (("long", 101), ("first", 90), ("shorter", 10)):
        core.handle(0, submission(name, 1, predicted_ns))
    core.handle(1, NodeUncordoned("n0"))
    assert [name for name in ("long", "first", "shorter") if core.state.jobs[name].state == "starting"] == [
        "first"
    ]


def test_any_number_of_entries_that_ask_for_more_than_there_is_are_stepped_over() -> None:
    core = ControlCore()
    core.handle(0, NodeJoined("n0", "gpu", 2, 10))
    core.handle(0, submission("a", 2, 0))
    core.handle(0, submission("head", 2, 0))
    for number in range(1000):
        core.handle(0, submission(f"wide{number}", 2, 0))
    core.handle(0, submission("narrow", 1, 0))
    core.handle(1, NodeJoined("n1", "gpu", 1, 10))
    assert core.state.jobs["narrow"].state == "starting"


def submission(job_id: str, devices: int, predicted_ns: int, priority: int = 0) -> JobSubmitted:
    return JobSubmitted(
        job_id, job_id, "q", priority, Gang(1, devices, 0), RestartPolicy(0, 0, 0), 0, 0, predicted_ns
    )


@settings(max_examples=60)
@given(seed=some.integers(0, 10**6))
def test_with_true_predictions_no_head_starts_after_its_plan(seed: int) -> None:
    """Random jobs that end when they said: whoever is given a start time starts by then."""
    pick = random.Random(seed)
    core, now_ns, ends = ControlCore(), 0, []
    for number in range(pick.randint(1, 3)):
        core.handle(0, NodeJoined(f"n{number}", "gpu", pick.choice([2, 4, 8]), 0))
    sizes = [node.num_devices for node in core.state.nodes.values()]
    promised: dict[str, int] = {}
    submits = sorted((pick.randrange(100), number) for number in range(25))
    while submits or ends:
        ends.sort()
        if submits and (not ends or submits[0][0] < ends[0][0]):
            now_ns, number = submits.pop(0)
            job = submission(f"j{number}", pick.randint(1, max(sizes)), pick.randint(1, 30))
            actions = core.handle(now_ns, job)
        else:
            now_ns, work_id, fence = ends.pop(0)
            actions = core.handle(now_ns, WorkGone(work_id, fence, "succeeded"))
        for work_id in starts(actions):
            work = core.state.works[work_id]
            ends.append((now_ns + core.state.jobs[work.owner_id].predicted_run_ns, work_id, work.fence))
            assert now_ns <= promised.get(work.owner_id, now_ns)
        plan = core.state.head_plan
        if plan is not None and plan.start_ns >= 0:
            promised[plan.owner_id] = min(plan.start_ns, promised.get(plan.owner_id, plan.start_ns))
    assert all(job.state == "succeeded" for job in core.state.jobs.values())


@pytest.mark.parametrize("seed", range(3))
def test_strict_order_without_predictions_on_one_node(seed: int) -> None:
    """One node, nothing predicted: all equal jobs start in the order of priority and submission."""
    pick = random.Random(seed)
    core = ControlCore()
    order = [(f"j{number}", pick.choice([0, 1, 2])) for number in range(20)]
    for job_id, priority in order:
        core.handle(0, submission(job_id, 2, 0, priority))
    begun = starts(core.handle(1, NodeJoined("n0", "gpu", 2, 0)))
    while len(begun) < 20:
        work = core.state.works[begun[-1]]
        begun += starts(core.handle(1, WorkGone(work.work_id, work.fence, "succeeded")))
    expected = [f"{job_id}.a1" for job_id, priority in sorted(order, key=lambda job: -job[1])]
    assert begun == expected
