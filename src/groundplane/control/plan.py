"""Where and when the blocked head of the queue will run: what backfill may not touch.

Running works are expected to give back their devices at their predicted ends; those without a prediction
come last, in the order of their fences, and make the start unknown. Replicas are not expected to end, unless
they are draining or stopping. The ranks of the head take the room that comes free first, and the last of
these moments is the start. No plan means that the head would not fit if every job were over.

For each number of devices a rank that was asked about, a timetable keeps the moments at which each node has
room for one, two, ... such ranks. Only nodes that changed since the last question are looked at again, so
that a plan costs as much as the gang has ranks, not as the cluster has works. Derived state.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice

from groundplane.control.calendar import Calendar
from groundplane.control.events import Gang
from groundplane.control.placement import Pool, Pools, num_slots
from groundplane.control.sharing import Sharing
from groundplane.control.sorted_list import SortedList
from groundplane.control.state import CoreState, HeadPlan, Hold, Node, Work

UNKNOWN_NS = 1 << 62
"""Ends that nobody predicted come from here on, in the order of fences."""
NEVER_NS = 1 << 63
"""Beyond any end."""
LEAVING = ("draining", "stopping")
MAX_TIMETABLES = 16
"""How many timetables there are at once, over all device kinds; the one made first goes first."""

Moment = tuple[int, int]
"""When a node has room for one more rank, and the node's position in its pool."""
End = tuple[int, int, int]
"""When a work is expected to end, and the devices and the memory that it gives back on one node."""


class Planner:
    """Timetables over the nodes of `pools` and the works of `state`."""

    def __init__(
        self, state: CoreState, pools: Pools, sharing: Sharing, calendar: Calendar | None = None
    ) -> None:
        self._opens_ns = always_open if calendar is None else calendar.opens_ns
        self._state = state
        self._pools = pools
        self._sharing = sharing
        self._timetables: dict[tuple[str, int], Timetable] = {}
        self._ends: dict[str, list[End]] = {}

    def node_changed(self, node: Node) -> None:
        """The node has opened or closed, or a work here came, went, or is expected to end at another time."""
        self._ends.pop(node.node_id, None)
        for (device_kind, _), timetable in self._timetables.items():
            if device_kind == node.device_kind:
                timetable.changed[node.node_id] = None

    def plan(self, owner_id: str, gang: Gang) -> HeadPlan | None:
        """The plan for a gang that cannot be placed now.

        Args:
            owner_id: the job or replica that waits.
        """
        best: tuple[int, dict[str, Hold]] | None = None
        if gang.part is not None:
            best = self._sharing.first_room(gang, self._end_ns)
        for pool in self._pools.pools_for(gang):
            if gang.part is not None and not self._sharing.fits_when_empty(gang, pool.device_kind):
                continue
            found = self._timetable(pool, gang).first_room(gang)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if best is None:
            return None
        start_ns = -1 if best[0] >= UNKNOWN_NS else max(best[0], self._state.now_ns)
        return HeadPlan(owner_id, start_ns, best[1])

    def _end_ns(self, work_id: str) -> int:
        return expected_end_ns(self._state, self._state.works[work_id])

    def _timetable(self, pool: Pool, gang: Gang) -> Timetable:
        key = (pool.device_kind, gang.devices_per_rank)
        timetable = self._timetables.get(key)
        if timetable is None:
            if len(self._timetables) >= MAX_TIMETABLES:
                del self._timetables[next(iter(self._timetables))]
            timetable = Timetable(pool, gang.devices_per_rank, self._ends_on, self._opens_ns)
            self._timetables[key] = timetable
        timetable.refresh()
        return timetable

    def empty_ns(self, node: Node) -> int:
        """When the node is expected to be empty: now, at its last end, or never that could be told."""
        if not node.leases and not node.shared:
            return self._state.now_ns
        ends = self._ends_on(node)
        if len(ends) < len(node.leases) + len(node.shared):
            return NEVER_NS
        return ends[-1][0]

    def _ends_on(self, node: Node) -> list[End]:
        """The works on a node that are expected to end, the first first; kept until the node changes."""
        ends = self._ends.get(node.node_id)
        if ends is None:
            ends = self._ends[node.node_id] = []
            for work_id, devices in node.leases.items():
                work = self._state.works[work_id]
                end_ns = expected_end_ns(self._state, work)
                if end_ns >= 0:
                    gang, num_devices = work.gang, len(devices)
                    ranks = num_devices // gang.devices_per_rank
                    ends.append((end_ns, num_devices, ranks * gang.memory_bytes_per_rank))
            for each in node.shared:
                works = [self._state.works[work_id] for work_id in each.parts]
                ends_ns = [expected_end_ns(self._state, work) for work in works]
                if min(ends_ns) >= 0:
                    ends.append((max(ends_ns), 1, sum(work.gang.memory_bytes_per_rank for work in works)))
            ends.sort()
        return ends


class Timetable:
    """The moments at which nodes of one kind have room for ranks of so many devices, memory aside.

    Args:
        ends_on: what is given back on a node when, the first first.
        opens_ns: the first moment of a node, 0 for now; -1 for never.
    """

    def __init__(
        self,
        pool: Pool,
        devices_per_rank: int,
        ends_on: Callable[[Node], list[End]],
        opens_ns: Callable[[Node], int],
    ) -> None:
        self._opens_ns = opens_ns
        self.changed: dict[str, None] = {}
        self._pool = pool
        self._shape = Gang(1, devices_per_rank, 0)
        self._ends_on = ends_on
        self._moments_of: list[list[Moment]] = []
        self._order: SortedList[Moment] = SortedList()

    def refresh(self) -> None:
        """Looks again at the nodes that changed."""
        pool = self._pool
        if len(self._moments_of) < len(pool.nodes):
            shape = self._shape
            self._moments_of = [self._moments(position, shape) for position in range(len(pool.nodes))]
            self._order = SortedList(moment for moments in self._moments_of for moment in moments)
        else:
            for node_id in self.changed:
                position = pool.position_of(node_id)
                before, after = self._moments_of[position], self._moments(position, self._shape)
                if before != after:
                    self._replace(before, after)
                    self._moments_of[position] = after
        self.changed.clear()

    def _replace(self, before: list[Moment], after: list[Moment]) -> None:
        """Puts the moments of a node in place of its earlier ones, and leaves those that are in both."""
        old = new = 0
        while old < len(before) or new < len(after):
            if new == len(after) or (old < len(before) and before[old] < after[new]):
                self._order.remove(before[old])
                old += 1
            elif old == len(before) or after[new] < before[old]:
                self._order.add(after[new])
                new += 1
            else:
                old += 1
                new += 1

    def __iter__(self) -> Iterator[Moment]:
        return iter(self._order)

    def first_room(self, gang: Gang) -> tuple[int, dict[str, Hold]] | None:
        """When every rank has room at the earliest, and what to hold on which nodes."""
        moments = self._order if gang.memory_bytes_per_rank == 0 else self._with_memory(gang)
        first = list(islice(moments, gang.num_ranks))
        if len(first) < gang.num_ranks:
            return None
        ranks_at: dict[int, int] = {}
        for _, position in first:
            ranks_at[position] = ranks_at.get(position, 0) + 1
        holds = {
            self._pool.nodes[position].node_id: Hold(
                ranks * gang.devices_per_rank, ranks * gang.memory_bytes_per_rank
            )
            for position, ranks in sorted(ranks_at.items())
        }
        return first[-1][0], holds

    def _with_memory(self, gang: Gang) -> Iterator[Moment]:
        """The moments for ranks that need memory too: never before those for devices alone, node by node."""
        ready: list[tuple[Moment, int]] = []
        moments_of: dict[int, list[Moment]] = {}
        for bound in self._order:
            while ready and ready[0][0] <= bound:
                yield self._next_of(ready, moments_of)
            position = bound[1]
            if position not in moments_of:
                moments = moments_of[position] = self._moments(position, gang)
                if moments:
                    heapq.heappush(ready, (moments[0], 0))
        while ready:
            yield self._next_of(ready, moments_of)

    @staticmethod
    def _next_of(ready: list[tuple[Moment, int]], moments_of: dict[int, list[Moment]]) -> Moment:
        moment, index = heapq.heappop(ready)
        moments = moments_of[moment[1]]
        if index + 1 < len(moments):
            heapq.heappush(ready, (moments[index + 1], index + 1))
        return moment

    def _moments(self, position: int, shape: Gang) -> list[Moment]:
        node = self._pool.nodes[position]
        first_ns = self._opens_ns(node)
        if not node.is_open or first_ns < 0:
            return []
        num_free, memory_bytes = len(node.free), node.free_memory_bytes
        slots = num_slots(num_free, memory_bytes, shape)
        moments = [(first_ns, position)] * slots
        for end_ns, num_devices, given_back_bytes in self._ends_on(node):
            num_free += num_devices
            memory_bytes += given_back_bytes
            more = num_slots(num_free, memory_bytes, shape) - slots
            if more > 0:
                moments += [(max(end_ns, first_ns), position)] * more
                slots += more
        return moments


def always_open(node: Node) -> int:  # noqa: ARG001 - the same for every node
    """When a node takes work: now."""
    return 0


def expected_end_ns(state: CoreState, work: Work) -> int:
    """When a work is expected to give back its devices; -1 for never, `UNKNOWN_NS` and more for unknown."""
    if work.state in LEAVING:
        return 0
    if work.kind == "replica":
        return -1
    predicted_run_ns = state.jobs[work.owner_id].predicted_run_ns
    return work.leased_ns + predicted_run_ns if predicted_run_ns else UNKNOWN_NS + work.fence
