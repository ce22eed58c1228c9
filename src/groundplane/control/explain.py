"""Why a job waits: what it needs, what there is, who is ahead of it, and when it is expected to start."""

from __future__ import annotations

from msgspec import Struct

from groundplane.control.core import ControlCore
from groundplane.control.events import UNITS_PER_DEVICE, Gang
from groundplane.control.forecast import WAITING, Forecast
from groundplane.control.placement import num_slots
from groundplane.control.queue import Entry, entry_of_job
from groundplane.control.state import Job

AHEAD_SHOWN = 10
"""How many of those ahead are named; the number of all is given beside."""

FORECAST_WORKS = 2_000
"""With more works than this the start of an entry that is not the head is not looked for."""
FORECAST_EVENTS = 1_000
"""So many events ahead it is looked for."""


class Ahead(Struct, frozen=True):
    """A job or replica that is served before the one in question."""

    waiting_id: str
    priority: int
    gang: Gang


class Available(Struct, frozen=True):
    """What is free now on the open nodes of one kind; `ranks_that_fit` is of the gang asked about."""

    device_kind: str
    free_devices: int
    ranks_that_fit: int


class JobExplanation(Struct, frozen=True):
    """The answer. `expected_start_ns` is -1 where it cannot be told; `waited_ns` counts since submission."""

    job_id: str
    state: str
    reason: str
    needed: Gang
    needed_devices: int
    available: tuple[Available, ...]
    num_ahead: int
    ahead: tuple[Ahead, ...]
    expected_start_ns: int
    waited_ns: int


def explain_job(core: ControlCore, job_id: str, now_ns: int) -> JobExplanation | None:
    """Explains the state of a job as of `now_ns`; None for a job that never was."""
    job = core.state.jobs.get(job_id)
    if job is None:
        return None
    available = available_for(core, job.gang)
    leaf, mine = core.shares.leaf_of(job.queue), entry_of_job(job, core.state.order)
    ahead = entries_ahead(core, leaf, mine) if job.state == "queued" else []
    return JobExplanation(
        job_id=job_id,
        state=job.state,
        reason=_reason(core, job, len(ahead), now_ns),
        needed=job.gang,
        needed_devices=job.gang.num_ranks * job.gang.devices_per_rank,
        available=available,
        num_ahead=len(ahead),
        ahead=tuple(ahead[:AHEAD_SHOWN]),
        expected_start_ns=expected_start_ns(core, job_id) if job.state in WAITING else -1,
        waited_ns=(now_ns if job.first_started_ns < 0 else job.first_started_ns) - job.submitted_ns,
    )


def expected_start_ns(core: ControlCore, waiting_id: str) -> int:
    """When a job or replica that waits is expected to get its devices; -1 where it cannot be told.

    For the head that is its plan, for others what a copy of the core comes to on predictions, if it is not
    too far off.
    """
    if core.state.head_id == waiting_id:
        plan = core.scheduler.plan()
        return -1 if plan is None else plan.start_ns
    if len(core.state.works) > FORECAST_WORKS:
        return -1
    return Forecast(ControlCore.restore(core.snapshot()), 0).start_of(waiting_id, FORECAST_EVENTS)


def available_for(core: ControlCore, gang: Gang) -> tuple[Available, ...]:
    """What is free of each kind that will do for a gang."""
    return tuple(
        Available(
            pool.device_kind,
            pool.num_free,
            sum(num_slots(node.num_free, node.free_memory_bytes, gang) for node in pool.open_nodes())
            if gang.part is None
            else core.sharing.num_that_fit(gang, pool),
        )
        for pool in core.pools.pools_for(gang)
    )


def entries_ahead(core: ControlCore, leaf: str, mine: Entry) -> list[Ahead]:
    """Who is served before an entry of the queue `leaf`."""
    lines = core.queue.lines.get(leaf, {}).values()
    before = sorted(entry for line in lines for entry in line if entry < mine)
    return [Ahead(entry.waiting_id, -entry.minus_priority, core.scheduler.gang_of(entry)) for entry in before]


def _reason(core: ControlCore, job: Job, num_ahead: int, now_ns: int) -> str:
    if job.state == "backing_off":
        timer = core.state.timers.get(f"{job.job_id}.backoff")
        wait_ms = max(0, timer.at_ns - now_ns) // 10**6 if timer else 0
        return f"restart {job.restarts_used} of {job.restart.budget} in {wait_ms} ms: {job.reason}"
    if job.state == "stopping":
        return (
            f"{core.state.works[job.work_id].stop_reason}; waits for proof that all of {job.work_id} is gone"
        )
    if job.state == "held":
        return _held_reason(job)
    if job.work_id in core.state.yielding:
        return f"makes room for {core.state.yielding[job.work_id]} at its next checkpoint"
    if job.state != "queued":
        return job.reason or job.state
    leaf, mine = core.shares.leaf_of(job.queue), entry_of_job(job, core.state.order)
    return waiting_reason(core, leaf, mine, job.gang, num_ahead)


def _held_reason(job: Job) -> str:
    if job.after:
        return f"held until {', '.join(job.after)} has succeeded"
    return f"held: {job.group_limit} of group {job.group} wait for devices or run, as many as may at once"


def waiting_reason(core: ControlCore, leaf: str, mine: Entry, gang: Gang, num_ahead: int) -> str:
    """Why an entry of the queue `leaf` waits."""
    need, available = needed_text(gang), available_for(core, gang)
    most = max(available, key=lambda each: each.ranks_that_fit, default=None)
    have = (
        f"{most.free_devices} free, room for {most.ranks_that_fit} ranks"
        if most
        else "no such node has joined"
    )
    limit = core.shares.limit_reached(leaf, gang)
    if limit is not None:
        rule, held = core.state.queues[limit], core.shares.num_held(limit)
        return f"{need}; queue {limit} holds {held} devices of at most {rule.limit_devices}"
    head = core.scheduler.head()
    if head is None or mine < head:
        return f"{need}, more than jobs could ever give back on the open nodes; now {have}"
    notes = _window_notes(core) + _guarantee_notes(core, leaf, gang)
    if head.waiting_id != mine.waiting_id:
        return "; ".join([
            f"{need}; now {have}; {num_ahead} ahead, devices are kept for {head.waiting_id}", *notes
        ])  # fmt: skip
    plan = core.state.head_plan
    if plan is not None and plan.victims:
        notes.insert(0, f"{', '.join(plan.victims[:AHEAD_SHOWN])} makes room for it")
    first = f"{need}; now {have}; it is the first in the queue and devices are kept for it"
    return "; ".join([first, *notes])


def _window_notes(core: ControlCore) -> list[str]:
    """Nodes that are set aside are not free for it."""
    return [
        f"{len(window.node_ids)} nodes are set aside for {window.queue or 'maintenance'}"
        for window in core.state.windows.values()
    ]


def _guarantee_notes(core: ControlCore, leaf: str, gang: Gang) -> list[str]:
    """Where its queue and those above stand in what they are guaranteed, if anything."""
    notes = []
    for name in core.shares.path(leaf):
        rule = core.state.queues.get(name)
        if rule is not None and rule.guaranteed_devices:
            held = core.shares.num_borrowed(name) + rule.guaranteed_devices
            is_within = held + gang.num_ranks * gang.devices_per_rank <= rule.guaranteed_devices
            of = f"queue {name} holds {held} of {rule.guaranteed_devices} guaranteed devices"
            notes.append(f"{of}, this would be {'within' if is_within else 'beyond'} them")
    return notes


def needed_text(gang: Gang) -> str:
    """What a gang needs, in words."""
    of_kinds = f" of kind {' or '.join(gang.kinds)}" if gang.kinds else ""
    if gang.part is None:
        return f"needs {gang.num_ranks} x {gang.devices_per_rank} devices{of_kinds}"
    if gang.part.profile:
        return f"needs an instance {gang.part.profile}{of_kinds}"
    return f"needs {gang.part.units * 1000 // UNITS_PER_DEVICE}/1000 of a device{of_kinds}"
