"""Jobs that run with more or fewer ranks: start, shrink and growth. Times in seconds."""

from __future__ import annotations

import pytest
from control_hand import Hand, S, places, starts, stops

from groundplane.control.actions import AnyAction
from groundplane.control.events import (
    Gang,
    JobSubmitted,
    NodeFenced,
    NodeJoined,
    PolicySet,
    PreemptionRules,
    QueueRule,
    RestartPolicy,
    TimerFired,
)
from groundplane.spec.errors import InputError


def elastic(hand: Hand, job_id: str, *ranks: int, at_s: float | None = None) -> list[AnyAction]:
    """A job that runs with any of these numbers of ranks of two devices, the first the smallest."""
    job = JobSubmitted(
        job_id, job_id, "q", 0, Gang(ranks[0], 2, 0), RestartPolicy(3, S, S), 5 * S, larger_ranks=ranks[1:]
    )
    return hand.tell(job, at_s)


def ranks(hand: Hand, work_id: str) -> int:
    return hand.core.state.works[work_id].gang.num_ranks


def test_it_starts_as_large_as_there_is_room(hand: Hand) -> None:
    hand.node("n0", devices=4)
    hand.node("n1", devices=3)
    assert starts(elastic(hand, "e", 1, 2, 3, 8)) == ["e.a1"]
    assert ranks(hand, "e.a1") == 3


def test_it_waits_only_for_its_smallest_gang(hand: Hand) -> None:
    hand.submit("first", devices=3)
    elastic(hand, "e", 1, 2)
    hand.submit("last", devices=4)
    hand.node("n0", devices=5)
    assert ranks(hand, "e.a1") == 1


def test_it_takes_no_more_than_it_needs_while_others_wait(hand: Hand) -> None:
    elastic(hand, "e", 1, 2)
    elastic(hand, "f", 1, 2)
    hand.node("n0", devices=6)
    assert (ranks(hand, "e.a1"), ranks(hand, "f.a1")) == (1, 2)


def test_a_limit_holds_for_what_is_beyond_the_smallest(hand: Hand) -> None:
    hand.tell(PolicySet((QueueRule("q", limit_devices=5),)))
    hand.node("n0", devices=8)
    elastic(hand, "e", 1, 2, 4)
    assert ranks(hand, "e.a1") == 2


def test_after_the_loss_of_a_node_it_goes_on_smaller(hand: Hand) -> None:
    hand.node("n0", devices=4)
    hand.node("n1", devices=4)
    elastic(hand, "e", 2, 4)
    assert ranks(hand, "e.a1") == 4
    hand.started("e.a1")
    hand.checkpoint("e.a1", 5, 10)
    hand.tell(NodeFenced("n1"), 12)
    hand.gone("e.a1", "stopped", 13)
    actions = hand.tell(TimerFired("e.backoff"), 14)
    assert places(actions) == [("n0", (0, 1)), ("n0", (2, 3))]
    assert hand.core.state.jobs["e"].checkpoint_step == 5


def test_it_grows_right_after_a_checkpoint_when_nothing_waits(hand: Hand) -> None:
    hand.node("n0", devices=2)
    elastic(hand, "e", 1, 2, 4)
    hand.started("e.a1")
    hand.tell(NodeJoined("n1", "gpu", 4, 1000), 50)
    assert stops(hand.checkpoint("e.a1", 1, 60)) == []  # it has hardly begun
    assert stops(hand.checkpoint("e.a1", 2, 700)) == [("e.a1", "resized to 2 ranks")]
    assert starts(hand.gone("e.a1", "stopped", 705)) == ["e.a2"]
    assert ranks(hand, "e.a2") == 2
    job = hand.core.state.jobs["e"]
    assert (job.restarts_used, job.num_preemptions) == (0, 0)
    hand.started("e.a2")
    assert stops(hand.checkpoint("e.a2", 3, 3000)) == []  # three ranks are none of its sizes


def test_what_it_holds_beyond_its_smallest_gang_is_the_first_to_be_taken_back(hand: Hand) -> None:
    hand.tell(PolicySet((), 0, preemption=PreemptionRules(True, 0, 100 * S, 0, 0)))
    hand.node("n0", devices=4)
    elastic(hand, "e", 1, 2)
    hand.started("e.a1")
    assert ranks(hand, "e.a1") == 2
    hand.submit("other", devices=2, at_s=50, priority=-9)
    assert stops(hand.checkpoint("e.a1", 1, 60)) == [("e.a1", "preempted for other")]
    assert starts(hand.gone("e.a1", "stopped", 61)) == ["e.a2", "other.a1"]
    assert ranks(hand, "e.a2") == 1
    hand.started("e.a2")
    # What is left it needs: nobody of its own priority takes that.
    hand.submit("third", devices=2, at_s=70)
    assert stops(hand.checkpoint("e.a2", 2, 80)) == []


@pytest.mark.parametrize("larger", [(2,), (1,), (3, 3), (4, 3)])
def test_sizes_must_ascend(larger: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="larger_ranks"):
        JobSubmitted("e", "e", "q", 0, Gang(2, 1, 0), RestartPolicy(0, 0, 0), 0, larger_ranks=larger)
