"""What the parts of the core share while one event is handled. Holds state, decides nothing."""

from __future__ import annotations

from groundplane.control.actions import AnyAction, RankPlacement, SetTimer, StopWork
from groundplane.control.calendar import Calendar
from groundplane.control.fragmentation import Mix
from groundplane.control.ledger import Ledger, ranks_by_node
from groundplane.control.lifecycle.attempt import ATTEMPT
from groundplane.control.lifecycle.replica import REPLICA
from groundplane.control.lifecycle.table import Lifecycle
from groundplane.control.placement import Pools
from groundplane.control.plan import LEAVING, Planner
from groundplane.control.queue import Entry, Queue, entry_of_job, entry_of_replica
from groundplane.control.shares import Shares
from groundplane.control.sharing import PartPlacer, Sharing
from groundplane.control.state import Closed, CoreState, HeadPlan, Job, Node, Service, Timer, Work
from groundplane.control.victims import Victims


class Context:
    """The state, what is derived from it, and the actions decided so far for the event at hand."""

    def __init__(self, state: CoreState) -> None:
        self.state = state
        self.ledger = Ledger(state)
        self.shares = Shares(state)
        self.mix = Mix(state)
        self.sharing = Sharing(state, self.mix)
        self.calendar = Calendar(state, self.sharing)
        self.pools = Pools(
            self._num_not_set_aside,
            parts=PartPlacer(self.sharing, self.calendar.is_set_aside),
            empty_ns=self._empty_ns,
        )
        self.capacity = Pools(self._num_not_held_for_good)
        self.beside = Pools(
            self._num_beside_plan,
            self._kept_by_plan_bytes,
            PartPlacer(self.sharing, self._is_in_plan),
            self._empty_ns,
        )
        self.planner = Planner(state, self.pools, self.sharing, self.calendar)
        self.victims = Victims(state, self.pools, self.shares, self.calendar)
        self.queue = Queue()
        self._entry_of: dict[str, Entry] = {}
        self.actions: list[AnyAction] = []
        for node in state.nodes.values():
            self.node_changed(node)
        self.fill_queue()
        self.queue.settled()

    def fill_queue(self) -> None:
        """Puts all that waits where the policy says."""
        self.queue.clear()
        self._entry_of.clear()
        for job in self.state.jobs.values():
            if job.state == "queued":
                self.add_job(job)
        for work in self.state.works.values():
            if work.state == "queued":
                self.add_replica(self.state.services[work.owner_id], work)

    def add_job(self, job: Job) -> None:
        """A job waits."""
        if self.state.kept:
            self.release_kept(job.job_id)
        entry = self._entry_of[job.job_id] = entry_of_job(job, self.state.order)
        self.queue.add(self.shares.leaf_of(job.queue), entry, job.gang)

    def remove_job(self, job: Job) -> None:
        """A job waits no longer."""
        self.queue.remove(self.shares.leaf_of(job.queue), self._entry_of.pop(job.job_id), job.gang)

    def entry_of(self, job: Job) -> Entry:
        """The entry of a job that waits."""
        return self._entry_of[job.job_id]

    def add_replica(self, service: Service, replica: Work) -> None:
        """A replica waits."""
        if self.state.kept:
            self.release_kept(service.service_id)
        self.queue.add(self.shares.leaf_of(service.queue), entry_of_replica(service, replica), replica.gang)

    def remove_replica(self, service: Service, replica: Work) -> None:
        """A replica waits no longer."""
        entry = entry_of_replica(service, replica)
        self.queue.remove(self.shares.leaf_of(service.queue), entry, replica.gang)

    @property
    def now_ns(self) -> int:
        """Time of the event at hand."""
        return self.state.now_ns

    def ignore(self, reason: str) -> None:
        """Counts an event that came too late, twice, or for something unknown."""
        self.state.ignored[reason] = self.state.ignored.get(reason, 0) + 1

    def set_timer(self, timer_id: str, timer: Timer) -> None:
        """Sets a timer, or moves it."""
        self.state.timers[timer_id] = timer
        self.actions.append(SetTimer(timer_id, timer.at_ns))

    def drop_timer(self, timer_id: str) -> None:
        """Forgets a timer; should the driver bring it all the same, it is ignored."""
        self.state.timers.pop(timer_id, None)

    def lease(self, work: Work, placement: tuple[RankPlacement, ...]) -> None:
        """Leases devices to a work and takes them out of the placement index."""
        self.ledger.lease(work, placement, self.now_ns)
        self.state.works[work.work_id] = work
        self.shares.add(work)
        self.victims.add(work)
        self._placement_changed(work)

    def request_stop(self, work: Work, *, intent: str, reason: str, grace_ns: int) -> None:
        """Asks the engine to end a work. It keeps its leases until proof comes."""
        work.state = lifecycle_of(work).after(work.state, "stop")
        work.stop_intent, work.stop_reason, work.stop_grace_ns = intent, reason, grace_ns
        self.ledger.set_busy(work, False, self.now_ns)
        self.end_yield(work)
        self.end_eviction(work)
        self.is_leaving(work)
        self.actions.append(StopWork(work.work_id, work.fence, grace_ns, reason))

    def remove_work(self, work: Work, *, fence: int, is_failure: bool) -> None:
        """The work is proven gone: its leases return and it is forgotten."""
        work.state = lifecycle_of(work).after(work.state, "gone")
        self.ledger.release(work, fence, is_failure=is_failure, now_ns=self.now_ns)
        self.end_yield(work)
        self.end_eviction(work)
        self.shares.subtract(work)
        self.victims.subtract(work)
        del self.state.works[work.work_id]
        self._placement_changed(work)
        self.queue.capacity_changed()

    def end_yield(self, work: Work) -> None:
        """The work no longer waits for a checkpoint to stop at."""
        if self.state.yielding.pop(work.work_id, None) is not None:
            self.drop_timer(yield_timer(work))

    def end_eviction(self, work: Work) -> None:
        """The work goes now, or may stay after all."""
        if self.state.evicting.pop(work.work_id, None) is not None:
            self.drop_timer(evict_timer(work))

    def is_leaving(self, work: Work) -> None:
        """The work has begun to drain or to stop: its devices are expected back, which was not so before."""
        self._placement_changed(work)
        self.queue.capacity_changed()

    def node_changed(self, node: Node) -> None:
        """A node has joined, opened, closed or lost its leases."""
        self.pools.update(node)
        self.sharing.update(node)
        self.beside.update(node)
        self.planner.node_changed(node)
        self.victims.node_changed(node)
        self.capacity.update(node)
        self.calendar.node_changed(node)

    def close_node(self, node: Node, why: Closed, note: str) -> None:
        """Closes a node for a reason beside cordons, or opens it (""); what runs there goes on."""
        self.ledger.settle_node(node, self.now_ns)
        node.closed_for, node.closed_note = why, note
        self.node_changed(node)
        self.queue.capacity_changed()

    def release_kept(self, owner_id: str) -> None:
        """The owner of a work that lost its node waits again, or is over: the spares kept for it open."""
        for node_id in self.state.kept.pop(owner_id, ()):
            if self.state.nodes[node_id].closed_for == "kept":
                self.close_node(self.state.nodes[node_id], "", "")

    def set_plan(self, plan: HeadPlan | None) -> None:
        """Keeps another plan for the head of the queue, or none."""
        before = self.state.head_plan
        self.state.head_plan = plan
        if before is not plan:
            for each in (before, plan):
                for node_id in () if each is None else each.holds:
                    self.beside.update(self.state.nodes[node_id])

    def _placement_changed(self, work: Work) -> None:
        for node_id in ranks_by_node(work.placement):
            node = self.state.nodes[node_id]
            self.pools.update(node)
            if work.gang.part is not None:
                self.sharing.update(node)
            self.beside.update(node)
            self.planner.node_changed(node)
            self.victims.node_changed(node)
            if self.calendar:
                self.calendar.node_changed(node)
            if work.kind == "replica":
                self.capacity.update(node)

    def _empty_ns(self, node: Node) -> int:
        return self.planner.empty_ns(node)

    def _num_not_set_aside(self, node: Node) -> int:
        """Free devices; -1 for a node of a window, which is in no ordinary pool."""
        return -1 if self.calendar and self.calendar.is_set_aside(node) else len(node.free)

    def _num_beside_plan(self, node: Node) -> int:
        """Free devices that the head's plan does not keep."""
        if self.calendar and self.calendar.is_set_aside(node):
            return -1
        plan = self.state.head_plan
        hold = None if plan is None else plan.holds.get(node.node_id)
        return node.num_free if hold is None else max(0, node.num_free - hold.num_devices)

    def _is_in_plan(self, node: Node) -> bool:
        """Whether the head's plan counts on the node: no part there may go to anybody else."""
        plan = self.state.head_plan
        return (plan is not None and node.node_id in plan.holds) or self.calendar.is_set_aside(node)

    def _kept_by_plan_bytes(self, node: Node) -> int:
        plan = self.state.head_plan
        hold = None if plan is None else plan.holds.get(node.node_id)
        return 0 if hold is None else hold.memory_bytes

    def _num_not_held_for_good(self, node: Node) -> int:
        """Devices that are free, or will be when jobs end and what is leaving has left."""
        works = self.state.works
        held = (
            len(devices)
            for work_id, devices in node.leases.items()
            if works[work_id].kind == "replica" and works[work_id].state not in LEAVING
        )
        num_held = sum(held)
        for each in node.shared:
            sharers = [works[work_id] for work_id in each.parts]
            num_held += any(work.kind == "replica" and work.state not in LEAVING for work in sharers)
        return node.num_devices - num_held


def yield_timer(work: Work) -> str:
    """Id of the timer that ends the wait for a checkpoint to stop at."""
    return f"{work.work_id}.yield"


def evict_timer(work: Work) -> str:
    """Id of the timer at which a work that was asked to go no longer waits for a checkpoint."""
    return f"{work.work_id}.evict"


def lifecycle_of(work: Work) -> Lifecycle:
    """The table that the work lives by."""
    return ATTEMPT if work.kind == "attempt" else REPLICA
