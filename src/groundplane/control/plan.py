"""Where and when the blocked head of the queue will run: what backfill may not touch.

The running works give back their devices in the order of their predicted ends; the first moment at which
enough ranks fit on open nodes is the start, the nodes with most room then are the plan. Works without a
prediction come last, in the order of their fences, and make the start unknown. Replicas are not expected to
end, unless they are draining or stopping. No plan means that the head would not fit if every job were over.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator

from groundplane.control.events import Gang
from groundplane.control.placement import Pool, Pools, num_free_on, num_slots
from groundplane.control.state import CoreState, HeadPlan, Hold, Node, Work

UNKNOWN_NS = 1 << 62
LEAVING = ("draining", "stopping")


class Ends:
    """Works that will give back their leases, in the order in which they are expected to. Derived state."""

    def __init__(self) -> None:
        self._order: list[tuple[int, int, str]] = []
        self._key_of: dict[str, tuple[int, int, str]] = {}

    def __iter__(self) -> Iterator[tuple[int, int, str]]:
        """(expected end in ns, fence, work id); the end may have passed."""
        return iter(self._order)

    def update(self, state: CoreState, work: Work) -> None:
        """Takes note of a work that was leased, or that began to drain or to stop."""
        self.remove(work)
        end_ns = _expected_end_ns(state, work)
        if end_ns is not None:
            self._key_of[work.work_id] = (end_ns, work.fence, work.work_id)
            insort(self._order, self._key_of[work.work_id])

    def remove(self, work: Work) -> None:
        """Forgets a work."""
        key = self._key_of.pop(work.work_id, None)
        if key is not None:
            del self._order[bisect_left(self._order, key)]


def plan_head(state: CoreState, pools: Pools, ends: Ends, owner_id: str, gang: Gang) -> HeadPlan | None:
    """The plan for a gang that cannot be placed now.

    Args:
        owner_id: the job or replica that waits.
    """
    best: tuple[int, dict[str, Hold]] | None = None
    for pool in pools:
        found = _plan_in_pool(state, pool, gang, ends)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return None
    start_ns = -1 if best[0] == UNKNOWN_NS else max(best[0], state.now_ns)
    return HeadPlan(owner_id, start_ns, best[1])


def _expected_end_ns(state: CoreState, work: Work) -> int | None:
    if not work.placement:
        return None
    if work.state in LEAVING:
        return 0
    if work.kind == "replica":
        return None
    predicted_run_ns = state.jobs[work.owner_id].predicted_run_ns
    return work.leased_ns + predicted_run_ns if predicted_run_ns else UNKNOWN_NS


def _plan_in_pool(state: CoreState, pool: Pool, gang: Gang, ends: Ends) -> tuple[int, dict[str, Hold]] | None:
    rooms: dict[str, _Room] = {}
    if gang.memory_bytes_per_rank:
        total = sum(_Room(node, gang).slots for node in pool.open_nodes())
    else:
        total = pool.num_slots(gang)
    for end_ns, _, work_id in ends:
        work = state.works[work_id]
        for rank in work.placement:
            node = state.nodes[rank.node_id]
            if node.device_kind != pool.device_kind or not node.is_open or rank.node_id in work.lost_nodes:
                continue
            room = rooms.get(rank.node_id)
            if room is None:
                room = rooms[rank.node_id] = _Room(node, gang)
            total += room.give_back(len(rank.devices), work.gang.memory_bytes_per_rank, gang)
        if total >= gang.num_ranks:
            return end_ns, _choose(pool, rooms, gang)
    return None


class _Room:
    """Free devices and memory of one node at a moment to come."""

    __slots__ = ("index", "memory_bytes", "node_id", "num_devices", "slots")

    def __init__(self, node: Node, gang: Gang) -> None:
        self.node_id = node.node_id
        self.index = node.index
        self.num_devices = num_free_on(node)
        self.memory_bytes = node.free_memory_bytes
        self.slots = num_slots(self.num_devices, self.memory_bytes, gang)

    def give_back(self, num_devices: int, memory_bytes: int, gang: Gang) -> int:
        """Adds what a work returns; the answer is how many more ranks of `gang` fit."""
        before = self.slots
        self.num_devices += num_devices
        self.memory_bytes += memory_bytes
        self.slots = num_slots(self.num_devices, self.memory_bytes, gang)
        return self.slots - before


def _choose(pool: Pool, rooms: dict[str, _Room], gang: Gang) -> dict[str, Hold]:
    """Nodes with most room first: those that works give back to, and those that have room already."""
    holds: dict[str, Hold] = {}
    left = gang.num_ranks
    given = sorted(rooms.values(), key=lambda room: (-room.slots, room.index))
    others = (_Room(node, gang) for node in pool.emptiest_first() if node.node_id not in rooms)
    for room in heapq.merge(given, others, key=lambda room: -room.slots):
        ranks = min(room.slots, left)
        if ranks > 0:
            holds[room.node_id] = Hold(ranks * gang.devices_per_rank, ranks * gang.memory_bytes_per_rank)
            left -= ranks
        if left == 0:
            break
    return holds
