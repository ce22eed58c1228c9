"""Timetables of the head's plan, against a slow and obvious count of what comes free when."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as some

from groundplane.control.context import Context
from groundplane.control.core import ControlCore
from groundplane.control.events import Gang, NodeJoined, RestartPolicy
from groundplane.control.plan import UNKNOWN_NS, Planner
from groundplane.control.sorted_list import SortedList
from groundplane.control.state import Job, Work


def running(context: Context, number: int, gang: Gang, predicted_ns: int) -> bool:
    """One more attempt on leased devices, if there is room."""
    placement = context.pools.place(gang)
    if placement is None:
        return False
    job = Job(f"j{number}", "", "", 0, number, gang, RestartPolicy(0, 0, 0), 0, 0, predicted_ns, 0)
    context.state.jobs[job.job_id] = job
    context.lease(Work(f"j{number}.a1", "attempt", job.job_id, 1, "running", gang), placement)
    return True


def slots_at(context: Context, gang: Gang, at_ns: int) -> int:
    """Ranks that have room once all that is predicted to end by then has ended."""
    total = 0
    for node in context.state.nodes.values():
        num_free, memory = len(node.free), node.free_memory_bytes
        for work_id, devices in node.leases.items():
            work = context.state.works[work_id]
            predicted_ns = context.state.jobs[work.owner_id].predicted_run_ns
            end_ns = work.leased_ns + predicted_ns if predicted_ns else UNKNOWN_NS + work.fence
            if end_ns <= at_ns:
                num_free += len(devices)
                memory += len(devices) // work.gang.devices_per_rank * work.gang.memory_bytes_per_rank
        slots = num_free // gang.devices_per_rank
        if gang.memory_bytes_per_rank:
            slots = min(slots, memory // gang.memory_bytes_per_rank)
        total += slots
    return total


@settings(deadline=None)
@given(seed=some.integers(0, 10**6))
def test_the_start_is_the_first_moment_with_room_for_all(seed: int) -> None:
    pick = random.Random(seed)
    core = ControlCore()
    for number in range(pick.randint(1, 6)):
        core.handle(0, NodeJoined(f"n{number}", "gpu", 4, 8))
    context = Context(core.state)
    waiting = Gang(pick.randint(1, 8), pick.randint(1, 4), pick.choice([0, 2]))
    context.planner.plan("w", waiting)  # its timetable has to follow all that comes
    for number in range(pick.randint(0, 12)):
        gang = Gang(pick.randint(1, 3), pick.randint(1, 2), pick.choice([0, 1]))
        running(context, number, gang, pick.choice([0, 10, 20, 30]))
        if context.state.works and pick.random() < 0.3:
            work = pick.choice(list(context.state.works.values()))
            context.remove_work(work, fence=work.fence, is_failure=False)
    plan = context.planner.plan("w", waiting)
    moments = [0, 10, 20, 30, *(UNKNOWN_NS + fence for fence in range(20))]
    first = next((at for at in moments if slots_at(context, waiting, at) >= waiting.num_ranks), None)
    assert (plan is None) == (first is None)
    if plan is not None and first is not None:
        assert plan.start_ns == (-1 if first >= UNKNOWN_NS else first)
        held = sum(hold.num_devices for hold in plan.holds.values())
        assert held == waiting.num_ranks * waiting.devices_per_rank
    assert Planner(context.state, context.pools, context.sharing).plan("w", waiting) == plan


@settings(deadline=None)
@given(some.lists(some.integers(0, 50)), some.randoms(use_true_random=False))
def test_a_sorted_list_is_a_sorted_list(items: list[int], pick: random.Random) -> None:
    mine, theirs = SortedList(items[::2]), sorted(items[::2])
    for item in items:
        if theirs and pick.random() < 0.4:
            gone = pick.choice(theirs)
            mine.remove(gone)
            theirs.remove(gone)
        mine.add(item)
        theirs.append(item)
        theirs.sort()
    assert list(mine) == theirs
    assert len(mine) == len(theirs)
    assert [mine.at(index) for index in range(len(theirs))] == theirs
    assert mine.at(len(theirs)) is None


def test_a_long_sorted_list_is_cut_and_shrinks() -> None:
    mine: SortedList[int] = SortedList()
    numbers = [number * 7919 % 5003 for number in range(5003)]
    for number in numbers:
        mine.add(number)
    assert list(mine) == list(range(5003))
    for number in numbers[:5000]:
        mine.remove(number)
    assert list(mine) == sorted(numbers[5000:])
