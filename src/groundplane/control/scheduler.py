"""Who is placed now: queues in turn, and backfill that never delays the head where times are predicted.

Queues are served as their shares say (`shares.py`), the entries of one in strict order. The first entry that
does not fit is the head; entries that would not fit even if every job were over are passed over, since
waiting for them would help nobody, and so is a queue whose next entry would pass a limit. The head gets a
plan (`plan.py`): devices on named nodes, and the time from which they will be free. Another entry may start

- where the free devices, less its own, still cover what the plan keeps on each node, or
- anywhere, if it is predicted to end before the planned start.

The plan is made when first something could overtake the head, and stays as it is until the head starts, is
removed, reaches a limit, is overtaken by a higher priority, or a node of the plan closes. So a head waits at
most for the works that were on its planned nodes when the plan was made, and for those predicted to end
before its start: each of them once, since nothing new gets in after that time. This bounds the wait also
where predictions are wrong or missing. A queue whose turn it is has had least, and once something could pass
its first entry that has a plan and stays the head: nothing starves. (What a guarantee promises comes before:
a queue with none has no claim to what those with one ask for.)
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from groundplane.control.actions import RankPlacement
from groundplane.control.context import Context
from groundplane.control.elastic import larger_gangs
from groundplane.control.events import Gang
from groundplane.control.placement import Pools
from groundplane.control.preemption import Preemption
from groundplane.control.queue import Entry, Line, Shelves, entry_of_job, entry_of_replica, put
from groundplane.control.rooms import Rooms
from groundplane.control.state import HeadPlan
from groundplane.control.turns import Turns
from groundplane.spec.errors import InvariantError

BACKFILL_TURNS = 50
"""How many lines of one queue a pass looks at behind the head, one after the other, and starts nothing."""

Start = Callable[[Entry, tuple[RankPlacement, ...]], None]


class Scheduler:
    """One pass after each event that changed something.

    Args:
        start: leases the placement to the entry's job or replica and says what to do.
    """

    def __init__(self, context: Context, start: Start, preemption: Preemption) -> None:
        self._context = context
        self._start = start
        self._preemption = preemption

    def run(self) -> None:
        """Places what can be placed, then sets the fragmentation clocks."""
        queue = self._context.queue
        if queue.needs_full_pass or queue.new_entries:
            if queue.needs_full_pass or self._any_new_goes_first():
                self._full_pass()
            else:
                shelves: Shelves = {}
                for leaf, entry, gang in queue.new_entries:
                    if self._context.pools.have_slots(gang):
                        put(shelves, leaf, gang, entry)
                if shelves:
                    self._backfill(shelves)
            if self._context.calendar and self._fill_windows() and self._waiting_head() is None:
                self._full_pass()
            self._preemption.review(self._waiting_head())
            queue.settled()
        elif self._context.state.yielding or self._context.state.refused_id:
            self._preemption.review(self._waiting_head())
        self._set_clocks()

    def _any_new_goes_first(self) -> bool:
        """Whether a new entry may be served before the head; any may where nobody is kept waiting for it."""
        head, state = self._waiting_head(), self._context.state
        if head is None or (state.preemption is not None and state.head_plan is None):
            return True
        leaf, entry, _ = head
        return any(self._is_ahead(new, at, leaf, entry) for new, at, _ in self._context.queue.new_entries)

    def _is_ahead(self, leaf: str, entry: Entry, head_leaf: str, head: Entry) -> bool:
        """Whether an entry may delay the head: before it in its own queue; in another of higher priority, or
        with a guarantee that the head's queue has not."""
        if leaf == head_leaf:
            return entry < head
        return entry.minus_priority < head.minus_priority or self._context.shares.is_owed(leaf, head_leaf)

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
        return entry_of_job(state.jobs[state.head_id], state.order)

    def _waiting_head(self) -> tuple[str, Entry, Gang] | None:
        """The head with its queue and gang, if it still waits."""
        state = self._context.state
        replica, job = state.works.get(state.head_id), state.jobs.get(state.head_id)
        if replica is not None and replica.state == "queued":
            service = state.services[replica.owner_id]
            leaf = self._context.shares.leaf_of(service.queue)
            return leaf, entry_of_replica(service, replica), replica.gang
        if job is not None and job.state == "queued":
            return self._context.shares.leaf_of(job.queue), self._context.entry_of(job), job.gang
        return None

    def plan(self) -> HeadPlan | None:
        """The head's plan: the one that is kept, or the one that would be made now."""
        state, head = self._context.state, self.head()
        return None if head is None else state.head_plan or self._new_plan(head)

    def _full_pass(self) -> None:
        """Serves the queues up to the first entry that must wait, then fills the gaps behind it.

        A head with a plan stays the head, whatever the shares of the queues have become: only entries that
        are ahead of it by priority or by guarantee go first.
        """
        context = self._context
        head, before = self._waiting_head(), context.state.head_plan
        context.state.head_id = ""
        if head is not None and before is not None:
            leaf, entry, gang = head
            if self._serve(before, ahead_of=(leaf, entry)):
                return
            if context.shares.limit_reached(leaf, gang) is None:
                self._starts_or_blocks(entry, gang, before)
            if context.state.head_id:
                self._backfill(context.queue.shelves)
                return
        if not self._serve(before, ahead_of=None):
            context.set_plan(None)

    def _serve(self, before: HeadPlan | None, ahead_of: tuple[str, Entry] | None) -> bool:
        """Starts entries in their turn; True if one had to wait and became the head."""
        context = self._context
        lines = context.queue.lines
        if ahead_of is None:
            turns = Turns(context.shares, lines)
        else:
            head_leaf, head = ahead_of
            if not context.queue.outranks(head):
                owed = [leaf for leaf in lines if context.shares.is_owed(leaf, head_leaf)]
                firsts = [line.first for line in lines[head_leaf].values() if line.first is not None]
                if not owed and min(firsts) == head:
                    return False
                lines = {leaf: lines[leaf] for leaf in (head_leaf, *owed)}
            turns = Turns(
                context.shares, lines, lambda leaf, entry: self._is_ahead(leaf, entry, head_leaf, head)
            )
        while (turn := turns.next()) is not None:
            if context.shares.limit_reached(turn.leaf, turn.gang) is not None:
                turns.skip_queue(turn.leaf)
            elif self._starts_or_blocks(turn.entry, turn.gang, before):
                if context.state.head_id:
                    if ahead_of is None and context.queue.outranks(turn.entry):
                        # Somebody of higher priority waits in another queue: that one must not be delayed.
                        context.state.head_id = ""
                        if self._serve(before, (turn.leaf, turn.entry)):
                            return True
                        # What went first may be a replica, which stays: this one may have no place left.
                        self._starts_or_blocks(turn.entry, turn.gang, before)
                        if not context.state.head_id:
                            return self._serve(before, None)
                    self._backfill(context.queue.shelves)
                    return True
                if turn.line.first is not None:
                    turns.go_on(turn, turn.line.first)
        return False

    def _starts_or_blocks(self, entry: Entry, gang: Gang, before: HeadPlan | None) -> bool:
        """Starts the entry, or makes it the head; False if it could not even run if all jobs were over."""
        context = self._context
        placement = self._place(context.pools, entry, gang)
        if placement is not None:
            self._start(entry, placement)
            return True
        kept = self._kept(before, entry)
        if kept is None and not self._can_ever_fit(entry, gang):
            return False
        context.state.head_id = entry.waiting_id
        context.set_plan(kept)
        return True

    def _can_ever_fit(self, entry: Entry, gang: Gang) -> bool:
        """Whether it would fit if every job were over: told by an index, or by a plan where memory counts."""
        if gang.part is not None:
            return self._new_plan(entry) is not None
        if not self._context.capacity.have_slots(gang):
            return False
        return gang.memory_bytes_per_rank == 0 or self._new_plan(entry) is not None

    def _kept(self, plan: HeadPlan | None, entry: Entry) -> HeadPlan | None:
        if plan is not None and entry.number and plan.service_id == entry.owner_id:
            if plan.owner_id != entry.waiting_id:
                plan = structs.replace(plan, owner_id=entry.waiting_id)
        elif plan is None or plan.owner_id != entry.waiting_id:
            return None
        nodes = self._context.state.nodes
        return plan if all(nodes[node_id].is_open for node_id in plan.holds) else None

    def _new_plan(self, entry: Entry) -> HeadPlan | None:
        return self._context.planner.plan(entry.waiting_id, self.gang_of(entry))

    def _backfill(self, shelves: Shelves) -> None:
        """Starts what does not delay the head, whose plan is made when first something could.

        Args:
            shelves: who may start: all that waits, or only what is new.
        """
        context = self._context
        if not context.state.order.is_backfilling:
            return
        if context.pools.num_free() == 0 and not context.sharing:
            return
        rooms, beside = Rooms(context.pools), Rooms(context.beside)
        waiting = self._with_room(shelves, rooms, beside)
        if not waiting:
            return
        turns = Turns(context.shares, waiting)
        num_in_vain: dict[str, int] = {}
        while (turn := turns.next()) is not None:
            entry, gang, leaf, line = turn
            num_in_vain[leaf] = num_in_vain.get(leaf, 0) + 1
            if num_in_vain[leaf] > BACKFILL_TURNS:
                turns.skip_queue(leaf)
                continue
            if not rooms.has(gang):
                continue
            if context.shares.limit_reached(leaf, gang) is not None:
                turns.skip_queue(leaf)
                continue
            window_ns = self._window_ns(self._made_plan())
            placement = self._place(context.beside, entry, gang) if beside.has(gang) else None
            if placement is None:
                short = line.first_within(window_ns)
                if short is None:
                    continue
                if short != entry:
                    turns.go_on(turn, short)
                    continue
                placement = self._place(context.pools, entry, gang)
                if placement is None:
                    continue
            if line is not context.queue.lines[leaf].get(gang):
                line.remove(entry)  # from the copy, as starting does from the queue
            self._start(entry, placement)
            num_in_vain[leaf] = 0
            rooms.started()
            beside.started()
            following = line.first if beside.has(gang) else line.first_within(window_ns)
            if following is not None:
                turns.go_on(turn, following)

    def _place(self, pools: Pools, entry: Entry, gang: Gang) -> tuple[RankPlacement, ...] | None:
        """Devices for the entry; more than it needs if it can use them and nothing else waits."""
        context = self._context
        if not entry.number and len(context.queue) == 1:
            job = context.state.jobs[entry.owner_id]
            for larger in larger_gangs(job):
                if context.shares.limit_reached(context.shares.leaf_of(job.queue), larger) is None:
                    placement = pools.place(larger, self._end_ns(entry, larger))
                    if placement is not None:
                        return placement
        end_ns = self._end_ns(entry, gang)
        plan = context.state.head_plan
        if pools is context.pools and plan is not None and plan.owner_id != entry.waiting_id:
            # Who goes before the head, or ends before it, leaves its plan alone where there is a choice.
            return context.beside.place(gang, end_ns) or pools.place(gang, end_ns)
        return pools.place(gang, end_ns)

    def _end_ns(self, entry: Entry, gang: Gang) -> int:
        """When it would be expected to end; -1 where that does not decide about its place."""
        state = self._context.state
        if not (state.order.packs_by_end and entry.predicted_run_ns) or gang.num_ranks > 1:
            return -1
        return state.now_ns + entry.predicted_run_ns

    def _fill_windows(self) -> bool:
        """Starts on nodes that are set aside what may run there; True if anything was started.

        Before a window begins that is what is predicted to end in time; then, works of its queue. None of it
        delays the head, whose plan has these nodes only when the window is over.
        """
        context = self._context
        has_started = False
        for window_id, window in context.state.windows.items():
            pools = context.calendar.pools[window_id]
            if (pools.num_free() == 0 and not context.sharing) or (window.has_begun and not window.queue):
                continue
            longest_ns = window.begin_ns - context.now_ns
            if longest_ns < 0 and not window.has_begun:
                continue  # its timer is late
            lines = {
                leaf: of_leaf
                for leaf, of_leaf in context.queue.lines.items()
                if not window.has_begun or window.queue in context.shares.path(leaf)
            }
            turns = Turns(context.shares, lines)
            while (turn := turns.next()) is not None:
                entry = turn.entry if window.has_begun else turn.line.first_within(longest_ns)
                if entry is None or not pools.have_room(turn.gang):
                    continue
                if entry != turn.entry:
                    turns.go_on(turn, entry)
                    continue
                if context.shares.limit_reached(turn.leaf, turn.gang) is not None:
                    turns.skip_queue(turn.leaf)
                    continue
                placement = pools.place(turn.gang)
                if placement is not None:
                    self._start(entry, placement)
                    has_started = True
                    if turn.line.first is not None:
                        turns.go_on(turn, turn.line.first)
        return has_started

    def _with_room(self, shelves: Shelves, rooms: Rooms, beside: Rooms) -> dict[str, dict[Gang, Line]]:
        """The lines whose gangs may have room and, where a plan is made, entries that would not delay it."""
        plan = self._context.state.head_plan
        window_ns = 0 if plan is None else self._window_ns(plan)
        waiting: dict[str, dict[Gang, Line]] = {}
        found: dict[Gang, tuple[bool, bool]] = {}
        for leaf, of_leaf in shelves.items():
            for bare, shelf in of_leaf.items():
                room = found.get(bare)
                if room is None:
                    has_room = rooms.has(bare)
                    room = found[bare] = has_room, has_room and (plan is None or beside.has(bare))
                if room[1] or (room[0] and shelf.has_within(window_ns)):
                    waiting.setdefault(leaf, {}).update(shelf.lines)
        return waiting

    def _window_ns(self, plan: HeadPlan) -> int:
        """How long a job may run, by prediction, to end before the planned start.

        Not at all beside victims, which may be gone at any time.
        """
        return 0 if plan.start_ns < 0 or plan.victims else plan.start_ns - self._context.now_ns

    def _made_plan(self) -> HeadPlan:
        state = self._context.state
        if state.head_plan is None:
            head = self.head()
            if head is not None:
                self._context.set_plan(self._new_plan(head))
            if state.head_plan is None:
                raise InvariantError(
                    f"no plan for {state.head_id!r}, which was found to fit an empty cluster"
                )
        return state.head_plan

    def _gang_of_head(self) -> Gang | None:
        state = self._context.state
        if not state.head_id:
            return None
        replica = state.works.get(state.head_id)
        return state.jobs[state.head_id].gang if replica is None else replica.gang

    def _set_clocks(self) -> None:
        """Runs the fragmentation clock of each kind with devices enough by count, yet not for the head."""
        state = self._context.state
        gang = self._gang_of_head()
        for pool in self._context.pools:
            clock = state.clocks[pool.device_kind]
            is_fragmented = gang is not None and pool.num_free >= gang.num_ranks * gang.devices_per_rank
            if is_fragmented and clock.running_since_ns < 0:
                clock.running_since_ns = state.now_ns
            elif not is_fragmented and clock.running_since_ns >= 0:
                clock.total_ns = clock.reading_ns(state.now_ns)
                clock.running_since_ns = -1
