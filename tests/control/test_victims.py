"""The search for victims against a slow one: what it finds places the gang, and nobody goes in vain."""

from __future__ import annotations

import random
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as some

from groundplane.control.core import ControlCore
from groundplane.control.events import (
    Gang,
    JobSubmitted,
    NodeJoined,
    PolicySet,
    PreemptionRules,
    QueueRule,
    RestartPolicy,
    WorkStarted,
)
from groundplane.control.placement import num_slots
from groundplane.control.state import Work
from groundplane.control.victim_search import Claim, Found
from groundplane.control.victims import Victims

ONCE = RestartPolicy(0, 0, 0)


def some_core(pick: random.Random, *, with_queues: bool) -> ControlCore:
    """Up to nine works of one to four devices on up to three nodes."""
    core = ControlCore()
    queues = [QueueRule("a", "", 1, pick.randint(0, 6)), QueueRule("b", "", 1, pick.randint(0, 6))]
    queues.append(QueueRule("c", "b", 1, pick.randint(0, queues[1].guaranteed_devices)))
    core.handle(0, PolicySet(tuple(queues) if with_queues else ()))
    for number in range(pick.randint(1, 3)):
        core.handle(0, NodeJoined(f"n{number}", "gpu", pick.choice([2, 4]), pick.choice([8, 100])))
    for number in range(pick.randint(0, 9)):
        gang = Gang(pick.choice([1, 1, 2]), pick.choice([1, 1, 2]), pick.choice([0, 0, 3]))
        job = JobSubmitted(
            f"j{number}", "j", pick.choice("abc"), pick.randint(0, 3), gang, ONCE, 0,
            is_preemptible=pick.random() < 0.9,
        )  # fmt: skip
        core.handle(number, job)
        work = core.state.works.get(f"j{number}.a1")
        if work is not None:
            core.handle(number, WorkStarted(work.work_id, work.fence))
    return core


def places(core: ControlCore, gang: Gang, gone: list[Work]) -> dict[str, int]:
    """Ranks of the gang that each node has room for when these works are gone."""
    rooms = {}
    for node in core.state.nodes.values():
        num_free, memory = len(node.free), node.free_memory_bytes
        for work in gone:
            devices = len(node.leases.get(work.work_id, ()))
            num_free += devices
            memory += devices // work.gang.devices_per_rank * work.gang.memory_bytes_per_rank
        rooms[node.node_id] = num_slots(num_free, memory, gang)
    return rooms


def search(core: ControlCore, claim: Claim) -> Found | None:
    context = core._context  # the index is derived: another one must say the same
    found = context.victims.search(claim)
    again = Victims(core.state, core.pools, core.shares, context.calendar).search(claim)
    assert found == again
    return found


@settings(max_examples=300, deadline=None)
@given(seed=some.integers(0, 10**6))
def test_by_priority_it_finds_victims_whenever_there_are_any(seed: int) -> None:
    pick = random.Random(seed)
    core = some_core(pick, with_queues=False)
    rules = PreemptionRules(True, pick.choice([0, 1, 3]), 0, 0, 5)
    gang = Gang(pick.randint(1, 3), pick.choice([1, 2, 4]), pick.choice([0, 3]))
    claim = Claim("", pick.randint(0, 5), gang, rules)
    jobs = core.state.jobs
    allowed = [
        work
        for work in core.state.works.values()
        if jobs[work.owner_id].is_preemptible
        and 0 < rules.priority_gap <= claim.priority - jobs[work.owner_id].priority
    ]
    found = search(core, claim)
    # Not every subset has to be tried: with all that may go gone there is room, or never.
    assert (found is not None) == (sum(places(core, gang, allowed).values()) >= gang.num_ranks)
    if found is None:
        return
    assert all(work in allowed for work in found.victims)
    check_holds(core, gang, found)
    highest = max((jobs[work.owner_id].priority for work in found.victims), default=-1)
    for size in range(1, len(allowed) + 1):
        for others in combinations(allowed, size):
            if sum(places(core, gang, list(others)).values()) >= gang.num_ranks:
                assert max(jobs[work.owner_id].priority for work in others) >= highest


@settings(max_examples=300, deadline=None)
@given(seed=some.integers(0, 10**6))
def test_guarantees_of_those_who_are_taken_from_are_kept(seed: int) -> None:
    pick = random.Random(seed)
    core = some_core(pick, with_queues=True)
    rules = PreemptionRules(True, pick.choice([0, 1, 3]), 0, 0, 5)
    leaf, priority = pick.choice("abc"), pick.randint(0, 5)
    gang = Gang(pick.randint(1, 2), pick.choice([1, 2]), 0)
    found = search(core, Claim(leaf, priority, gang, rules))
    if found is None or not found.victims:
        return
    check_holds(core, gang, found)
    held = dict.fromkeys(core.state.queues, 0)
    for work in core.state.works.values():
        for name in core.shares.path(work.queue):
            held[name] += work.gang.num_ranks * work.gang.devices_per_rank
    left = dict(held)
    for work in found.victims:
        outranks = 0 < rules.priority_gap <= priority - core.state.jobs[work.owner_id].priority
        own, theirs = core.shares.path(leaf), core.shares.path(work.queue)
        mine = [name for name in own if name not in theirs]
        need = gang.num_ranks * gang.devices_per_rank
        reclaims = bool(mine) and held[mine[-1]] + need <= core.state.queues[mine[-1]].guaranteed_devices
        assert outranks or reclaims
        for name in theirs:
            left[name] -= work.gang.num_ranks * work.gang.devices_per_rank
    for work in found.victims:
        for name in core.shares.path(work.queue):
            if name not in core.shares.path(leaf):
                assert left[name] >= core.state.queues[name].guaranteed_devices


def check_holds(core: ControlCore, gang: Gang, found: Found) -> None:
    """The plan has room for the whole gang once the victims are gone, and not if any of them stays."""
    rooms = places(core, gang, found.victims)
    ranks = {node_id: hold.num_devices // gang.devices_per_rank for node_id, hold in found.holds.items()}
    assert sum(ranks.values()) == gang.num_ranks
    assert all(rooms[node_id] >= num for node_id, num in ranks.items())
    for work in found.victims:
        others = places(core, gang, [other for other in found.victims if other is not work])
        assert any(others[node_id] < num for node_id, num in ranks.items())
