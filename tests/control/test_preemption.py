"""Preemption and reclaim: who goes, when, and that it always places whom it is for. Times in seconds."""

from __future__ import annotations

from control_hand import Hand, S, ends, starts, stops

from groundplane.control.actions import AnyAction
from groundplane.control.events import (
    Gang,
    JobCancelRequested,
    JobSubmitted,
    PolicySet,
    PreemptionRules,
    QueueRule,
    RestartPolicy,
    ServiceScaled,
    TimerFired,
)
from groundplane.control.preemption import RETRY_NS


def policy(
    hand: Hand, *queues: QueueRule, wait_s: int = 100, min_run_s: int = 0, times: int = 5, gap: int = 1
) -> None:
    rules = PreemptionRules(True, gap, wait_s * S, min_run_s * S, times)
    hand.tell(PolicySet(queues, 0, preemption=rules))


def submit(
    hand: Hand,
    job_id: str,
    queue: str = "q",
    *,
    ranks: int = 1,
    devices: int = 1,
    priority: int = 0,
    at_s: float | None = None,
    predicted_s: int = 0,
    preemptible: bool = True,
) -> list[AnyAction]:
    job = JobSubmitted(
        job_id, job_id, queue, priority, Gang(ranks, devices, 0), RestartPolicy(0, 0, 0), 5 * S, 0,
        predicted_s * S, preemptible,
    )  # fmt: skip
    return hand.tell(job, at_s)


def run(hand: Hand, job_id: str, queue: str = "q", *, at_s: float | None = None, **more: int) -> None:
    """A job that runs at once."""
    assert starts(submit(hand, job_id, queue, at_s=at_s, **more)) == [f"{job_id}.a1"]  # type: ignore[arg-type]
    hand.started(f"{job_id}.a1")


def test_without_rules_nothing_is_ever_stopped(hand: Hand) -> None:
    hand.node("n0", devices=1)
    run(hand, "low")
    assert stops(submit(hand, "high", priority=100)) == []


def test_the_victim_is_the_one_that_loses_least_since_its_checkpoint(hand: Hand) -> None:
    policy(hand)
    hand.node("n0", devices=3)
    for name in ("a", "b", "c"):
        run(hand, name)
    for name, at_s in (("c", 10), ("b", 20), ("a", 30)):
        hand.checkpoint(f"{name}.a1", 1, at_s)
    assert stops(submit(hand, "high", priority=1, at_s=40)) == []
    assert hand.core.state.yielding == {"a.a1": "high"}  # it lost 10 s by then, the others 20 and 30


def test_a_victim_stops_right_after_its_next_checkpoint(hand: Hand) -> None:
    policy(hand, wait_s=100)
    hand.node("n0", devices=1)
    run(hand, "low")
    submit(hand, "high", priority=1, at_s=10)
    assert stops(hand.checkpoint("low.a1", 7, 60)) == [("low.a1", "preempted for high")]
    assert starts(hand.gone("low.a1", "stopped", 62)) == ["high.a1"]
    assert hand.state("low") == "queued"
    job = hand.core.state.jobs["low"]
    assert (job.num_preemptions, job.restarts_used, job.checkpoint_step) == (1, 0, 7)
    # 60 s were saved, nothing was lost; 2 s passed from the order to stop until it was gone.
    assert hand.accounts("n0") == {"busy": 60, "allocated_idle": 2}
    hand.gone("high.a1", "succeeded", 70)
    assert hand.state("low") == "starting"
    assert hand.core.state.jobs["low"].work_id == "low.a2"


def test_a_victim_that_makes_no_checkpoint_stops_when_its_wait_is_over(hand: Hand) -> None:
    policy(hand, wait_s=100)
    hand.node("n0", devices=1)
    run(hand, "low")
    submit(hand, "high", priority=1, at_s=10)
    assert stops(hand.tell(TimerFired("low.a1.yield"), 109)) == []
    assert stops(hand.tell(TimerFired("low.a1.yield"), 110)) == [("low.a1", "preempted for high")]
    # It saves its state in the grace that it gets: nothing is lost.
    hand.checkpoint("low.a1", 3, 112)
    hand.gone("low.a1", "stopped", 113)
    assert "wasted_by_failure" not in hand.accounts("n0")


def test_one_that_has_nothing_to_lose_stops_at_once(hand: Hand) -> None:
    policy(hand)
    hand.node("n0", devices=1)
    submit(hand, "low")
    assert stops(submit(hand, "high", priority=1, at_s=10)) == [("low.a1", "preempted for high")]


def test_eight_scattered_devices_are_not_taken_for_a_gang_that_needs_a_node(hand: Hand) -> None:
    """Each node has a service or a job that may not be preempted: no victim would make room, so none goes."""
    policy(hand)
    for number in range(8):
        hand.node(f"n{number}", devices=2)
        submit(hand, f"fixed{number}", preemptible=False)
        run(hand, f"low{number}")
    assert stops(submit(hand, "whole", devices=2, priority=9, at_s=500)) == []
    assert hand.core.state.yielding == {}
    assert hand.core.state.refused_id == "whole"


def test_victims_are_on_the_node_that_they_make_free(hand: Hand) -> None:
    policy(hand, wait_s=0)
    hand.node("n0", devices=2)
    hand.node("n1", devices=2)
    run(hand, "a0", at_s=0)
    run(hand, "a1", at_s=1)
    run(hand, "b0", at_s=2)
    run(hand, "b1", at_s=3)
    assert [work for work, _ in stops(submit(hand, "high", devices=2, priority=1, at_s=10))] == [
        "b1.a1",
        "b0.a1",
    ]


def test_lower_priorities_go_first_and_only_as_many_as_are_needed(hand: Hand) -> None:
    policy(hand, wait_s=0)
    hand.node("n0", devices=4)
    run(hand, "low", at_s=0, priority=1)
    run(hand, "wide", at_s=0, devices=2, priority=1)
    run(hand, "mid", at_s=9, priority=5)
    assert [work for work, _ in stops(submit(hand, "high", priority=9, at_s=10))] == ["low.a1"]


def test_no_priority_takes_from_its_like(hand: Hand) -> None:
    policy(hand, wait_s=0, gap=10)
    hand.node("n0", devices=1)
    run(hand, "low")
    assert stops(submit(hand, "high", priority=9, at_s=10)) == []
    assert stops(submit(hand, "higher", priority=10, at_s=10)) == [("low.a1", "preempted for higher")]


def test_a_guarantee_takes_back_what_was_borrowed_and_no_more(hand: Hand) -> None:
    policy(hand, QueueRule("a", guaranteed_devices=2), QueueRule("b", guaranteed_devices=2), wait_s=0)
    hand.node("n0", devices=4)
    for number in range(4):
        run(hand, f"b{number}", "b", at_s=number)
    assert stops(submit(hand, "a0", "a", at_s=10)) == [("b3.a1", "preempted for a0")]
    assert starts(hand.gone("b3.a1", "stopped", 11)) == ["a0.a1"]
    hand.started("a0.a1")
    assert stops(submit(hand, "a1", "a", at_s=12)) == [("b2.a1", "preempted for a1")]
    assert starts(hand.gone("b2.a1", "stopped", 13)) == ["a1.a1"]
    hand.started("a1.a1")
    # Both have what they are guaranteed: neither takes from the other, whoever waits.
    assert stops(submit(hand, "a2", "a", at_s=14)) == []
    assert stops(hand.tell(TimerFired("preemption"), 14 + RETRY_NS // S)) == []


def test_a_gang_that_would_leave_its_guarantee_reclaims_nothing(hand: Hand) -> None:
    policy(hand, QueueRule("a", guaranteed_devices=2), QueueRule("b"), wait_s=0)
    hand.node("n0", devices=4)
    run(hand, "b0", "b", devices=4)
    assert stops(submit(hand, "a0", "a", devices=3, at_s=10)) == []


def test_reclaim_in_a_tree_takes_from_those_who_borrowed(hand: Hand) -> None:
    """Of the other team only the queue that is over its own guarantee gives something back."""
    policy(
        hand,
        QueueRule("left", guaranteed_devices=2),
        QueueRule("l", "left"),
        QueueRule("right", guaranteed_devices=2),
        QueueRule("kept", "right", guaranteed_devices=2),
        QueueRule("loose", "right"),
        wait_s=0,
    )
    hand.node("n0", devices=4)
    run(hand, "loose0", "loose", at_s=0)
    run(hand, "loose1", "loose", at_s=1)
    run(hand, "kept0", "kept", at_s=2)
    run(hand, "kept1", "kept", at_s=3)
    assert stops(submit(hand, "l0", "l", devices=2, at_s=10)) == [
        ("loose1.a1", "preempted for l0"),
        ("loose0.a1", "preempted for l0"),
    ]


def test_a_head_whose_devices_come_soon_anyway_takes_nobodys(hand: Hand) -> None:
    policy(hand, wait_s=100)
    hand.node("n0", devices=1)
    run(hand, "low", predicted_s=150)
    submit(hand, "high", priority=1, at_s=50)
    assert hand.core.state.yielding == {}


def test_the_shortest_run_and_the_number_of_times_are_kept(hand: Hand) -> None:
    policy(hand, wait_s=0, min_run_s=60, times=1)
    hand.node("n0", devices=1)
    run(hand, "low")
    assert stops(submit(hand, "high", priority=1, at_s=40)) == []
    assert stops(hand.tell(TimerFired("preemption"), 70)) == [("low.a1", "preempted for high")]
    hand.gone("low.a1", "stopped", 71)
    hand.gone("high.a1", "succeeded", 72)
    hand.started("low.a2")
    assert stops(submit(hand, "again", priority=1, at_s=500)) == []


def test_those_who_still_wait_are_spared_when_the_head_starts_elsewhere(hand: Hand) -> None:
    policy(hand, wait_s=100)
    hand.node("n0", devices=1)
    run(hand, "low")
    submit(hand, "high", priority=1, at_s=10)
    assert list(hand.core.state.yielding) == ["low.a1"]
    assert starts(hand.node("n1", devices=1, at_s=20)) == ["high.a1"]
    assert hand.core.state.yielding == {}
    assert not hand.core.state.timers
    assert stops(hand.checkpoint("low.a1", 1, 30)) == []


def test_nobody_gets_in_beside_the_head_onto_what_its_victims_free(hand: Hand) -> None:
    policy(hand, wait_s=0)
    hand.node("n0", devices=2)
    run(hand, "low0", at_s=0)
    run(hand, "low1", at_s=1)
    submit(hand, "high", devices=2, priority=1, at_s=10)
    assert starts(submit(hand, "small", at_s=11, predicted_s=1)) == []
    assert starts(hand.gone("low1.a1", "stopped", 12)) == []
    assert starts(hand.gone("low0.a1", "stopped", 13)) == ["high.a1"]


def test_a_preempted_job_can_be_cancelled_or_turn_out_to_have_ended(hand: Hand) -> None:
    policy(hand, wait_s=0)
    hand.node("n0", devices=2)
    run(hand, "a")
    run(hand, "b")
    submit(hand, "high", devices=2, priority=1, at_s=10)
    hand.tell(JobCancelRequested("a"), 11)
    assert ends(hand.gone("a.a1", "stopped", 12)) == [("a", "cancelled")]
    assert ends(hand.gone("b.a1", "succeeded", 12)) == [("b", "succeeded")]
    assert hand.state("high") == "starting"


def test_a_higher_priority_is_the_head_whatever_the_shares(hand: Hand) -> None:
    policy(hand, QueueRule("a"), QueueRule("b"), wait_s=0)
    hand.node("n0", devices=2)
    run(hand, "a0", "a", devices=2, at_s=0)
    submit(hand, "b0", "b", devices=2, at_s=10)
    assert hand.core.state.head_id == "b0"
    assert stops(submit(hand, "urgent", "a", devices=2, priority=5, at_s=11)) == [
        ("a0.a1", "preempted for urgent")
    ]
    assert starts(hand.gone("a0.a1", "stopped", 12)) == ["urgent.a1"]


def test_a_burst_of_replicas_takes_all_its_devices_together(hand: Hand) -> None:
    policy(hand, wait_s=300, gap=50)
    hand.node("n0", devices=4)
    hand.deploy("chat", 1, priority=100)
    hand.ready("chat.r1")
    for name in ("a", "b", "c"):
        run(hand, name)
    hand.tell(ServiceScaled("chat", 3), 110)
    assert list(hand.core.state.yielding) == ["a.a1", "b.a1"]
    assert [work for work, _ in stops(hand.checkpoint("b.a1", 1, 120))] == ["b.a1"]
    assert starts(hand.gone("b.a1", "stopped", 125)) == ["chat.r2"]
    # The plan goes on to the next replica, and a still makes room.
    assert hand.core.state.head_id == "chat.r3"
    assert list(hand.core.state.yielding) == ["a.a1"]
    assert stops(hand.checkpoint("a.a1", 1, 140)) == [("a.a1", "preempted for chat.r3")]
    assert starts(hand.gone("a.a1", "stopped", 145)) == ["chat.r3"]
    hand.started("chat.r2")
    assert hand.state("c") == "running"
    assert hand.core.state.yielding == {}


def test_a_service_takes_devices_at_a_checkpoint_and_gives_them_back(hand: Hand) -> None:
    """Training and serving in one pool: the load rises, falls, and the training goes on where it was."""
    policy(hand, wait_s=300, gap=50)
    hand.node("n0", devices=4)
    hand.deploy("chat", 1, priority=100)
    hand.ready("chat.r1")
    run(hand, "train", devices=2)
    run(hand, "other")
    hand.checkpoint("other.a1", 1, 90)
    hand.checkpoint("train.a1", 10, 100)
    # The service is about to miss its target: one more replica is wanted.
    hand.tell(ServiceScaled("chat", 2), 110)
    assert hand.core.state.yielding == {"train.a1": "chat.r2"}
    assert stops(hand.checkpoint("train.a1", 11, 130)) == [("train.a1", "preempted for chat.r2")]
    assert starts(hand.gone("train.a1", "stopped", 135)) == ["chat.r2"]
    hand.ready("chat.r2", 140)
    assert hand.state("train") == "queued"
    hand.tell(ServiceScaled("chat", 1), 500)
    assert starts(hand.gone("chat.r2", "stopped", 510)) == ["train.a2"]
    job = hand.core.state.jobs["train"]
    assert (job.checkpoint_step, job.restarts_used) == (11, 0)
