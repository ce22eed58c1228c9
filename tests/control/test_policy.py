"""Queues: order by shares, guarantees, limits and the past, with numbers made by hand. Times in seconds."""

from __future__ import annotations

import pytest
from control_hand import Hand, S, starts

from groundplane.control.actions import AnyAction
from groundplane.control.events import Gang, JobSubmitted, NodeSilent, PolicySet, QueueRule, RestartPolicy
from groundplane.control.shares import SHARE_ONE
from groundplane.control.views import explain_job
from groundplane.spec.errors import InputError


def rules(hand: Hand, *queues: QueueRule, half_life_s: int = 0) -> list[AnyAction]:
    return hand.tell(PolicySet(queues, half_life_s * S))


def submit(
    hand: Hand,
    job_id: str,
    queue: str,
    devices: int = 1,
    *,
    at_s: float | None = None,
    memory: int = 0,
    priority: int = 0,
) -> list[AnyAction]:
    gang = Gang(1, devices, memory)
    job = JobSubmitted(job_id, job_id, queue, priority, gang, RestartPolicy(0, 0, 0), 0)
    return hand.tell(job, at_s)


def fill(hand: Hand, queue: str, num: int) -> None:
    for number in range(num):
        submit(hand, f"{queue}{number}", queue)


def test_without_a_policy_there_is_one_order_over_all_queues(hand: Hand) -> None:
    submit(hand, "x", "a")
    submit(hand, "y", "b")
    submit(hand, "z", "a", priority=1)
    assert starts(hand.node("n0", devices=3)) == ["z.a1", "x.a1", "y.a1"]


def test_equal_queues_take_turns(hand: Hand) -> None:
    rules(hand, QueueRule("a"), QueueRule("b"))
    fill(hand, "a", 4)
    fill(hand, "b", 4)
    assert starts(hand.node("n0", devices=5)) == ["a0.a1", "b0.a1", "a1.a1", "b1.a1", "a2.a1"]


def test_weights_divide_the_cluster(hand: Hand) -> None:
    rules(hand, QueueRule("a", weight=3), QueueRule("b"))
    fill(hand, "a", 8)
    fill(hand, "b", 8)
    started = starts(hand.node("n0", devices=8))
    assert [sum(work.startswith(queue) for work in started) for queue in "ab"] == [6, 2]


def test_a_guarantee_is_served_before_shares(hand: Hand) -> None:
    rules(hand, QueueRule("a"), QueueRule("b", guaranteed_devices=2))
    fill(hand, "a", 3)
    fill(hand, "b", 3)
    assert starts(hand.node("n0", devices=4)) == ["b0.a1", "b1.a1", "a0.a1", "a1.a1"]


def test_shares_are_those_of_the_family_first(hand: Hand) -> None:
    """Two queues under one parent get together what the other queue of the root gets."""
    rules(hand, QueueRule("team"), QueueRule("a", "team"), QueueRule("b", "team"), QueueRule("c"))
    for queue in "abc":
        fill(hand, queue, 8)
    started = starts(hand.node("n0", devices=8))
    assert [sum(work.startswith(queue) for work in started) for queue in "abc"] == [2, 2, 4]


def test_the_dominant_resource_counts(hand: Hand) -> None:
    """Of 8 devices and 80 bytes a takes (1, 30), b (2, 1): shares 3/8 and 1/4 for each job."""
    rules(hand, QueueRule("a"), QueueRule("b"))
    for number in range(3):
        submit(hand, f"a{number}", "a", 1, memory=30)
        submit(hand, f"b{number}", "b", 2, memory=1)
    assert starts(hand.node("n0", devices=8, memory=80)) == ["a0.a1", "b0.a1", "b1.a1", "a1.a1", "b2.a1"]


def test_a_limit_is_never_passed_and_holds_nobody_else_up(hand: Hand) -> None:
    rules(hand, QueueRule("a", limit_devices=2), QueueRule("b"))
    fill(hand, "a", 4)
    hand.node("n0", devices=4)
    assert starts(submit(hand, "b0", "b")) == ["b0.a1"]
    told = explain_job(hand.core, "a2", 0)
    assert told is not None
    assert told.reason == "needs 1 x 1 devices; queue a holds 2 devices of at most 2"
    assert starts(hand.gone("a0.a1", "succeeded", 1)) == ["a2.a1"]
    assert starts(rules(hand, QueueRule("a"), QueueRule("b"))) == ["a3.a1"]


def test_a_limit_counts_all_that_is_below(hand: Hand) -> None:
    rules(hand, QueueRule("team", limit_devices=3), QueueRule("a", "team"), QueueRule("b", "team"))
    hand.node("n0", devices=8)
    fill(hand, "a", 2)
    fill(hand, "b", 2)
    submit(hand, "other", "c", 5)
    assert hand.core.state.usage["team"].num_devices == 3
    assert [hand.state(job) for job in ("a0", "a1", "b0", "b1")] == ["starting"] * 3 + ["queued"]
    assert hand.state("other") == "starting"


def test_a_gang_beyond_the_limit_keeps_its_queue_waiting_only(hand: Hand) -> None:
    rules(hand, QueueRule("a", limit_devices=2), QueueRule("b"))
    submit(hand, "large", "a", 3)
    submit(hand, "small", "a", 1)
    submit(hand, "other", "b", 4)
    assert starts(hand.node("n0", devices=4)) == ["other.a1"]
    assert not hand.core.state.head_id


def test_the_past_counts_and_is_forgotten(hand: Hand) -> None:
    rules(hand, QueueRule("a"), QueueRule("b"), half_life_s=100)
    hand.node("n0", devices=4)
    submit(hand, "a0", "a", 4)
    submit(hand, "a1", "a", 4, at_s=1)
    submit(hand, "b1", "b", 4, at_s=1)
    assert starts(hand.gone("a0.a1", "succeeded", 100)) == ["b1.a1"]
    # One half-life of the whole cluster: the average is one half.
    assert hand.core.state.usage["a"].average == pytest.approx(SHARE_ONE // 2, rel=1e-6)
    hand.gone("b1.a1", "succeeded", 200)
    submit(hand, "b2", "b", 4)
    assert hand.state("a1") == "starting"
    assert hand.core.state.usage["a"].average == pytest.approx(SHARE_ONE // 4, rel=1e-6)


def test_how_often_a_share_is_settled_does_not_change_it() -> None:
    averages = []
    for period_s in (1, 50):
        hand = Hand()
        rules(hand, QueueRule("a"), half_life_s=1024)
        hand.node("n0", devices=2)
        submit(hand, "x", "a")
        for at_s in range(period_s, 1001, period_s):
            hand.core.handle(at_s * S, NodeSilent("nobody"))
            hand.core.shares.weighted_share("a")
        averages.append(hand.core.state.usage["a"].average)
    assert averages[0] == pytest.approx(averages[1], rel=1e-5)


def test_a_full_cluster_gang_of_one_queue_is_not_starved_by_a_flood_of_the_other(hand: Hand) -> None:
    """It waits for the four that ran when it came to be the first, and for nothing that came later."""
    rules(hand, QueueRule("a"), QueueRule("b"), half_life_s=1000)
    hand.node("n0", devices=4)
    fill(hand, "b", 4)
    submit(hand, "gang", "a", 4, at_s=10)
    for at_s in range(11, 50):
        assert starts(submit(hand, f"flood{at_s}", "b", at_s=at_s)) == []
        if at_s % 10 == 0:
            assert starts(hand.gone(f"b{at_s // 10 - 1}.a1", "succeeded")) == []
    assert starts(hand.gone("b0.a1", "succeeded", 50)) == ["gang.a1"]


@pytest.mark.parametrize(
    ("queues", "text"),
    [
        ((QueueRule("a"), QueueRule("a")), "must be named, and once"),
        ((QueueRule("a", "nobody"),), "must be a queue of the policy"),
        ((QueueRule("a", "b"), QueueRule("b", "a")), "must be a queue of the policy, not below this one"),
    ],
)
def test_policies_that_are_none(queues: tuple[QueueRule, ...], text: str) -> None:
    with pytest.raises(InputError, match=text):
        PolicySet(queues)
