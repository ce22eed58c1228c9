"""Who is placed now: strict order, and backfill that never delays the head where times are predicted.

The queue is served in order. The first entry that does not fit is the head; entries that would not fit even
if every job were over are passed over, since waiting for them would help nobody. The head gets a plan
(`plan.py`): devices on named nodes, and the time from which they will be free. An entry behind the head may
start

- anywhere, if it is predicted to end before the planned start, or
- where the free devices, less its own, still cover what the plan keeps on each node.

The plan is made when first something could overtake the head, and stays as it is until the head starts, is
removed, is overtaken by a higher priority, or a node of the plan closes. So a head waits at most for the
works that were on its planned nodes when the plan was made, and for those predicted to end before its
start: each of them once, since nothing new gets in after that time. This bounds the wait also where
predictions are wrong or missing; nothing starves.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from groundplane.control.actions import RankPlacement
from groundplane.control.context import Context
from groundplane.control.events import Gang
from groundplane.control.queue import Entry, Line, entry_of_job, entry_of_replica
from groundplane.control.sorted_list import SortedList
from groundplane.control.state import HeadPlan
from groundplane.spec.errors import InvariantError

BACKFILL_DEPTH = 100
"""How many entries of one line a pass steps over that would have room now but would delay the head."""

Start = Callable[[Entry, tuple[RankPlacement, ...]], None]


class Scheduler:
    """One pass after each event that changed something.

    Args:
        start: leases the placement to the entry's job or replica and says what to do.
    """

    def __init__(self, context: Context, start: Start) -> None:
        self._context = context
        self._start = start

    def run(self) -> None:
        """Places what can be placed, then sets the fragmentation clocks."""
        queue = self._context.queue
        if queue.needs_full_pass or queue.new_entries:
            head = None if queue.needs_full_pass else self.head()
            if head is not None and all(entry > head for entry, _ in queue.new_entries):
                lines: dict[Gang, Line] = {}
                for entry, gang in queue.new_entries:
                    lines.setdefault(gang, SortedList()).add(entry)
                self._backfill(list(lines.items()))
            else:
                self._full_pass()
            queue.settled()
        self._set_clocks()

    def gang_of(self, entry: Entry) -> Gang:
        """What the entry needs."""
        state = self._context.state
        return state.works[entry.waiting_id].gang if entry.number else state.jobs[entry.owner_id].gang

    def head(self) -> Entry | None:
        """The entry that is blocked and must not be delayed."""
        state = self._context.state
        if not state.head_id:
            return None
        replica = state.works.get(state.head_id)
        if replica is not None:
            return entry_of_replica(state.services[replica.owner_id], replica)
        return entry_of_job(state.jobs[state.head_id])

    def plan(self) -> HeadPlan | None:
        """The head's plan: the one that is kept, or the one that would be made now."""
        state, head = self._context.state, self.head()
        return None if head is None else state.head_plan or self._new_plan(head)

    def _full_pass(self) -> None:
        """Serves the queue in order up to the first that must wait, then fills the gaps behind it."""
        context = self._context
        state, lines = context.state, context.queue.lines
        before = state.head_plan
        state.head_id = ""
        firsts = [(line.first(), gang) for gang, line in lines.items()]
        firsts.sort(key=_in_order)
        while firsts:
            entry, gang = firsts[0]
            placement = context.pools.place(gang)
            if placement is not None:
                self._start(entry, placement)
                if gang in lines:
                    firsts[0] = (lines[gang].first(), gang)
                    firsts.sort(key=_in_order)
                else:
                    del firsts[0]
                continue
            del firsts[0]
            kept = self._kept(before, entry)
            if kept is not None or self._can_ever_fit(entry, gang):
                state.head_id = entry.waiting_id
                context.set_plan(kept)
                if context.pools.num_free():
                    self._backfill([(gang, lines[gang]) for _, gang in firsts])
                return
        context.set_plan(None)

    def _can_ever_fit(self, entry: Entry, gang: Gang) -> bool:
        """Whether it would fit if every job were over: told by an index, or by a plan where memory counts."""
        if not self._context.capacity.have_slots(gang):
            return False
        return gang.memory_bytes_per_rank == 0 or self._new_plan(entry) is not None

    def _kept(self, plan: HeadPlan | None, entry: Entry) -> HeadPlan | None:
        if plan is None or plan.owner_id != entry.waiting_id:
            return None
        nodes = self._context.state.nodes
        return plan if all(nodes[node_id].is_open for node_id in plan.holds) else None

    def _new_plan(self, entry: Entry) -> HeadPlan | None:
        return self._context.planner.plan(entry.waiting_id, self.gang_of(entry))

    def _backfill(self, candidates: list[tuple[Gang, Line]]) -> None:
        """Starts what does not delay the head, whose plan is made when first something could.

        Args:
            candidates: lines of entries behind the head, each in order.
        """
        context = self._context
        heap = [(line.first(), number, 0) for number, (_, line) in enumerate(candidates)]
        heapq.heapify(heap)
        has_room_beside = [True] * len(candidates)
        while heap:
            entry, number, num_stepped_over = heapq.heappop(heap)
            gang, line = candidates[number]
            if context.state.head_plan is None and not context.pools.have_room(gang):
                continue
            plan = self._made_plan()
            placement = context.beside.place(gang) if has_room_beside[number] else None
            if placement is None:
                has_room_beside[number] = False
                if self._ends_before(plan, entry):
                    placement = context.pools.place(gang)
                elif plan.start_ns < 0:
                    continue
            if placement is not None:
                if line is not context.queue.lines.get(gang):
                    line.remove(entry)  # from the copy, as starting does from the queue
                self._start(entry, placement)
            elif not context.pools.have_room(gang):
                continue  # none of its line has room
            else:
                num_stepped_over += 1
            following = line.at(num_stepped_over) if num_stepped_over <= BACKFILL_DEPTH else None
            if following is not None:
                heapq.heappush(heap, (following, number, num_stepped_over))

    def _made_plan(self) -> HeadPlan:
        state, head = self._context.state, self.head()
        if state.head_plan is None and head is not None:
            self._context.set_plan(self._new_plan(head))
        if state.head_plan is None:
            raise InvariantError(f"no plan for {state.head_id!r}, which was found to fit an empty cluster")
        return state.head_plan

    def _ends_before(self, plan: HeadPlan, entry: Entry) -> bool:
        if entry.number or plan.start_ns < 0:
            return False
        state = self._context.state
        predicted_run_ns = state.jobs[entry.owner_id].predicted_run_ns
        return predicted_run_ns > 0 and state.now_ns + predicted_run_ns <= plan.start_ns

    def _set_clocks(self) -> None:
        """Runs the fragmentation clock of each kind with devices enough by count, yet not for the head."""
        state = self._context.state
        head = self.head()
        gang = None if head is None else self.gang_of(head)
        for pool in self._context.pools:
            clock = state.clocks[pool.device_kind]
            is_fragmented = gang is not None and pool.num_free >= gang.num_ranks * gang.devices_per_rank
            if is_fragmented and clock.running_since_ns < 0:
                clock.running_since_ns = state.now_ns
            elif not is_fragmented and clock.running_since_ns >= 0:
                clock.total_ns = clock.reading_ns(state.now_ns)
                clock.running_since_ns = -1


def _in_order(first: tuple[Entry, Gang]) -> Entry:
    return first[0]
