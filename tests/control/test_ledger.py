"""Leases and accounts, with numbers made by hand."""

from __future__ import annotations

import pytest
from control_hand import Hand, S

from groundplane.control.actions import RankPlacement
from groundplane.control.events import (
    Gang,
    JobCancelRequested,
    NodeBack,
    NodeCordoned,
    NodeFenced,
    NodeSilent,
    NodeUncordoned,
    WorkUnready,
)
from groundplane.control.ledger import Ledger
from groundplane.control.state import CoreState, Node, Work
from groundplane.control.views import ledger_view
from groundplane.spec.errors import InvariantError


def test_the_life_of_a_device(hand: Hand) -> None:
    hand.node("n0", devices=1, at_s=10)
    hand.submit("j", at_s=13)  # 3 s free
    hand.started("j.a1", 15)  # 2 s idle
    hand.checkpoint("j.a1", 1, 22)  # 7 s safe
    hand.gone("j.a1", "failed", 26)  # 4 s lost
    hand.now_s = 26.5
    assert hand.accounts("n0") == {
        "free": 3.5,
        "allocated_idle": 2.0,
        "busy": 7.0,
        "wasted_by_failure": 4.0,
    }


def test_success_wastes_nothing(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.submit("j")
    hand.started("j.a1", 1)
    hand.gone("j.a1", "succeeded", 9)
    assert hand.accounts("n0") == {"allocated_idle": 1.0, "busy": 8.0}


def test_a_cancelled_job_wastes_nothing_and_idles_until_it_is_gone(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.submit("j")
    hand.started("j.a1", 1)
    hand.tell(JobCancelRequested("j"), 5)
    hand.gone("j.a1", "stopped", 7)
    assert hand.accounts("n0") == {"allocated_idle": 3.0, "busy": 4.0}


def test_a_lost_node_wastes_what_no_checkpoint_saved(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.node("n1", devices=1)
    hand.submit("j", ranks=2)
    hand.started("j.a1", 1)
    hand.checkpoint("j.a1", 1, 4)
    hand.tell(NodeFenced("n1"), 6)
    hand.gone("j.a1", "stopped", 8)
    assert hand.accounts("n1") == {
        "allocated_idle": 1.0,
        "busy": 3.0,
        "wasted_by_failure": 2.0,
        "maintenance": 2.0,
    }
    assert hand.accounts("n0") == {"allocated_idle": 3.0, "busy": 3.0, "wasted_by_failure": 2.0}


def test_maintenance_is_a_closed_node_without_leases(hand: Hand) -> None:
    hand.node("n0", devices=2)
    hand.submit("j")
    hand.started("j.a1")
    hand.tell(NodeCordoned("n0"), 1)
    hand.tell(NodeSilent("n0"), 2)
    hand.tell(NodeBack("n0"), 4)
    hand.tell(NodeUncordoned("n0"), 5)
    hand.now_s = 6
    assert hand.accounts("n0") == {"busy": 6.0, "free": 2.0, "maintenance": 4.0}


def test_a_replica_is_busy_while_it_is_ready(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.deploy("s", 1)
    hand.ready("s.r1", 3)
    hand.tell(WorkUnready("s.r1", 1), 10)
    hand.ready("s.r1", 12)
    hand.gone("s.r1", "failed", 13)
    assert hand.accounts("n0") == {"allocated_idle": 5.0, "busy": 8.0}


def test_fragmentation_is_free_devices_that_are_enough_and_of_no_use_to_the_head(hand: Hand) -> None:
    hand.node("n0", devices=2)
    hand.node("n1", devices=2)
    hand.submit("a", devices=1)
    hand.node("n2", devices=2)
    hand.submit("b", devices=2)
    hand.submit("c", devices=1, at_s=0)
    # n0 is full of a and c, n1 of b: free are two devices of n2, one of them until second 1.
    hand.submit("d", devices=1, at_s=1)
    assert hand.accounts("n2") == {"free": 2.0}
    hand.gone("a.a1", "succeeded", 2)
    # Free: one on n0, one on n2. The head needs two on one node: enough by count, not in place.
    hand.submit("head", devices=2, at_s=3)
    hand.now_s = 7
    assert hand.accounts("n2") == {"free": 4.0, "allocated_idle": 6.0, "fragmentation": 4.0}
    hand.gone("c.a1", "succeeded", 8)  # now it fits on n0
    hand.now_s = 10
    assert hand.state("head") == "starting"
    assert hand.accounts("n2") == {"free": 6.0, "allocated_idle": 9.0, "fragmentation": 5.0}


def test_accounts_beyond_64_bits_are_carried(hand: Hand) -> None:
    """192 devices fill 64 bits of nanoseconds in three years; every integer of the state stays below."""
    hand.node("n0", devices=192)
    years_s = 100 * 365 * 86_400
    for turn in range(1, 4):
        hand.submit(f"j{turn}", devices=100, at_s=turn * years_s - 10)
        hand.started(f"j{turn}.a1")
        hand.gone(f"j{turn}.a1", "succeeded", turn * years_s)
    view = ledger_view(hand.core, 3 * years_s * S)
    assert view.busy_ns == 3 * 1000 * S
    assert view.total_ns == view.busy_ns + view.free_ns == 192 * 3 * years_s * S > 2**64


def test_totals_are_exact_beyond_64_bits(hand: Hand) -> None:
    hand.node("n0", devices=8)
    late_ns = 2**62
    view = ledger_view(hand.core, late_ns)
    assert view.total_ns == view.free_ns == 8 * late_ns > 2**64


def lone_ledger() -> tuple[CoreState, Ledger, Work]:
    state = CoreState()
    ledger = Ledger(state)
    since_fragmented_ns = ledger.fragmented_ns("gpu", 0)
    state.nodes["n0"] = Node("n0", 0, "gpu", 2, 10, 10, 0, 1, 0, since_fragmented_ns, (0, 1))
    work = Work("w", "attempt", "o", 1, "starting", Gang(1, 1, 5))
    state.works["w"] = work
    return state, ledger, work


def test_a_device_is_never_leased_twice() -> None:
    state, ledger, work = lone_ledger()
    ledger.lease(work, (RankPlacement("n0", (0,)),), 1)
    before = state.nodes["n0"].free_memory_bytes
    other = Work("w2", "attempt", "o", 2, "starting", Gang(1, 1, 5))
    with pytest.raises(InvariantError, match="leased twice"):
        ledger.lease(other, (RankPlacement("n0", (1,)), RankPlacement("n0", (0,))), 2)
    with pytest.raises(InvariantError, match="leased twice"):
        ledger.lease(other, (RankPlacement("n0", (1, 1)),), 2)
    assert (state.nodes["n0"].leases, state.nodes["n0"].free) == ({"w": (0,)}, (1,))
    assert state.nodes["n0"].free_memory_bytes == before
    assert other.fence == 0


def test_memory_and_closed_nodes_are_refused() -> None:
    state, ledger, work = lone_ledger()
    work.gang = Gang(1, 1, 11)
    with pytest.raises(InvariantError, match="cannot take"):
        ledger.lease(work, (RankPlacement("n0", (0,)),), 1)
    work.gang = Gang(1, 1, 1)
    state.nodes["n0"].is_cordoned = True
    with pytest.raises(InvariantError, match="cannot take"):
        ledger.lease(work, (RankPlacement("n0", (0,)),), 1)


def test_only_the_right_fence_releases() -> None:
    state, ledger, work = lone_ledger()
    ledger.lease(work, (RankPlacement("n0", (0,)),), 1)
    with pytest.raises(InvariantError, match="cannot release"):
        ledger.release(work, work.fence + 1, is_failure=False, now_ns=2 * S)
    assert state.nodes["n0"].leases == {"w": (0,)}
    ledger.release(work, work.fence, is_failure=False, now_ns=2 * S)
    assert (state.nodes["n0"].leases, state.nodes["n0"].free) == ({}, (0, 1))
    with pytest.raises(InvariantError, match="gives back"):
        ledger.release(work, work.fence, is_failure=False, now_ns=2 * S)
