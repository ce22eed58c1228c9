"""Services: as many replicas as wanted, replaced when they fail, drained before they stop. In seconds."""

from __future__ import annotations

from control_hand import Hand, starts, stops, timers

from groundplane.control.actions import AnyAction, DrainWork
from groundplane.control.events import (
    NodeFenced,
    ServiceRemoved,
    ServiceScaled,
    TimerFired,
    WorkDrained,
    WorkUnready,
)
from groundplane.control.views import service_view, service_views


def drains(actions: list[AnyAction]) -> list[str]:
    return [action.work_id for action in actions if isinstance(action, DrainWork)]


def states(hand: Hand, service_id: str = "s") -> dict[str, str]:
    works = hand.core.state.works
    return {name: works[name].state for name in hand.core.state.services[service_id].replicas}


def test_replicas_start_and_become_ready(hand: Hand) -> None:
    hand.node("n0")
    assert starts(hand.deploy("s", 2)) == ["s.r1", "s.r2"]
    hand.started("s.r1", 1)
    hand.ready("s.r1", 2)
    assert states(hand) == {"s.r1": "ready", "s.r2": "starting"}
    view = service_view(hand.core, "s")
    assert view is not None
    assert (view.num_ready, view.num_replicas) == (1, 2)


def test_services_and_jobs_share_one_pool(hand: Hand) -> None:
    hand.node("n0", devices=2)
    hand.submit("j", devices=2)
    assert starts(hand.deploy("s", 1)) == []
    hand.submit("k", devices=1)
    assert starts(hand.gone("j.a1", "succeeded", 1)) == ["s.r1", "k.a1"]


def test_a_replica_that_fails_is_replaced_after_its_back_off(hand: Hand) -> None:
    hand.node("n0")
    hand.deploy("s", 1)
    assert timers(hand.gone("s.r1", "failed", 5)) == {"s.r2.backoff": 6.0}
    assert states(hand) == {"s.r2": "backing_off"}
    assert starts(hand.tell(TimerFired("s.r2.backoff"), 6)) == ["s.r2"]
    assert timers(hand.gone("s.r2", "failed", 7)) == {"s.r3.backoff": 9.0}
    hand.tell(TimerFired("s.r3.backoff"), 9)
    hand.ready("s.r3", 10)
    # It was ready: the next failure is the first in a row again. That it ended by itself is a failure.
    assert timers(hand.gone("s.r3", "succeeded", 11)) == {"s.r4.backoff": 12.0}


def test_the_budget_ends_a_service_and_a_new_generation_revives_it(hand: Hand) -> None:
    hand.node("n0")
    hand.deploy("s", 1, budget=0)
    assert hand.gone("s.r1", "start_failed", 1) == []
    assert hand.core.state.services["s"].state == "failed"
    assert hand.core.state.services["s"].reason == "failed after 0 restarts: start_failed"
    assert starts(hand.deploy("s", 1, 2, budget=0, generation=2)) == ["s.r2"]
    assert hand.core.state.services["s"].state == "active"


def test_scaling_down_drains_before_it_stops(hand: Hand) -> None:
    hand.node("n0")
    hand.deploy("s", 2)
    hand.ready("s.r1")
    hand.ready("s.r2")
    actions = hand.tell(ServiceScaled("s", 1), 10)
    assert drains(actions) == ["s.r2"]
    assert timers(actions) == {"s.r2.drain": 40.0}
    assert stops(actions) == []
    assert hand.tell(WorkDrained("s.r1", 1), 11) == []  # nobody asked for that
    assert stops(hand.tell(WorkDrained("s.r2", 2), 12)) == [("s.r2", "no longer wanted")]
    assert hand.core.state.timers == {}
    assert hand.gone("s.r2", "stopped", 13) == []
    assert states(hand) == {"s.r1": "ready"}


def test_draining_has_a_limit(hand: Hand) -> None:
    hand.node("n0")
    hand.deploy("s", 1)
    hand.ready("s.r1")
    hand.tell(WorkUnready("s.r1", 1), 1)
    assert drains(hand.tell(ServiceScaled("s", 0), 10)) == ["s.r1"]
    assert stops(hand.tell(TimerFired("s.r1.drain"), 40)) == [("s.r1", "no longer wanted")]


def test_a_replica_that_never_was_ready_is_stopped_at_once(hand: Hand) -> None:
    hand.node("n0")
    hand.deploy("s", 1)
    actions = hand.tell(ServiceScaled("s", 0), 1)
    assert (drains(actions), stops(actions)) == ([], [("s.r1", "no longer wanted")])


def test_what_waits_goes_first_when_scaling_down(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.deploy("s", 3)
    hand.ready("s.r1")
    assert states(hand) == {"s.r1": "ready", "s.r2": "queued", "s.r3": "queued"}
    assert hand.tell(ServiceScaled("s", 1), 1) == []
    assert states(hand) == {"s.r1": "ready"}


def test_removal_ends_all_and_ids_are_never_used_again(hand: Hand) -> None:
    hand.node("n0")
    hand.deploy("s", 1)
    hand.ready("s.r1")
    assert drains(hand.tell(ServiceRemoved("s"), 1)) == ["s.r1"]
    assert hand.tell(ServiceRemoved("s"), 1) == []
    assert hand.tell(ServiceScaled("s", 5), 1) == []
    hand.tell(WorkDrained("s.r1", 1), 2)
    hand.gone("s.r1", "stopped", 3)
    assert hand.core.state.services["s"].state == "removed"
    assert service_views(hand.core) == []
    assert hand.deploy("s", 1, 4) == []  # the old deployment, said again
    assert starts(hand.deploy("s", 1, 5, generation=2)) == ["s.r2"]


def test_a_new_generation_replaces_one_ready_replica_at_a_time(hand: Hand) -> None:
    hand.node("n0")
    hand.deploy("s", 2)
    hand.ready("s.r1")
    hand.ready("s.r2")
    actions = hand.deploy("s", 2, 10, generation=2)
    assert drains(actions) == ["s.r1"]
    assert [action.generation for action in actions if hasattr(action, "generation")] == [2]
    hand.tell(WorkDrained("s.r1", 1), 11)
    hand.gone("s.r1", "stopped", 12)
    assert states(hand) == {"s.r2": "ready", "s.r3": "starting"}
    assert drains(hand.ready("s.r3", 13)) == ["s.r2"]


def test_a_new_generation_replaces_at_once_what_is_not_ready(hand: Hand) -> None:
    hand.node("n0", devices=2)
    hand.deploy("s", 3)
    hand.ready("s.r1")
    actions = hand.deploy("s", 3, 10, generation=2)
    assert stops(actions) == [("s.r2", "replaced by a new generation")]
    assert states(hand) == {
        "s.r1": "ready",
        "s.r2": "stopping",
        "s.r4": "queued",
        "s.r5": "queued",
    }


def test_a_replica_on_a_lost_node_is_replaced(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.deploy("s", 1)
    hand.ready("s.r1")
    assert timers(hand.tell(NodeFenced("n0"), 5)) == {"s.r2.backoff": 6.0}
    hand.tell(TimerFired("s.r2.backoff"), 6)
    assert starts(hand.node("n0", devices=1, boot=2, at_s=7)) == ["s.r2"]


def test_an_operators_stop_is_no_failure_of_a_replica(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.deploy("s", 1, budget=0)
    hand.ready("s.r1", 1)
    assert starts(hand.gone("s.r1", "stopped", 2)) == ["s.r2"]
    assert hand.core.state.services["s"].state == "active"
    hand.gone("s.r2", "failed", 3)
    assert hand.core.state.services["s"].state == "failed"
