"""Who is placed now: strict order, and backfill that never delays the head where times are predicted.

The queue is served in order. The first entry that does not fit is the head; entries that would not fit even
if every job were over are passed over, since waiting for them would help nobody. The head gets a plan
(`plan.py`): devices on named nodes, and the time from which they will be free. An entry behind the head may
start

- anywhere, if it is predicted to end before the planned start, or
- where the free devices, less its own, still cover what the plan keeps on each node.

The plan stays as it is until the head starts, is removed, is overtaken by a higher priority, or a node of
the plan closes. So a head waits at most for the works that were on its planned nodes when the plan was
made, and for those predicted to end before its start: each of them once, since nothing new gets in after
that time. This bounds the wait also where predictions are wrong or missing; nothing starves.
"""

from __future__ import annotations

from collections.abc import Callable

from groundplane.control.actions import RankPlacement
from groundplane.control.context import Context
from groundplane.control.events import Gang
from groundplane.control.placement import NO_HOLDS
from groundplane.control.plan import plan_head
from groundplane.control.queue import Entry, entry_of_job, entry_of_replica
from groundplane.control.state import HeadPlan

BACKFILL_DEPTH = 100
"""How many entries behind the head a pass looks at."""
PASSED_OVER_LIMIT = 1000
"""How many entries that cannot fit a pass steps over in search of its head."""

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
        """Places what can be placed, then sets the head's plan and the fragmentation clocks."""
        queue = self._context.queue
        if queue.needs_full_pass or queue.new_entries:
            plan = self._context.state.head_plan
            if not queue.needs_full_pass and plan is not None and self._all_behind(plan):
                self._backfill(plan, sorted(queue.new_entries))
            else:
                self._full_pass()
            queue.settled()
        self._set_clocks()

    def gang_of(self, entry: Entry) -> Gang:
        """What the entry needs."""
        state = self._context.state
        return state.works[entry.waiting_id].gang if entry.number else state.jobs[entry.owner_id].gang

    def head(self) -> Entry | None:
        """The entry that the plan is for."""
        plan = self._context.state.head_plan
        return None if plan is None else self._entry_of(plan)

    def _entry_of(self, plan: HeadPlan) -> Entry:
        state = self._context.state
        replica = state.works.get(plan.owner_id)
        if replica is not None:
            return entry_of_replica(state.services[replica.owner_id], replica)
        return entry_of_job(state.jobs[plan.owner_id])

    def _all_behind(self, plan: HeadPlan) -> bool:
        head = self._entry_of(plan)
        return all(entry > head for entry in self._context.queue.new_entries)

    def _full_pass(self) -> None:
        state, entries = self._context.state, self._context.queue.entries
        before, state.head_plan = state.head_plan, None
        hopeless: dict[Gang, None] = {}
        position = 0
        while position < min(len(entries), PASSED_OVER_LIMIT):
            entry = entries[position]
            gang = self.gang_of(entry)
            if gang in hopeless:
                position += 1
                continue
            placement = self._context.pools.place(gang)
            if placement is not None:
                self._start(entry, placement)
                continue
            state.head_plan = self._kept(before, entry) or plan_head(
                state, self._context.pools, entry.waiting_id, gang
            )
            if state.head_plan is not None:
                self._backfill(state.head_plan, entries[position + 1 : position + 1 + BACKFILL_DEPTH])
                return
            hopeless[gang] = None
            position += 1

    def _kept(self, plan: HeadPlan | None, entry: Entry) -> HeadPlan | None:
        if plan is None or plan.owner_id != entry.waiting_id:
            return None
        nodes = self._context.state.nodes
        return plan if all(nodes[node_id].is_open for node_id in plan.holds) else None

    def _backfill(self, plan: HeadPlan, candidates: list[Entry]) -> None:
        failed: dict[tuple[Gang, bool], None] = {}
        for entry in candidates:
            gang = self.gang_of(entry)
            ends_before = self._ends_before(plan, entry)
            if (gang, ends_before) in failed:
                continue
            placement = self._context.pools.place(gang, NO_HOLDS if ends_before else plan.holds)
            if placement is None:
                failed[gang, ends_before] = None
            else:
                self._start(entry, placement)

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
