"""What the API, the CLI and the simulator may read of the core: frozen copies, made on demand.

Nothing here changes the core. Times are integer nanoseconds; -1 stands for "not yet" or "not known".
"""

from __future__ import annotations

from msgspec import Struct

from groundplane.control.actions import PlacedPart, RankPlacement
from groundplane.control.core import ControlCore
from groundplane.control.events import UNITS_PER_DEVICE, Gang
from groundplane.control.explain import JobExplanation as JobExplanation  # noqa: PLC0414
from groundplane.control.explain import explain_job as explain_job  # noqa: PLC0414
from groundplane.control.state import Accounts, Job, Node, Service, Work


class JobView(Struct, frozen=True):
    """One job."""

    job_id: str
    name: str
    queue: str
    priority: int
    state: str
    gang: Gang
    num_attempts: int
    restarts_used: int
    restart_budget: int
    work_id: str
    submitted_ns: int
    first_started_ns: int
    ended_ns: int
    checkpoint_step: int
    reason: str


class WorkView(Struct, frozen=True):
    """One attempt or replica that is not gone."""

    work_id: str
    kind: str
    owner_id: str
    generation: int
    state: str
    fence: int
    placement: tuple[RankPlacement, ...]
    leased_ns: int
    stop_reason: str


class SharedDeviceView(Struct, frozen=True):
    """One device that is cut into parts: who has which, and the compute that is left, in 7,000ths."""

    device: int
    parts: dict[str, PlacedPart]
    free_units: int


class NodeView(Struct, frozen=True):
    """One node. `holders[i]` is the work that holds device i, "" for none; of a shared one all, with commas.

    `why_closed` says why it takes no new work, "" if it does.
    """

    node_id: str
    device_kind: str
    state: str
    is_cordoned: bool
    boot: int
    num_devices: int
    num_free: int
    memory_bytes: int
    free_memory_bytes: int
    holders: tuple[str, ...]
    is_draining: bool = False
    why_closed: str = ""
    num_failures: int = 0
    shared: tuple[SharedDeviceView, ...] = ()


class ServiceView(Struct, frozen=True):
    """One service and its replicas that are not gone."""

    service_id: str
    name: str
    queue: str
    priority: int
    state: str
    generation: int
    num_replicas: int
    num_ready: int
    restarts_used: int
    reason: str
    replicas: tuple[WorkView, ...]


class LedgerView(Struct, frozen=True):
    """Device-nanoseconds by account, over all devices ever joined. The accounts sum to `total_ns` exactly."""

    now_ns: int
    num_devices: int
    num_leased: int
    total_ns: int
    busy_ns: int
    allocated_idle_ns: int
    wasted_by_failure_ns: int
    fragmentation_ns: int
    maintenance_ns: int
    free_ns: int


def job_view(core: ControlCore, job_id: str) -> JobView | None:
    """One job, or None."""
    job = core.state.jobs.get(job_id)
    return None if job is None else _job(job)


def job_views(core: ControlCore) -> list[JobView]:
    """All jobs in the order of their submission."""
    return [_job(job) for job in core.state.jobs.values()]


def work_view(core: ControlCore, work_id: str) -> WorkView | None:
    """One work, or None when it is gone or never was."""
    work = core.state.works.get(work_id)
    return None if work is None else _work(work)


def work_views(core: ControlCore) -> list[WorkView]:
    """All works that are not gone."""
    return [_work(work) for work in core.state.works.values()]


def node_view(core: ControlCore, node_id: str) -> NodeView | None:
    """One node, or None."""
    node = core.state.nodes.get(node_id)
    return None if node is None else _node(node)


def node_views(core: ControlCore) -> list[NodeView]:
    """All nodes in the order of joining."""
    return [_node(node) for node in core.state.nodes.values()]


def service_view(core: ControlCore, service_id: str) -> ServiceView | None:
    """One service, or None."""
    service = core.state.services.get(service_id)
    return None if service is None else _service(core, service)


def service_views(core: ControlCore) -> list[ServiceView]:
    """All services that were not removed."""
    return [_service(core, each) for each in core.state.services.values() if each.state != "removed"]


def ledger_view(core: ControlCore, now_ns: int) -> LedgerView:
    """The accounts of all devices as of `now_ns`, not before the last event."""
    at_ns = max(now_ns, core.state.now_ns)
    totals = dict.fromkeys(Accounts.__struct_fields__, 0)
    num_devices = num_leased = total_ns = 0
    for node in core.state.nodes.values():
        num_devices += node.num_devices
        num_leased += node.num_devices - node.num_free
        total_ns += (at_ns - node.joined_ns) * node.num_devices
        accounts = core.ledger.read_node(node, at_ns)
        for name in totals:
            totals[name] += getattr(accounts, name)
    return LedgerView(at_ns, num_devices, num_leased, total_ns, **totals)


def _job(job: Job) -> JobView:
    return JobView(
        job_id=job.job_id,
        name=job.name,
        queue=job.queue,
        priority=job.priority,
        state=job.state,
        gang=job.gang,
        num_attempts=job.num_attempts,
        restarts_used=job.restarts_used,
        restart_budget=job.restart.budget,
        work_id=job.work_id,
        submitted_ns=job.submitted_ns,
        first_started_ns=job.first_started_ns,
        ended_ns=job.ended_ns,
        checkpoint_step=job.checkpoint_step,
        reason=job.reason,
    )


def _work(work: Work) -> WorkView:
    return WorkView(
        work_id=work.work_id,
        kind=work.kind,
        owner_id=work.owner_id,
        generation=work.generation,
        state=work.state,
        fence=work.fence,
        placement=work.placement,
        leased_ns=work.leased_ns,
        stop_reason=work.stop_reason,
    )


def why_closed(node: Node) -> str:
    """Why a node takes no new work; "" if it does."""
    holders = node.holders()
    reasons = []
    if node.state == "silent":
        reasons.append("nothing is heard of it; what it holds stays leased until there is proof")
    elif node.state == "fenced":
        reasons.append("it was fenced and has not joined again")
    if node.is_draining:
        left = f", {len(holders)} works are left" if holders else ", it is empty"
        reasons.append(f"an operator drains it{left}")
    elif node.is_cordoned:
        reasons.append("an operator cordoned it")
    if node.closed_for == "quarantine":
        reasons.append(f"in quarantine: {node.closed_note}")
    elif node.closed_for == "spare":
        reasons.append("a spare, kept until another node is lost")
    elif node.closed_for == "kept":
        reasons.append(f"a spare, kept for {node.closed_note}, which lost its node")
    return "; ".join(reasons)


def _node(node: Node) -> NodeView:
    holder_of = {index: work_id for work_id, devices in node.leases.items() for index in devices}
    holder_of |= {each.device: ", ".join(each.parts) for each in node.shared}
    return NodeView(
        node_id=node.node_id,
        device_kind=node.device_kind,
        state=node.state,
        is_cordoned=node.is_cordoned,
        boot=node.boot,
        num_devices=node.num_devices,
        num_free=node.num_free,
        memory_bytes=node.memory_bytes,
        free_memory_bytes=node.free_memory_bytes,
        holders=tuple(holder_of.get(index, "") for index in range(node.num_devices)),
        is_draining=node.is_draining,
        why_closed=why_closed(node),
        num_failures=len(node.failures),
        shared=tuple(
            SharedDeviceView(
                each.device,
                dict(each.parts),
                UNITS_PER_DEVICE - sum(part.units for part in each.parts.values()),
            )
            for each in node.shared
        ),
    )


def _service(core: ControlCore, service: Service) -> ServiceView:
    replicas = tuple(_work(core.state.works[work_id]) for work_id in service.replicas)
    return ServiceView(
        service_id=service.service_id,
        name=service.name,
        queue=service.queue,
        priority=service.priority,
        state=service.state,
        generation=service.generation,
        num_replicas=service.num_replicas,
        num_ready=sum(replica.state == "ready" for replica in replicas),
        restarts_used=service.restarts_used,
        reason=service.reason,
        replicas=replicas,
    )
