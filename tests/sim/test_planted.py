"""Faults planted in the control core, each of which the simulation must find within 200 seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from groundplane.control import jobs, services
from groundplane.control.actions import JobEnded, SetTimer, StartWork
from groundplane.control.context import Context
from groundplane.control.core import ControlCore
from groundplane.control.events import NodeFenced, NodeSilent
from groundplane.control.ledger import Ledger
from groundplane.control.nodes import Nodes
from groundplane.control.placement import Pools
from groundplane.control.queue import Queue
from groundplane.control.shares import Shares
from groundplane.control.state import Node
from groundplane.sim.fuzz import run_seed

MAX_SEEDS = 200
IS_OPEN = Node.is_open

Plant = Callable[[pytest.MonkeyPatch], None]


def wrap(patch: pytest.MonkeyPatch, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replaces a method by what `make` builds around the original."""
    patch.setattr(owner, name, make(getattr(owner, name)))


def release_on_silence(patch: pytest.MonkeyPatch) -> None:
    def make(dispatch: Any) -> Any:
        def planted(core: ControlCore, event: Any) -> None:
            if isinstance(event, NodeSilent) and event.node_id in core.state.nodes:
                event = NodeFenced(event.node_id, core.state.nodes[event.node_id].boot)
            dispatch(core, event)

        return planted

    wrap(patch, ControlCore, "_dispatch", make)


def start_half_a_gang(patch: pytest.MonkeyPatch) -> None:
    def make(place: Any) -> Any:
        def planted(pools: Pools, gang: Any, *rest: Any) -> Any:
            placement = place(pools, gang, *rest)
            return None if placement is None else placement[: max(1, len(placement) // 2)]

        return planted

    wrap(patch, Pools, "place", make)


def forget_a_lease_on_failover(patch: pytest.MonkeyPatch) -> None:
    def make(init: Any) -> Any:
        def planted(context: Context, state: Any) -> None:
            for node in state.nodes.values():
                if node.leases:
                    _, devices = node.leases.popitem()
                    node.free = tuple(sorted(node.free + devices))
            init(context, state)

        return planted

    wrap(patch, Context, "__init__", make)


def forget_the_queue_on_failover(patch: pytest.MonkeyPatch) -> None:
    def make(init: Any) -> Any:
        def planted(context: Context, state: Any) -> None:
            init(context, state)
            context.queue = Queue()

        return planted

    wrap(patch, Context, "__init__", make)


def other_node_order_after_failover(patch: pytest.MonkeyPatch) -> None:
    def make(init: Any) -> Any:
        def planted(context: Context, state: Any) -> None:
            init(context, state)
            context.pools = Pools()
            for node in reversed(state.nodes.values()):
                context.pools.update(node)

        return planted

    wrap(patch, Context, "__init__", make)


def ignore_the_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControlCore, "_reported_work", lambda core, work_id, fence: core.state.works.get(work_id))
    wrap(
        patch, Ledger, "release",
        lambda release: lambda ledger, work, fence, **rest: release(ledger, work, work.fence, **rest),
    )  # fmt: skip


def reuse_fences(patch: pytest.MonkeyPatch) -> None:
    def make(lease: Any) -> Any:
        def planted(ledger: Ledger, *args: Any) -> None:
            lease(ledger, *args)
            ledger._state.next_fence = max(1, ledger._state.next_fence - 1)

        return planted

    wrap(patch, Ledger, "lease", make)


def count_idle_time_twice(patch: pytest.MonkeyPatch) -> None:
    def make(settle: Any) -> Any:
        def planted(ledger: Ledger, node: Node, now_ns: int) -> None:
            node.accounts.free_ns += (now_ns - node.since_ns) // 2
            settle(ledger, node, now_ns)

        return planted

    wrap(patch, Ledger, "settle_node", make)


def waste_and_busy_both(patch: pytest.MonkeyPatch) -> None:
    def make(release: Any) -> Any:
        def planted(ledger: Ledger, work: Any, node_id: str, ranks: int, is_failure: bool, ns: int) -> None:
            release(ledger, work, node_id, ranks, is_failure, ns)
            if is_failure:
                ledger._state.nodes[node_id].accounts.busy_ns += work.at_risk_ns

        return planted

    wrap(patch, Ledger, "_release", make)


def book_wasted_work_as_busy(patch: pytest.MonkeyPatch) -> None:
    def make(release: Any) -> Any:
        def planted(ledger: Ledger, work: Any, node_id: str, ranks: int, is_failure: bool, ns: int) -> None:
            release(ledger, work, node_id, ranks, False, ns)

        return planted

    wrap(patch, Ledger, "_release", make)


def book_maintenance_as_free(patch: pytest.MonkeyPatch) -> None:
    def make(change: Any) -> Any:
        def planted(nodes: Nodes, node: Node, trigger: str) -> None:
            patch.setattr(Node, "is_open", property(lambda node: True))
            nodes._context.ledger.settle_node(node, nodes._context.now_ns)
            patch.setattr(Node, "is_open", IS_OPEN)
            change(nodes, node, trigger)

        return planted

    wrap(patch, Nodes, "_change", make)


def restart_without_proof(patch: pytest.MonkeyPatch) -> None:
    def planted(core: ControlCore, works: Any, node_id: str) -> None:
        for work in works:
            core._gone(work, work.fence, "failed", f"node {node_id} was lost")

    patch.setattr(ControlCore, "_works_lost_node", planted)


def release_on_cancel(patch: pytest.MonkeyPatch) -> None:
    def make(cancel: Any) -> Any:
        def planted(self: jobs.Jobs, event: Any) -> None:
            cancel(self, event)
            job = self._context.state.jobs.get(event.job_id)
            if job is not None and job.state == "stopping":
                work = self._context.state.works[job.work_id]
                self.attempt_gone(work, work.fence, "stopped", "")

        return planted

    wrap(patch, jobs.Jobs, "cancel_requested", make)


def release_when_drained(patch: pytest.MonkeyPatch) -> None:
    def make(drained: Any) -> Any:
        def planted(self: services.Services, replica: Any) -> None:
            drained(self, replica)
            self.replica_gone(replica, replica.fence, "stopped", "")

        return planted

    wrap(patch, services.Services, "replica_drained", make)


def believe_old_proof(patch: pytest.MonkeyPatch) -> None:
    def make(fenced: Any) -> Any:
        def planted(nodes: Nodes, event: NodeFenced) -> Any:
            node = nodes._context.state.nodes.get(event.node_id)
            return fenced(nodes, event if node is None else NodeFenced(event.node_id, node.boot))

        return planted

    wrap(patch, Nodes, "fenced", make)


def place_on_cordoned_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Node, "is_open", property(lambda node: node.state == "up"))


def one_restart_too_many(patch: pytest.MonkeyPatch) -> None:
    def make(recover: Any) -> Any:
        def planted(self: jobs.Jobs, job: Any, detail: str) -> None:
            if job.restarts_used == job.restart.budget:
                job.restarts_used -= 1
            recover(self, job, detail)

        return planted

    wrap(patch, jobs.Jobs, "_recover", make)


def no_back_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jobs, "backoff_ns", lambda policy, num_in_row: 0)


def end_twice(patch: pytest.MonkeyPatch) -> None:
    def make(late: Any) -> Any:
        def planted(self: jobs.Jobs, event: Any) -> None:
            late(self, event)
            job = self._context.state.jobs.get(event.work_id.rpartition(".a")[0])
            if job is not None and job.state == "succeeded":
                self._context.actions.append(JobEnded(job.job_id, "succeeded", ""))

        return planted

    wrap(patch, jobs.Jobs, "late_report", make)


def forget_timers_on_failover(patch: pytest.MonkeyPatch) -> None:
    wrap(
        patch, ControlCore, "pending_actions",
        lambda pending: lambda core: [a for a in pending(core) if not isinstance(a, SetTimer)],
    )  # fmt: skip


def forget_starts_on_failover(patch: pytest.MonkeyPatch) -> None:
    wrap(
        patch, ControlCore, "pending_actions",
        lambda pending: lambda core: [a for a in pending(core) if not isinstance(a, StartWork)],
    )  # fmt: skip


def keep_the_memory(patch: pytest.MonkeyPatch) -> None:
    def make(release: Any) -> Any:
        def planted(ledger: Ledger, work: Any, node_id: str, ranks: int, is_failure: bool, ns: int) -> None:
            before = ledger._state.nodes[node_id].free_memory_bytes
            release(ledger, work, node_id, ranks, is_failure, ns)
            if is_failure:
                ledger._state.nodes[node_id].free_memory_bytes = before

        return planted

    wrap(patch, Ledger, "_release", make)


def sleep_when_a_node_comes_back(patch: pytest.MonkeyPatch) -> None:
    def make(changed: Any) -> Any:
        def planted(nodes: Nodes, node: Node) -> None:
            queue = nodes._context.queue
            before = queue.needs_full_pass
            changed(nodes, node)
            queue.needs_full_pass = before

        return planted

    wrap(patch, Nodes, "_changed", make)


def forget_the_limits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shares, "limit_reached", lambda shares, queue, gang: None)


def give_usage_back_twice(patch: pytest.MonkeyPatch) -> None:
    def make(subtract: Any) -> Any:
        def planted(shares: Shares, work: Any) -> None:
            subtract(shares, work)
            if work.lost_nodes:
                subtract(shares, work)

        return planted

    wrap(patch, Shares, "subtract", make)


def look_at_the_queue_only_not_above_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shares, "path", lambda shares, queue: [queue] if queue else [])


PLANTS: list[Plant] = [
    forget_the_limits,
    give_usage_back_twice,
    look_at_the_queue_only_not_above_it,
    release_on_silence,
    start_half_a_gang,
    forget_a_lease_on_failover,
    forget_the_queue_on_failover,
    other_node_order_after_failover,
    ignore_the_fence,
    reuse_fences,
    count_idle_time_twice,
    waste_and_busy_both,
    book_wasted_work_as_busy,
    book_maintenance_as_free,
    restart_without_proof,
    release_on_cancel,
    release_when_drained,
    believe_old_proof,
    place_on_cordoned_nodes,
    one_restart_too_many,
    no_back_off,
    end_twice,
    forget_timers_on_failover,
    forget_starts_on_failover,
    keep_the_memory,
    sleep_when_a_node_comes_back,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_planted_fault_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_seed(0).failure is None
    plant(monkeypatch)
    failure = next((r.failure for seed in range(MAX_SEEDS) if (r := run_seed(seed)).failure), None)
    assert failure is not None, f"{plant.__name__} was not found in {MAX_SEEDS} seeds"
    print(f"seed {failure.seed}: {failure.message}")
