"""Faults of the control core, planted by somebody who has not read the checker.

Each fault is a patch of one function of the core, and what it would do to a user. They are written from the
issue's text and from reports of users of other platforms (numbers in brackets), not from what is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from groundplane.control import jobs as jobs_module
from groundplane.control import queue as queue_module
from groundplane.control.actions import AnyAction, JobEnded, RankPlacement, StartWork
from groundplane.control.context import Context
from groundplane.control.core import ControlCore
from groundplane.control.events import NodeFenced, NodeSilent, RestartPolicy, WorkGone
from groundplane.control.jobs import Jobs
from groundplane.control.ledger import Ledger
from groundplane.control.nodes import Nodes
from groundplane.control.services import REPLICA_STOP_GRACE_NS, Services
from groundplane.control.shares import Shares
from groundplane.control.state import CoreState, Job, Node, Service, Work

Patch = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, Patch] = {}


def fault(plant: Patch) -> Patch:
    """Takes a fault into the list, under its function's name."""
    FAULTS[plant.__name__] = plant
    return plant


# What cannot be seen is taken for dead, or the dead for alive ---------------------------------------------


@fault
def release_on_silence(patch: pytest.MonkeyPatch) -> None:
    """A healthy job is given up because its node was not heard (SkyPilot 10123)."""
    dispatch = ControlCore._dispatch

    def silent_is_dead(core: ControlCore, event: Any) -> None:
        dispatch(core, event)
        if isinstance(event, NodeSilent) and event.node_id in core.state.nodes:
            for work_id in core.state.nodes[event.node_id].holders():
                work = core.state.works[work_id]
                core._gone(work, work.fence, "failed", "silent")

    patch.setattr(ControlCore, "_dispatch", silent_is_dead)


@fault
def release_on_stop_request(patch: pytest.MonkeyPatch) -> None:
    """Devices come back when a stop is asked for, not when all is gone (Ray 66199)."""
    request_stop = Context.request_stop

    def stop_and_release(context: Context, work: Work, **how: Any) -> None:
        request_stop(context, work, **how)
        for rank in work.placement:
            node = context.state.nodes[rank.node_id]
            if node.leases.pop(work.work_id, None):
                node.free = tuple(sorted({*node.free, *rank.devices}))
                context.node_changed(node)

    patch.setattr(Context, "request_stop", stop_and_release)


@fault
def old_proof_fences_a_new_life(patch: pytest.MonkeyPatch) -> None:
    """Proof of an earlier life of a node is taken for proof of this one."""
    fenced = Nodes.fenced

    def any_boot(nodes: Nodes, event: NodeFenced) -> list[Work]:
        node = nodes._context.state.nodes.get(event.node_id)
        return fenced(nodes, event if node is None else replace(event, boot=node.boot))

    patch.setattr(Nodes, "fenced", any_boot)


@fault
def success_before_the_partition_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A job that had succeeded runs again (SkyPilot 6133)."""

    def ignore(jobs: Jobs, event: WorkGone) -> None:
        jobs._context.ignore("report on a work that is gone")

    patch.setattr(Jobs, "late_report", ignore)


@fault
def a_lost_part_leaves_the_rest_running(patch: pytest.MonkeyPatch) -> None:
    """A node of a gang is lost and nobody stops the others (Kubeflow Trainer 2000)."""
    patch.setattr(Jobs, "attempt_lost_node", lambda *_: None)


@fault
def a_rejoined_node_keeps_its_old_leases(patch: pytest.MonkeyPatch) -> None:
    """A node boots anew, and what ran in its earlier life is still thought to run."""
    fence = Nodes._fence

    def joined_without_loss(nodes: Nodes, node: Node) -> list[Work]:
        if node.state == "up":
            nodes._change(node, "fenced")
            return []
        return fence(nodes, node)

    patch.setattr(Nodes, "_fence", joined_without_loss)


# Fencing and failover -------------------------------------------------------------------------------------


@fault
def reports_of_any_fence_are_taken(patch: pytest.MonkeyPatch) -> None:
    """A report of an earlier attempt ends a later one."""
    patch.setattr(ControlCore, "_reported_work", lambda core, work_id, _fence: _leased(core, work_id))

    def release_any(ledger: Ledger, work: Work, _fence: int, **how: Any) -> None:
        release(ledger, work, work.fence, **how)

    release = Ledger.release
    patch.setattr(Ledger, "release", release_any)


def _leased(core: ControlCore, work_id: str) -> Work | None:
    work = core.state.works.get(work_id)
    return work if work is not None and work.fence > 0 else None


@fault
def fences_begin_anew_after_failover(patch: pytest.MonkeyPatch) -> None:
    """Fencing numbers are given out twice."""
    _after_restore(patch, lambda state: setattr(state, "next_fence", max(1, state.next_fence - 2)))


@fault
def a_lease_is_forgotten_on_failover(patch: pytest.MonkeyPatch) -> None:
    """A restored core thinks that devices are free which a work holds."""

    def forget(state: CoreState) -> None:
        for node in state.nodes.values():
            if node.leases:
                _, devices = node.leases.popitem()
                node.free = tuple(sorted((*node.free, *devices)))
                return

    _after_restore(patch, forget)


@fault
def timers_are_lost_on_failover(patch: pytest.MonkeyPatch) -> None:
    """A job that backed off never comes back."""
    _after_restore(patch, lambda state: state.timers.clear())


@fault
def what_runs_is_started_again_after_failover(patch: pytest.MonkeyPatch) -> None:
    """A control plane that comes back starts its works a second time, beside the first."""
    pending = ControlCore.pending_actions

    def and_again(core: ControlCore) -> list[AnyAction]:
        again = [
            StartWork(work.work_id, work.kind, work.owner_id, work.fence + 1, work.placement, work.generation)
            for work in core.state.works.values()
            if work.state in {"running", "stepping", "ready"}
        ]
        return [*pending(core), *again]

    patch.setattr(ControlCore, "pending_actions", and_again)


@fault
def stops_are_not_repeated_after_failover(patch: pytest.MonkeyPatch) -> None:
    """A stop that was lost with the control plane is never asked for again: an orphan (GPUStack 2595)."""
    pending = ControlCore.pending_actions
    patch.setattr(
        ControlCore,
        "pending_actions",
        lambda core: [action for action in pending(core) if type(action).__name__ != "StopWork"],
    )


@fault
def decisions_depend_on_what_is_not_in_the_state(patch: pytest.MonkeyPatch) -> None:
    """The order of nodes after a replay is another one."""
    calls = [0]
    start = Jobs.start

    def count(jobs: Jobs, job: Job, placement: tuple[RankPlacement, ...]) -> None:
        calls[0] += 1
        job.reason = f"start {calls[0]}"
        start(jobs, job, placement)

    patch.setattr(Jobs, "start", count)


def _after_restore(patch: pytest.MonkeyPatch, damage: Callable[[CoreState], None]) -> None:
    restore = ControlCore.restore.__func__  # type: ignore[attr-defined]

    def damaged(cls: type[ControlCore], data: bytes) -> ControlCore:
        core: ControlCore = restore(cls, data)
        damage(core.state)
        return cls(core.state)

    patch.setattr(ControlCore, "restore", classmethod(damaged))


# Gangs and quotas -----------------------------------------------------------------------------------------


@fault
def half_a_gang_is_placed(patch: pytest.MonkeyPatch) -> None:
    """A gang starts without its last rank (Volcano 3373)."""
    start = Jobs.start

    def without_the_last(jobs: Jobs, job: Job, placement: tuple[RankPlacement, ...]) -> None:
        start(jobs, job, placement[:-1] if len(placement) > 1 else placement)

    patch.setattr(Jobs, "start", without_the_last)


@fault
def a_device_is_leased_twice(patch: pytest.MonkeyPatch) -> None:
    """A leased device stays among the free ones."""
    lease = Ledger.lease

    def keep_free(ledger: Ledger, work: Work, placement: Any, now_ns: int) -> None:
        before = {rank.node_id: ledger._state.nodes[rank.node_id].free for rank in placement}
        lease(ledger, work, placement, now_ns)
        if work.work_id.endswith(".a2"):
            for node_id, free in before.items():
                ledger._state.nodes[node_id].free = free

    patch.setattr(Ledger, "lease", keep_free)


@fault
def quota_is_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """A queue is charged twice for what it holds."""
    add = Shares.add

    def twice(shares: Shares, work: Work) -> None:
        add(shares, work)
        add(shares, work)

    patch.setattr(Shares, "add", twice)


@fault
def quota_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    """Quota is held by works that are gone (Kueue 14811)."""
    patch.setattr(Shares, "subtract", lambda *_: None)


@fault
def limits_are_passed(patch: pytest.MonkeyPatch) -> None:
    """A queue borrows beyond its limit (Kueue 14609)."""
    patch.setattr(Shares, "limit_reached", lambda *_: None)


@fault
def memory_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    """A node's memory leaks away with every work."""
    release = Ledger._release

    def leak(ledger: Ledger, work: Work, node_id: str, *rest: Any) -> None:
        free_bytes = ledger._state.nodes[node_id].free_memory_bytes
        release(ledger, work, node_id, *rest)
        ledger._state.nodes[node_id].free_memory_bytes = free_bytes

    patch.setattr(Ledger, "_release", leak)


@fault
def cordoned_nodes_take_work(patch: pytest.MonkeyPatch) -> None:
    """A node that an operator closed gets new work."""
    patch.setattr(Node, "is_open", property(lambda node: node.state == "up"))


@fault
def lower_priority_goes_first(patch: pytest.MonkeyPatch) -> None:
    """Priorities are read the wrong way round."""
    entry_of_job = queue_module.entry_of_job

    def inverted(job: Job, *order: Any) -> Any:
        entry = entry_of_job(job, *order)
        return entry._replace(minus_priority=-entry.minus_priority)

    for module in ("context", "scheduler", "explain"):
        patch.setattr(f"groundplane.control.{module}.entry_of_job", inverted)


@fault
def backfill_delays_the_head(patch: pytest.MonkeyPatch) -> None:
    """What is kept for the first in the queue is given to others: a large gang starves."""
    patch.setattr(Context, "_num_beside_plan", lambda _context, node: node.num_free)
    patch.setattr(Context, "_kept_by_plan_bytes", lambda *_: 0)


# Recovery -------------------------------------------------------------------------------------------------


@fault
def the_restart_budget_has_no_end(patch: pytest.MonkeyPatch) -> None:
    """A job that always fails is restarted for ever."""
    recover = Jobs._recover

    def unbounded(jobs: Jobs, job: Job, detail: str) -> None:
        job.restart = RestartPolicy(10**6, job.restart.backoff_ns, job.restart.backoff_limit_ns)
        recover(jobs, job, detail)

    patch.setattr(Jobs, "_recover", unbounded)


@fault
def there_is_no_back_off(patch: pytest.MonkeyPatch) -> None:
    """A failed job starts again at once, however often it failed."""
    patch.setattr(jobs_module, "backoff_ns", lambda *_: 0)


@fault
def a_cancelled_job_comes_back(patch: pytest.MonkeyPatch) -> None:
    """A cancelled attempt counts as a failure, and is restarted."""
    gone = Jobs.attempt_gone

    def forget_the_wish(jobs: Jobs, work: Work, fence: int, outcome: str, detail: str) -> None:
        if work.stop_intent == "cancel":
            work.stop_intent = "node_lost"
        gone(jobs, work, fence, outcome, detail)

    patch.setattr(Jobs, "attempt_gone", forget_the_wish)


@fault
def an_end_is_told_twice(patch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the end of a job hears of it two times."""
    end = Jobs._end

    def twice(jobs: Jobs, job: Job, *rest: Any) -> None:
        end(jobs, job, *rest)
        jobs._context.actions += [each for each in jobs._context.actions if isinstance(each, JobEnded)][-1:]

    patch.setattr(Jobs, "_end", twice)


@fault
def a_failed_attempt_counts_as_success(patch: pytest.MonkeyPatch) -> None:
    """A job whose ranks failed is said to have succeeded."""
    gone = Jobs.attempt_gone

    def lie(jobs: Jobs, work: Work, fence: int, outcome: str, detail: str) -> None:
        gone(jobs, work, fence, "succeeded" if outcome == "failed" else outcome, detail)

    patch.setattr(Jobs, "attempt_gone", lie)


@fault
def timers_fire_early(patch: pytest.MonkeyPatch) -> None:
    """A late firing of a timer that was moved is taken for the new one."""
    fired = ControlCore._timer_fired

    def early(core: ControlCore, timer_id: str) -> None:
        timer = core.state.timers.get(timer_id)
        if timer is not None:
            timer.at_ns = min(timer.at_ns, core.state.now_ns)
        fired(core, timer_id)

    patch.setattr(ControlCore, "_timer_fired", early)


@fault
def replicas_are_cut_off(patch: pytest.MonkeyPatch) -> None:
    """Scaling down stops replicas with requests in flight (Dynamo 13559)."""

    def at_once(services: Services, service: Service, replica: Work, intent: str, reason: str) -> None:
        if replica.state in {"queued", "backing_off"}:
            services._drop(service, replica)
            return
        replica.stop_intent, replica.stop_reason = intent, reason
        services._context.request_stop(replica, intent=intent, reason=reason, grace_ns=REPLICA_STOP_GRACE_NS)

    patch.setattr(Services, "_let_go", at_once)


@fault
def one_replica_too_many(patch: pytest.MonkeyPatch) -> None:
    """A service runs more replicas than are wanted."""
    reconcile = Services._reconcile

    def one_more(services: Services, service: Service) -> None:
        wanted = service.num_replicas
        service.num_replicas = wanted + 1 if wanted else 0
        reconcile(services, service)
        service.num_replicas = wanted

    patch.setattr(Services, "_reconcile", one_more)


# The books ------------------------------------------------------------------------------------------------


@fault
def starting_counts_as_busy(patch: pytest.MonkeyPatch) -> None:
    """Time before the first rank runs is booked as work."""
    lease = Ledger.lease

    def busy_at_once(ledger: Ledger, work: Work, placement: Any, now_ns: int) -> None:
        lease(ledger, work, placement, now_ns)
        work.is_busy = True

    patch.setattr(Ledger, "lease", busy_at_once)


@fault
def nothing_is_ever_wasted(patch: pytest.MonkeyPatch) -> None:
    """What a failure lost is booked as useful."""
    release = Ledger.release

    def clean(ledger: Ledger, work: Work, fence: int, *, is_failure: bool, now_ns: int) -> None:
        del is_failure
        release(ledger, work, fence, is_failure=False, now_ns=now_ns)

    patch.setattr(Ledger, "release", clean)


@fault
def checkpoints_save_nothing(patch: pytest.MonkeyPatch) -> None:
    """All since the start of an attempt counts as lost, whatever was saved."""
    patch.setattr(Ledger, "commit", lambda *_: None)


@fault
def maintenance_is_booked_as_free(patch: pytest.MonkeyPatch) -> None:
    """Time of closed nodes is sold as free."""
    settle = Ledger.settle_node

    def as_free(ledger: Ledger, node: Node, now_ns: int) -> None:
        settle(ledger, node, now_ns)
        node.accounts.free_ns += node.accounts.maintenance_ns
        node.accounts.maintenance_ns = 0

    patch.setattr(Ledger, "settle_node", as_free)


@fault
def time_is_lost_between_two_leases(patch: pytest.MonkeyPatch) -> None:
    """Free time is not booked when a node opens or closes: the accounts do not sum to all."""
    change = Nodes._change

    def unsettled(nodes: Nodes, node: Node, trigger: str) -> None:
        node.since_ns = nodes._context.now_ns
        change(nodes, node, trigger)

    patch.setattr(Nodes, "_change", unsettled)
