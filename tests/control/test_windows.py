"""Maintenance windows and reservations, with numbers made by hand. Times in seconds."""

from __future__ import annotations

import pytest
from control_hand import Hand, S, places, starts, stops, timers

from groundplane.control.actions import AnyAction
from groundplane.control.events import (
    Gang,
    JobSubmitted,
    NodeCordoned,
    PolicySet,
    QueueRule,
    RestartPolicy,
    TimerFired,
    WindowRemoved,
    WindowSet,
)
from groundplane.spec.errors import InputError


def submit(
    hand: Hand,
    job_id: str,
    queue: str = "q",
    *,
    devices: int = 1,
    at_s: float | None = None,
    predicted_s: int = 0,
) -> list[AnyAction]:
    gang = Gang(1, devices, 0)
    job = JobSubmitted(job_id, job_id, queue, 0, gang, RestartPolicy(0, 0, 0), 5 * S, 0, predicted_s * S)
    return hand.tell(job, at_s)


def window(hand: Hand, begin_s: int, end_s: int, *nodes: str, queue: str = "") -> list[AnyAction]:
    return hand.tell(WindowSet("w", nodes, begin_s * S, end_s * S, queue))


def test_before_a_window_only_what_ends_in_time_is_placed(hand: Hand) -> None:
    hand.node("n0", devices=4)
    assert timers(window(hand, 100, 200, "n0")) == {"window.w.begin": 100, "window.w.end": 200}
    assert starts(submit(hand, "unknown")) == []
    assert starts(submit(hand, "long", predicted_s=91, at_s=10)) == []
    assert starts(submit(hand, "short", predicted_s=90)) == ["short.a1"]
    hand.node("n1", devices=2, at_s=20)
    assert hand.state("unknown") == hand.state("long") == "starting"


def test_the_plan_of_the_head_counts_on_the_nodes_again_after_the_window(hand: Hand) -> None:
    hand.node("n0", devices=2)
    hand.node("n1", devices=2)
    submit(hand, "running", devices=2, predicted_s=50)
    window(hand, 100, 200, "n1")
    hand.submit("gang", ranks=2, devices=2)
    plan = hand.core.scheduler.plan()
    assert plan is not None
    assert plan.start_ns == 200 * S
    # What ends before that may run on the other node all the same.
    hand.gone("running.a1", "succeeded", 50)
    assert starts(submit(hand, "fits", devices=2, predicted_s=150)) == ["fits.a1"]
    hand.gone("fits.a1", "succeeded", 190)
    hand.tell(TimerFired("window.w.begin"), 190)
    assert starts(hand.tell(TimerFired("window.w.end"), 200)) == ["gang.a1"]


def test_when_maintenance_begins_whoever_is_left_has_to_go(hand: Hand) -> None:
    hand.node("n0", devices=2)
    submit(hand, "late", predicted_s=90)
    hand.started("late.a1")
    window(hand, 100, 200, "n0")
    actions = hand.tell(TimerFired("window.w.begin"), 100)
    assert stops(actions) == [("late.a1", "window w has begun on node n0")]
    assert starts(hand.gone("late.a1", "stopped", 105)) == []
    assert hand.core.state.jobs["late"].restarts_used == 0
    assert starts(hand.tell(TimerFired("window.w.end"), 200)) == ["late.a2"]
    # 2 x 100 s before, one of them busy; then 5 s of stopping; two devices were out of use until 200.
    hand.now_s = 200
    accounts = hand.accounts("n0")
    assert accounts["maintenance"] == 2 * 100 - 5
    assert sum(accounts.values()) == 2 * 200


def test_a_reservation_is_for_one_queue_and_those_below(hand: Hand) -> None:
    hand.tell(PolicySet((QueueRule("team"), QueueRule("sub", "team"), QueueRule("other"))))
    hand.node("n0", devices=3)
    submit(hand, "stranger", "other", predicted_s=90)
    submit(hand, "member", "sub", predicted_s=90)
    window(hand, 100, 200, "n0", queue="team")
    assert starts(submit(hand, "waits", "sub", at_s=20)) == []
    actions = hand.tell(TimerFired("window.w.begin"), 100)
    assert stops(actions) == [("stranger.a1", "window w has begun on node n0")]
    assert starts(actions) == ["waits.a1"]
    assert starts(submit(hand, "no", "other", at_s=110)) == []
    assert starts(hand.gone("stranger.a1", "stopped", 111)) == []
    assert places(submit(hand, "yes", "team", at_s=120)) == [("n0", (0,))]
    assert hand.accounts("n0").get("maintenance") is None
    # It is over: what runs there runs on, and everybody may come.
    assert stops(hand.tell(TimerFired("window.w.end"), 200)) == []
    assert starts(hand.gone("yes.a1", "succeeded", 210)) == ["stranger.a2"]


def test_replicas_move_when_maintenance_begins(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.deploy("s", 1)
    hand.ready("s.r1")
    window(hand, 100, 200, "n0")
    hand.node("n1", devices=1, at_s=50)
    assert starts(hand.tell(TimerFired("window.w.begin"), 100)) == ["s.r2"]
    assert hand.core.state.works["s.r1"].state == "draining"


def test_a_window_that_is_taken_back_leaves_nothing_behind(hand: Hand) -> None:
    hand.node("n0", devices=1)
    window(hand, 100, 200, "n0")
    submit(hand, "a")
    assert starts(hand.tell(WindowRemoved("w"), 10)) == ["a.a1"]
    assert not hand.core.state.timers
    assert not hand.core.state.windows


def test_a_window_that_has_begun_already_begins_at_once_and_keeps_an_operators_cordon(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.node("n1", devices=1)
    hand.tell(NodeCordoned("n0"), 50)
    window(hand, 0, 100, "n0", "n1")
    assert [node.is_cordoned for node in hand.core.state.nodes.values()] == [True, True]
    hand.tell(TimerFired("window.w.end"), 100)
    assert [node.is_cordoned for node in hand.core.state.nodes.values()] == [True, False]


def test_windows_that_overlap_or_are_over_are_ignored(hand: Hand) -> None:
    hand.node("n0", devices=1, at_s=50)
    window(hand, 100, 200, "n0")
    hand.tell(WindowSet("x", ("n0",), 150 * S, 300 * S))
    hand.tell(WindowSet("y", ("n1",), 10 * S, 50 * S))
    hand.tell(WindowRemoved("z"))
    assert list(hand.core.state.windows) == ["w"]
    assert sum(hand.core.state.ignored.values()) == 3


@pytest.mark.parametrize(("nodes", "end_ns"), [((), 5), (("a", "a"), 5), (("a",), 1)])
def test_windows_that_are_none(nodes: tuple[str, ...], end_ns: int) -> None:
    with pytest.raises(InputError):
        WindowSet("w", nodes, 1, end_ns)
