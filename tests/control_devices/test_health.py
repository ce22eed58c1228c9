"""Drains, quarantine, spares, hangs and stragglers in the core."""

from __future__ import annotations

from devices_hand import Hand, S, starts

from groundplane.control import events as ev
from groundplane.control.actions import AnyAction, DrainWork, StopWork
from groundplane.control.events import Gang, HealthSet, SpareRule

ONE = Gang(1, 1, 0)
TWO = Gang(2, 1, 0)


def stops(actions: list[AnyAction]) -> list[tuple[str, str]]:
    return [(action.work_id, action.reason) for action in actions if isinstance(action, StopWork)]


def drains(actions: list[AnyAction]) -> list[str]:
    return [action.work_id for action in actions if isinstance(action, DrainWork)]


def join(hand: Hand, *node_ids: str, devices: int = 1) -> None:
    for node_id in node_ids:
        hand.node(node_id, devices)


# Drain ---------------------------------------------------------------------------------------------------


def test_a_job_that_stops_at_checkpoints_leaves_a_drained_node_at_its_next_one() -> None:
    hand = Hand()
    join(hand, "n0")
    hand.submit("j", ONE, 0, stops_at_checkpoint=True)
    hand.started("j.a1", 1)
    join(hand, "n1")
    assert stops(hand.tell(ev.NodeDrainRequested("n0", 600 * S), 10)) == []
    assert stops(hand.checkpoint("j.a1", 5, 20)) == [("j.a1", "node n0 is drained")]
    assert starts(hand.gone("j.a1", "stopped", 21)) == ["j.a2"]
    job = hand.core.state.jobs["j"]
    assert (job.restarts_used, job.state) == (0, "starting")
    assert hand.core.state.works["j.a2"].placement[0].node_id == "n1"
    assert "wasted_by_failure" not in hand.accounts("n0")
    assert hand.core.state.nodes["n0"].holders() == []


def test_others_may_end_until_the_deadline_and_are_stopped_then() -> None:
    hand = Hand()
    join(hand, "n0")
    hand.submit("j", ONE, 0)
    hand.started("j.a1", 1)
    hand.tell(ev.NodeDrainRequested("n0", 600 * S), 10)
    assert stops(hand.checkpoint("j.a1", 5, 20)) == []
    assert stops(hand.timer("n0.node-drain", 610)) == [("j.a1", "node n0 is drained")]
    assert starts(hand.gone("j.a1", "failed", 611)) == []
    assert hand.core.state.jobs["j"].restarts_used == 0
    assert starts(hand.tell(ev.NodeUncordoned("n0"), 700)) == ["j.a2"]


def test_a_drain_at_once_and_one_without_end() -> None:
    hand = Hand()
    join(hand, "n0", "n1")
    hand.submit("a", ONE)
    hand.submit("b", ONE)
    hand.started("a.a1")
    hand.started("b.a1")
    assert stops(hand.tell(ev.NodeDrainRequested("n0", 0))) == [("a.a1", "node n0 is drained")]
    assert stops(hand.tell(ev.NodeDrainRequested("n1"))) == []
    assert "n1.node-drain" not in hand.core.state.timers


def test_who_has_not_gone_stays_when_the_node_is_opened_again() -> None:
    hand = Hand()
    join(hand, "n0")
    hand.submit("j", ONE, stops_at_checkpoint=True)
    hand.started("j.a1")
    hand.tell(ev.NodeDrainRequested("n0", 600 * S))
    hand.tell(ev.NodeUncordoned("n0"), 5)
    assert stops(hand.checkpoint("j.a1", 5, 20)) == []
    assert hand.core.state.timers == {}
    assert hand.core.state.nodes["n0"].is_open


def test_replicas_leave_a_drained_node_one_at_a_time() -> None:
    hand = Hand()
    join(hand, "n0", devices=2)
    hand.deploy("s", ONE, 2)
    hand.ready("s.r1")
    hand.ready("s.r2")
    join(hand, "n1", devices=2)
    actions = hand.tell(ev.NodeDrainRequested("n0", 600 * S))
    assert drains(actions) == ["s.r1"]
    assert starts(actions) == ["s.r3"]
    hand.tell(ev.WorkDrained("s.r1", hand.fence("s.r1")))
    assert drains(hand.gone("s.r1", "stopped")) == []  # the new one is not ready yet
    assert drains(hand.ready("s.r3")) == ["s.r2"]
    hand.tell(ev.WorkDrained("s.r2", hand.fence("s.r2")))
    hand.gone("s.r2", "stopped")
    hand.ready("s.r4")
    assert hand.core.state.nodes["n0"].holders() == []
    assert hand.core.state.services["s"].restarts_used == 0


def test_a_gang_is_not_stranded_by_a_drain() -> None:
    """One of its nodes is drained: all of it goes, and starts again as a whole where there is room."""
    hand = Hand()
    join(hand, "n0", "n1")
    hand.submit("j", TWO, stops_at_checkpoint=True)
    hand.started("j.a1")
    hand.tell(ev.NodeDrainRequested("n0", 60 * S), 1)
    assert stops(hand.timer("n0.node-drain", 61)) == [("j.a1", "node n0 is drained")]
    assert starts(hand.gone("j.a1", "stopped", 62)) == []
    hand.node("n2", 1, 63)
    assert starts(hand.tell(ev.NodeSilent("nowhere"), 64)) == []
    work = hand.core.state.works["j.a2"]
    assert [rank.node_id for rank in work.placement] == ["n1", "n2"]


# Quarantine ----------------------------------------------------------------------------------------------


def fail(hand: Hand, job_id: str, at_s: float) -> None:
    """A job of its own starts on the first open node and fails there for good."""
    hand.submit(job_id, ONE, at_s, budget=0)
    hand.gone(f"{job_id}.a1", "failed", at_s + 1)


def test_a_node_on_which_several_jobs_failed_is_closed_and_says_why() -> None:
    hand = Hand()
    hand.tell(HealthSet(max_failures=3, window_ns=100 * S))
    join(hand, "n0", "n1")
    for number in range(2):
        fail(hand, f"j{number}", 10 * number)
    assert hand.core.state.nodes["n0"].is_open
    fail(hand, "j2", 20)
    node = hand.core.state.nodes["n0"]
    assert node.closed_for == "quarantine"
    assert node.closed_note == "3 failures of 3 jobs and services within 100 s"
    hand.submit("next", ONE)
    assert hand.place("next").node_id == "n1"
    hand.tell(ev.NodeUncordoned("n0"))
    assert node.is_open
    assert node.failures == []


def test_old_failures_and_one_job_that_always_fails_close_nothing() -> None:
    hand = Hand()
    hand.tell(HealthSet(max_failures=3, min_owners=2, window_ns=100 * S))
    join(hand, "n0", "n1")
    for number in range(6):
        fail(hand, f"j{number}", 60 * number)
    assert hand.core.state.nodes["n0"].is_open
    hand.submit("bad", ONE, 1000, budget=9)
    for number in range(1, 6):
        hand.gone(f"bad.a{number}", "failed")
        hand.now_s += 10
        hand.timer("bad.backoff", hand.now_s)
    assert hand.core.state.nodes["n0"].is_open


def test_quarantine_ends_after_its_time_and_never_takes_too_many_nodes() -> None:
    hand = Hand()
    hand.tell(HealthSet(max_failures=1, min_owners=1, quarantine_ns=50 * S, most_per_mille=100))
    join(hand, "n0", "n1", "n2")
    fail(hand, "a", 0)
    fail(hand, "b", 10)  # on n1: one of three is closed already
    nodes = hand.core.state.nodes
    assert [node.closed_for for node in nodes.values()] == ["quarantine", "", ""]
    hand.timer("n0.node-quarantine", 51)
    assert nodes["n0"].is_open


def test_the_only_node_is_never_closed() -> None:
    hand = Hand()
    hand.tell(HealthSet(max_failures=1, min_owners=1))
    join(hand, "n0")
    fail(hand, "a", 0)
    assert hand.core.state.nodes["n0"].is_open


def test_of_a_gang_the_node_that_is_named_gets_the_blame_and_nobody_if_none_is() -> None:
    hand = Hand()
    hand.tell(HealthSet(max_failures=1, min_owners=1))
    join(hand, "n0", "n1", "n2")
    hand.submit("a", TWO, budget=0)
    hand.gone("a.a1", "failed")
    assert not any(node.failures for node in hand.core.state.nodes.values())
    hand.submit("b", TWO, budget=0)
    hand.tell(ev.WorkGone("b.a1", hand.fence("b.a1"), "failed", 1, "", "n1"))
    assert hand.core.state.nodes["n1"].closed_for == "quarantine"


def test_what_was_wanted_and_what_the_node_itself_lost_is_no_failure() -> None:
    hand = Hand()
    hand.tell(HealthSet(max_failures=1, min_owners=1))
    join(hand, "n0", "n1")
    hand.submit("a", ONE)
    hand.tell(ev.JobCancelRequested("a"))
    hand.gone("a.a1", "failed")
    hand.submit("b", ONE)
    hand.tell(ev.NodeFenced("n0"))
    assert not any(node.failures for node in hand.core.state.nodes.values())


# Spares --------------------------------------------------------------------------------------------------


def spare_ids(hand: Hand) -> list[str]:
    return [node_id for node_id, node in hand.core.state.nodes.items() if node.closed_for == "spare"]


def test_spares_are_kept_back_and_take_the_place_of_a_lost_node() -> None:
    hand = Hand()
    join(hand, "n0", "n1", "n2")
    hand.tell(HealthSet(spares=(SpareRule("h100", 1),)))
    assert spare_ids(hand) == ["n2"]
    hand.submit("gang", TWO, 0)
    hand.submit("small", ONE, 0)
    assert hand.state("small") == "queued"
    hand.started("gang.a1", 1)
    assert stops(hand.tell(ev.NodeFenced("n1"), 2)) == [("gang.a1", "node n1 was lost")]
    assert hand.core.state.nodes["n2"].closed_note == "gang"  # kept for the gang, also from the small one
    hand.gone("gang.a1", "stopped", 3)
    assert hand.state("small") == "starting"  # on n0, while the gang backs off
    hand.gone("small.a1", "succeeded", 3)
    assert starts(hand.timer("gang.backoff", 4)) == ["gang.a2"]
    assert [rank.node_id for rank in hand.core.state.works["gang.a2"].placement] == ["n0", "n2"]
    hand.tell(ev.NodeJoined("n1", "h100", 1, 1000, 2), 10)
    assert spare_ids(hand) == ["n1"]  # the lost one fills up the spares


def test_a_kept_spare_opens_when_its_owner_is_over() -> None:
    hand = Hand()
    hand.tell(HealthSet(spares=(SpareRule("h100", 1),)))
    join(hand, "n0", "n1")
    assert spare_ids(hand) == ["n0"]  # the first that joined: no node was there before
    hand.submit("a", ONE, budget=0)
    hand.tell(ev.NodeFenced("n1"))
    assert hand.state("a") == "failed"
    assert hand.core.state.nodes["n0"].is_open
    assert hand.core.state.kept == {}


def test_a_quarantined_node_is_replaced_by_a_spare_and_becomes_one() -> None:
    hand = Hand()
    join(hand, "n0", "n1", "n2")
    hand.tell(HealthSet(max_failures=1, min_owners=1, quarantine_ns=50 * S, spares=(SpareRule("h100", 1),)))
    fail(hand, "a", 0)
    assert [node.closed_for for node in hand.core.state.nodes.values()] == ["quarantine", "", ""]
    hand.timer("n0.node-quarantine", 60)
    assert spare_ids(hand) == ["n0"]


def test_fewer_spares_open_and_a_snapshot_knows_how_many_there_are() -> None:
    hand = Hand()
    join(hand, "n0", "n1", "n2")
    hand.tell(HealthSet(spares=(SpareRule("h100", 2),)))
    assert spare_ids(hand) == ["n1", "n2"]
    hand.core = type(hand.core).restore(hand.core.snapshot())
    hand.tell(HealthSet(spares=(SpareRule("h100", 1),)))
    assert len(spare_ids(hand)) == 1


# Hangs and stragglers ------------------------------------------------------------------------------------


def test_an_attempt_without_progress_is_stopped_and_costs_a_restart() -> None:
    hand = Hand()
    join(hand, "n0")
    hand.submit("j", ONE, 0)
    hand.started("j.a1", 1)
    actions = hand.tell(ev.WorkStalled("j.a1", hand.fence("j.a1"), "no step for 600 s"), 700)
    assert stops(actions) == [("j.a1", "no progress: no step for 600 s")]
    hand.tell(ev.WorkStalled("j.a1", hand.fence("j.a1")), 701)
    hand.gone("j.a1", "stopped", 702)
    job = hand.core.state.jobs["j"]
    assert (job.state, job.restarts_used, job.reason) == ("backing_off", 1, "no progress: no step for 600 s")
    assert hand.accounts("n0")["wasted_by_failure"] == 699.0


def test_a_replica_that_hangs_is_replaced() -> None:
    hand = Hand()
    join(hand, "n0", devices=2)
    hand.tell(
        ev.ServiceDeployed(
            "s", "s", "q", 0, 1, ONE, ev.RestartPolicy(5, S, S), 30 * S, 1, unready_limit_ns=60 * S
        )
    )
    hand.ready("s.r1", 1)
    hand.tell(ev.WorkUnready("s.r1", hand.fence("s.r1")), 10)
    hand.ready("s.r1", 20)
    assert hand.core.state.timers == {}
    hand.tell(ev.WorkUnready("s.r1", hand.fence("s.r1")), 30)
    assert stops(hand.timer("s.r1.unready", 89)) == []
    assert stops(hand.timer("s.r1.unready", 90)) == [("s.r1", "did not answer for 60000 ms")]
    hand.gone("s.r1", "stopped", 91)
    assert starts(hand.timer("s.r2.backoff", 92)) == ["s.r2"]
    assert hand.core.state.services["s"].reason == "did not answer for 60000 ms"


def test_a_straggler_is_closed_and_its_gang_goes_on_without_it_from_the_next_checkpoint() -> None:
    hand = Hand()
    join(hand, "n0", "n1", "n2")
    hand.tell(HealthSet(straggler_wait_ns=100 * S))
    hand.submit("j", TWO, 0)
    hand.started("j.a1", 1)
    fence = hand.fence("j.a1")
    assert stops(hand.tell(ev.WorkSlowed("j.a1", fence, "n1", "2.1 times slower"), 5)) == []
    assert hand.core.state.nodes["n1"].closed_note == "slowed j.a1 down: 2.1 times slower"
    assert stops(hand.checkpoint("j.a1", 7, 50)) == [("j.a1", "node n1 is slow")]
    assert starts(hand.gone("j.a1", "stopped", 51)) == ["j.a2"]
    assert [rank.node_id for rank in hand.core.state.works["j.a2"].placement] == ["n0", "n2"]
    assert hand.core.state.jobs["j"].restarts_used == 0


def test_a_straggler_of_no_rule_or_of_another_gang_changes_nothing() -> None:
    hand = Hand()
    join(hand, "n0", "n1", "n2")
    hand.submit("j", TWO)
    fence = hand.fence("j.a1")
    hand.tell(ev.WorkSlowed("j.a1", fence, "n1"))
    hand.tell(HealthSet())
    hand.tell(ev.WorkSlowed("j.a1", fence, "n2"))
    hand.tell(ev.WorkSlowed("j.a1", fence - 1, "n1"))
    assert all(node.is_open for node in hand.core.state.nodes.values())
