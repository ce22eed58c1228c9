"""Why a service has fewer replicas ready than are wanted: what each of the others does or waits for."""

from __future__ import annotations

from msgspec import Struct

from groundplane.control.core import ControlCore
from groundplane.control.explain import (
    AHEAD_SHOWN,
    Ahead,
    entries_ahead,
    expected_start_ns,
    needed_text,
    waiting_reason,
)
from groundplane.control.queue import entry_of_replica
from groundplane.control.state import Service, Work


class ReplicaExplanation(Struct, frozen=True):
    """One replica and why it is as it is; `expected_start_ns` is -1 where it cannot be told."""

    work_id: str
    state: str
    reason: str
    num_ahead: int
    ahead: tuple[Ahead, ...]
    expected_start_ns: int


class ServiceExplanation(Struct, frozen=True):
    """The answer."""

    service_id: str
    state: str
    reason: str
    num_wanted: int
    num_ready: int
    needed: str
    replicas: tuple[ReplicaExplanation, ...]


def explain_service(core: ControlCore, service_id: str, now_ns: int) -> ServiceExplanation | None:
    """Explains the state of a service as of `now_ns`; None for one that never was."""
    service = core.state.services.get(service_id)
    if service is None:
        return None
    works = [core.state.works[work_id] for work_id in service.replicas]
    num_ready = sum(work.state == "ready" for work in works)
    return ServiceExplanation(
        service_id=service_id,
        state=service.state,
        reason=_service_reason(service, num_ready),
        num_wanted=service.num_replicas,
        num_ready=num_ready,
        needed=needed_text(service.gang),
        replicas=tuple(_replica(core, service, work, now_ns) for work in works),
    )


def _service_reason(service: Service, num_ready: int) -> str:
    if service.state != "active":
        return service.reason or service.state
    if num_ready >= service.num_replicas:
        return "all replicas that are wanted are ready"
    last = f"; the last that failed: {service.reason}" if service.reason else ""
    return f"{num_ready} of {service.num_replicas} replicas are ready{last}"


def _replica(core: ControlCore, service: Service, work: Work, now_ns: int) -> ReplicaExplanation:
    ahead: list[Ahead] = []
    expected_ns, reason = -1, ""
    match work.state:
        case "queued":
            leaf, mine = core.shares.leaf_of(service.queue), entry_of_replica(service, work)
            ahead = entries_ahead(core, leaf, mine)
            reason = waiting_reason(core, leaf, mine, work.gang, len(ahead))
            expected_ns = expected_start_ns(core, work.work_id)
        case "backing_off":
            timer = core.state.timers.get(f"{work.work_id}.backoff")
            wait_ms = max(0, timer.at_ns - now_ns) // 10**6 if timer else 0
            reason = f"restart {service.restarts_used} of {service.restart.budget} in {wait_ms} ms"
        case "unready":
            timer = core.state.timers.get(f"{work.work_id}.unready")
            reason = "it does not answer"
            if timer is not None:
                reason += f"; it is replaced in {max(0, timer.at_ns - now_ns) // 10**6} ms unless it does"
        case "draining":
            reason = f"{work.stop_reason}; it ends its requests"
        case "stopping":
            reason = f"{work.stop_reason}; waits for proof that all of it is gone"
        case "starting" | "running":
            reason = "it has not answered yet"
    return ReplicaExplanation(
        work_id=work.work_id,
        state=work.state,
        reason=reason,
        num_ahead=len(ahead),
        ahead=tuple(ahead[:AHEAD_SHOWN]),
        expected_start_ns=expected_ns,
    )
