"""Which running attempts would have to go for a gang to be placed, and lose least by it.

Candidates are attempts of jobs that may be preempted. First come those that are larger than they need, of
which only the ranks beyond their smallest gang count; then the lowest priority, then those that hold not many
more devices than the gang needs, then those with the least time since their last checkpoint. For each shape
of rank that was asked about, a timetable (`plan.py`) keeps in that order at which nodes the next rank would
have room if all candidates up to there were gone. `victim_search.py` walks along it. Derived state;
decides nothing.
"""

from __future__ import annotations

from dataclasses import replace

from groundplane.control.calendar import Calendar
from groundplane.control.devices import UNUSED, fits
from groundplane.control.elastic import is_enlarged
from groundplane.control.events import Gang
from groundplane.control.ledger import ranks_by_node
from groundplane.control.placement import Pool, Pools
from groundplane.control.plan import MAX_TIMETABLES, End, Timetable
from groundplane.control.shares import Shares
from groundplane.control.state import CoreState, Node, Work
from groundplane.control.victim_search import Claim, Found, Search, candidates_on


class Victims:
    """Timetables of what preemption would free, over the nodes of `pools`."""

    def __init__(self, state: CoreState, pools: Pools, shares: Shares, calendar: Calendar) -> None:
        self._calendar = calendar
        self._state = state
        self._pools = pools
        self._shares = shares
        self._timetables: dict[tuple[str, int, int], Timetable] = {}
        self._num_of_priority: dict[int, int] = {}
        self._num_enlarged = 0
        for work in state.works.values():
            if work.placement:
                self.add(work)

    def add(self, work: Work) -> None:
        """A work holds devices now."""
        self._count(work, 1)

    def subtract(self, work: Work) -> None:
        """A work holds nothing any more."""
        self._count(work, -1)

    def may_find(self, claim: Claim) -> bool:
        """Whether there can be victims at all: larger than needed, of lower priority, or by a guarantee."""
        if self._num_enlarged:
            return True
        if claim.rules.priority_gap:
            highest = claim.priority - claim.rules.priority_gap
            for priority in self._num_of_priority:
                if priority <= highest:
                    return True
        if claim.rules.reclaims:
            for name in self._shares.path(claim.leaf):
                if -self._shares.num_borrowed(name) >= claim.num_devices:
                    return True
        return False

    def node_changed(self, node: Node) -> None:
        """The node has opened or closed, or a work here came, went, or has more or less to lose."""
        for (device_kind, *_), timetable in self._timetables.items():
            if device_kind == node.device_kind:
                timetable.changed[node.node_id] = None

    def work_changed(self, work: Work) -> None:
        """The work has more or less to lose than before."""
        if self._timetables:
            for node_id in ranks_by_node(work.placement):
                self.node_changed(self._state.nodes[node_id])

    def forget(self) -> None:
        """Nobody asks any more."""
        self._timetables.clear()

    def search(self, claim: Claim) -> Found | None:
        """Who has to go so that the gang is placed; None if the rules do not allow it.

        Nobody has to where enough devices are free or on their way already.
        """
        if claim.gang.part is not None:
            claim = replace(claim, gang=self._device_for(claim.gang))
        best: Found | None = None
        for pool in self._pools.pools_for(claim.gang):
            found = Search(self._state, self._shares, claim, pool).run(self._timetable(pool, claim))
            if found is not None and (best is None or found.last_key < best.last_key):
                best = found
        return best

    def _device_for(self, gang: Gang) -> Gang:
        """Who asks for a part takes a whole device from others, of a kind that can give the part."""
        kinds, known = gang.kinds or tuple(self._state.kinds), self._state.kinds
        able = tuple(kind for kind in kinds if gang.part and fits(UNUSED, gang.part, known.get(kind)))
        return Gang(1, 1, gang.memory_bytes_per_rank, able or ("",))

    def _opens(self, node: Node) -> int:
        return -1 if self._calendar.is_set_aside(node) else 0

    def _count(self, work: Work, sign: int) -> None:
        if work.kind == "replica":
            return
        job = self._state.jobs[work.owner_id]
        self._num_enlarged += sign * is_enlarged(job, work)
        priority = job.priority
        num = self._num_of_priority.get(priority, 0) + sign
        if num:
            self._num_of_priority[priority] = num
        else:
            del self._num_of_priority[priority]

    def _timetable(self, pool: Pool, claim: Claim) -> Timetable:
        gang, size = claim.gang, claim.size
        key = (pool.device_kind, gang.devices_per_rank, size)
        timetable = self._timetables.get(key)
        if timetable is None:
            if len(self._timetables) >= MAX_TIMETABLES:
                del self._timetables[next(iter(self._timetables))]

            def ends_on(node: Node) -> list[End]:
                found = candidates_on(self._state, node, size)
                return [(key, num_devices, num_bytes) for key, _, num_devices, num_bytes in found]

            timetable = self._timetables[key] = Timetable(pool, gang.devices_per_rank, ends_on, self._opens)
        timetable.refresh()
        return timetable
