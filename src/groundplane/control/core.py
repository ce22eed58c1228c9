"""The control core: one event in, its actions out. Deterministic, without I/O, clock or randomness.

The same events in the same order give the same actions and the same digest, on any machine. What comes from
outside may be late, repeated, out of order or of an old fence: it is recognised, counted in `ignored` and
changes nothing. Only a bug of ours raises (`InvariantError`).
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct

from groundplane import __version__
from groundplane.control import events as ev
from groundplane.control.actions import AnyAction, DrainWork, RankPlacement, SetTimer, StartWork, StopWork
from groundplane.control.context import Context, lifecycle_of
from groundplane.control.elastic import RESIZED, ranks_to_grow_to
from groundplane.control.health import Health
from groundplane.control.jobs import STALLED, Jobs
from groundplane.control.nodes import Nodes
from groundplane.control.preemption import Preemption
from groundplane.control.queue import Entry
from groundplane.control.recovery import Recovery
from groundplane.control.scheduler import Scheduler
from groundplane.control.services import Services
from groundplane.control.state import CoreState, Work
from groundplane.control.windows import Windows
from groundplane.spec.errors import InputError, InvariantError

SCHEMA_VERSION = 10
"""Grows with every change of `CoreState` that an older snapshot does not fit."""


class Snapshot(Struct, frozen=True, forbid_unknown_fields=True):
    """The state with what wrote it."""

    schema_version: int
    code_version: str
    state: CoreState


class _SnapshotHead(Struct, frozen=True):
    """The part of a snapshot that every version can read."""

    schema_version: int
    code_version: str


class ControlCore:
    """The scheduler, the lease ledger and recovery of one platform, real or simulated."""

    def __init__(self, state: CoreState | None = None) -> None:
        self.state = CoreState() if state is None else state
        self._context = Context(self.state)
        self.ledger = self._context.ledger
        self.pools = self._context.pools
        self.shares = self._context.shares
        self.sharing = self._context.sharing
        self.queue = self._context.queue
        self._jobs = Jobs(self._context)
        self._services = Services(self._context)
        self._recovery = Recovery(self._context, self._jobs, self._services)
        self._health = Health(self._context, self._recovery)
        self._nodes = Nodes(self._context, self._health)
        self._windows = Windows(self._context, self._jobs, self._services)
        self._preemption = Preemption(self._context)
        self.scheduler = Scheduler(self._context, self._start, self._preemption)

    def handle(self, now_ns: int, event: ev.AnyEvent) -> list[AnyAction]:
        """Decides what follows from `event`.

        Args:
            now_ns: time of the event; never less than that of the event before.

        Returns:
            Actions in the order in which they are to be carried out.

        Raises:
            InvariantError: time ran backwards, or a bug of ours.
        """
        if now_ns < self.state.now_ns:
            raise InvariantError(f"time ran backwards, from {self.state.now_ns} to {now_ns} ns")
        self.state.now_ns = now_ns
        self.state.num_events += 1
        self._context.actions = []
        self._dispatch(event)
        self.scheduler.run()
        return self._context.actions

    def pending_actions(self) -> list[AnyAction]:
        """What may not have been carried out before a crash; a driver carries it out again after a restart.

        Starts of works not yet seen to run, drains, stops, and every timer that is set. Derived from the
        state, so it is complete whatever was lost between journal and engine. `JobEnded` is not among them:
        a driver tells of an end in the transaction that journals it.
        """
        pending: list[AnyAction] = []
        for work in self.state.works.values():
            if work.state == "starting":
                pending.append(
                    StartWork(
                        work.work_id, work.kind, work.owner_id, work.fence, work.placement, work.generation
                    )
                )
            elif work.state == "draining":
                pending.append(DrainWork(work.work_id, work.fence))
            elif work.state == "stopping":
                pending.append(StopWork(work.work_id, work.fence, work.stop_grace_ns, work.stop_reason))
        pending += [SetTimer(timer_id, timer.at_ns) for timer_id, timer in self.state.timers.items()]
        return pending

    def digest(self) -> str:
        """SHA-256 of the state in canonical form, in hexadecimal."""
        return hashlib.sha256(msgspec.msgpack.encode(self.state, order="deterministic")).hexdigest()

    def snapshot(self) -> bytes:
        """The whole state as msgpack, with schema and code version."""
        return msgspec.msgpack.encode(Snapshot(SCHEMA_VERSION, __version__, self.state))

    @classmethod
    def restore(cls, data: bytes) -> ControlCore:
        """The core that `snapshot` was taken of.

        Raises:
            InputError: not a snapshot, or one of a schema that this version does not read.
        """
        try:
            head = msgspec.msgpack.decode(data, type=_SnapshotHead)
            if head.schema_version != SCHEMA_VERSION:
                raise InputError(
                    f"snapshot of schema {head.schema_version} (groundplane {head.code_version}) "
                    f"cannot be read, only schema {SCHEMA_VERSION}"
                )
            return cls(msgspec.msgpack.decode(data, type=Snapshot).state)
        except msgspec.MsgspecError as error:
            raise InputError(f"is not a snapshot of the control core: {error}") from None

    def _dispatch(self, event: ev.AnyEvent) -> None:
        match event:
            case (
                ev.WorkStarted()
                | ev.WorkReady()
                | ev.WorkUnready()
                | ev.WorkStalled()
                | ev.WorkSlowed()
                | ev.CheckpointCommitted()
                | ev.WorkDrained()
            ):
                self._work_reported(event)
            case ev.WorkGone():
                self._work_gone(event)
            case ev.TimerFired(timer_id):
                self._timer_fired(timer_id)
            case ev.JobSubmitted():
                self._jobs.submitted(event)
            case ev.JobCancelRequested():
                self._jobs.cancel_requested(event)
            case ev.NodeJoined(node_id):
                self._works_lost_node(self._nodes.joined(event), node_id)
            case ev.NodeFenced(node_id):
                self._works_lost_node(self._nodes.fenced(event), node_id)
            case ev.NodeSilent(node_id):
                self._nodes.silent(node_id)
            case ev.NodeBack(node_id):
                self._nodes.back(node_id)
            case ev.NodeCordoned(node_id):
                self._nodes.cordon(node_id, True)
            case ev.NodeUncordoned(node_id):
                self._nodes.cordon(node_id, False)
            case ev.NodeDrainRequested():
                self._health.drain(event)
            case ev.HealthSet():
                self._health.set_rules(event)
            case ev.KindDescribed():
                self._nodes.kind_described(event)
            case ev.WindowSet():
                self._windows.set(event)
            case ev.WindowRemoved(window_id):
                self._windows.ends(window_id)
            case ev.PolicySet():
                self._context.shares.set_policy(event)
                self._context.fill_queue()
            case ev.ServiceDeployed():
                self._services.deployed(event)
            case ev.ServiceScaled():
                self._services.scaled(event)
            case ev.ServiceRemoved():
                self._services.removed(event)

    def _start(self, entry: Entry, placement: tuple[RankPlacement, ...]) -> None:
        if entry.number:
            self._services.start(self.state.works[entry.waiting_id], placement)
        else:
            self._jobs.start(self.state.jobs[entry.owner_id], placement)

    def _reported_work(self, work_id: str, fence: int) -> Work | None:
        """The work that a report is about, if it holds leases under that very fence."""
        work = self.state.works.get(work_id)
        return work if work is not None and fence > 0 and work.fence == fence else None

    def _work_reported(
        self,
        event: ev.WorkStarted
        | ev.WorkReady
        | ev.WorkUnready
        | ev.WorkStalled
        | ev.WorkSlowed
        | ev.CheckpointCommitted
        | ev.WorkDrained,
    ) -> None:
        work = self._reported_work(event.work_id, event.fence)
        if work is None:
            self._context.ignore("report on a work that is gone")
            return
        match event:
            case ev.WorkStarted():
                self._advance(work, "started")
            case ev.WorkReady():
                self._advance(work, "ready")
            case ev.WorkUnready():
                if self._step(work, "unready"):
                    self._services.replica_unready(work)
            case ev.WorkDrained():
                if work.state == "draining":
                    self._services.replica_drained(work)
                else:
                    self._context.ignore("report that changes nothing")
            case ev.WorkStalled(detail=detail):
                self._recovery.stalled(work, detail)
            case ev.WorkSlowed(node_id=node_id, detail=detail):
                self._health.work_slowed(work, node_id, detail)
            case ev.CheckpointCommitted(step=step):
                self._checkpoint_committed(work, step)

    def _advance(self, work: Work, trigger: str) -> None:
        was_starting = work.state == "starting"
        if not self._step(work, trigger):
            return
        if work.kind == "attempt" and was_starting:
            self._jobs.attempt_started(work)
        elif work.kind == "replica" and trigger == "ready":
            self._services.replica_ready(work)

    def _step(self, work: Work, trigger: str) -> bool:
        """Takes one step of the work's lifecycle on a report; False if the report changes nothing."""
        lifecycle = lifecycle_of(work)
        if not lifecycle.allows(work.state, trigger):
            self._context.ignore("report that changes nothing")
            return False
        work.state = lifecycle.after(work.state, trigger)
        return True

    def _checkpoint_committed(self, work: Work, step: int) -> None:
        if work.kind != "attempt" or step <= work.checkpoint_step:
            self._context.ignore("report that changes nothing")
            return
        if work.state == "starting":
            self._advance(work, "started")  # a checkpoint implies it
        work.checkpoint_step = step
        self.ledger.commit(work, self.state.now_ns)
        self._jobs.checkpoint_committed(work, step)
        self._context.victims.work_changed(work)
        if work.work_id in self.state.yielding:
            self._preemption.stop(work)
        elif not len(self.queue) and self.state.jobs[work.owner_id].larger_ranks:
            num_ranks = ranks_to_grow_to(self.state, self.shares, self.pools, work)
            if num_ranks:
                self._jobs.evict(work, f"{RESIZED} to {num_ranks} ranks")
        self._recovery.may_stop(work)

    def _work_gone(self, event: ev.WorkGone) -> None:
        work = self._reported_work(event.work_id, event.fence)
        if work is None:
            self._jobs.late_report(event)
            return
        detail = event.detail or (f"exit code {event.exit_code}" if event.exit_code else "")
        has_failed = event.outcome in {"failed", "start_failed"} and not work.stop_intent
        if has_failed or work.stop_intent == STALLED:
            self._health.work_failed(work, event.node_id)
        self._gone(work, event.fence, event.outcome, detail)

    def _gone(self, work: Work, fence: int, outcome: str, detail: str) -> None:
        if work.kind == "attempt":
            self._jobs.attempt_gone(work, fence, outcome, detail)
        else:
            self._services.replica_gone(work, fence, outcome, detail)

    def _works_lost_node(self, works: list[Work], node_id: str) -> None:
        """The node's leases are back already; what runs elsewhere of these works has to end too."""
        for work in works:
            if all(rank.node_id in work.lost_nodes for rank in work.placement):
                self._gone(work, work.fence, "failed", f"node {node_id} was lost")
            elif work.kind == "attempt":
                self._jobs.attempt_lost_node(work, node_id)
            else:
                self._services.replica_lost_node(work, node_id)

    def _timer_fired(self, timer_id: str) -> None:
        timer = self.state.timers.get(timer_id)
        if timer is None or self.state.now_ns < timer.at_ns:
            self._context.ignore("timer that is not set or not due")
            return
        del self.state.timers[timer_id]
        match timer.kind:
            case "job_backoff":
                self._jobs.backed_off(self.state.jobs[timer.target_id])
            case "window_begin":
                self._windows.begins(timer.target_id)
            case "window_end":
                self._windows.ends(timer.target_id)
            case "job_urgent":
                self._jobs.urgent(self.state.jobs[timer.target_id])
            case "job_deadline":
                self._jobs.deadline_reached(self.state.jobs[timer.target_id])
            case "job_limit":
                self._jobs.time_over(self.state.jobs[timer.target_id])
            case "replica_backoff":
                self._services.backed_off(self.state.works[timer.target_id])
            case "yield":
                self._preemption.stop(self.state.works[timer.target_id])
            case "preemption":
                self._preemption.retry()
            case "replica_unready":
                self._services.unready_too_long(self.state.works[timer.target_id])
            case "evict":
                self._recovery.may_stop(self.state.works[timer.target_id])
            case "node_drain":
                self._health.drain_over(timer.target_id)
            case "node_quarantine":
                self._health.quarantine_over(timer.target_id)
            case "replica_drain":
                self._services.replica_drained(self.state.works[timer.target_id])
