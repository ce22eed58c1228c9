"""What a simulated cluster's run comes to: utilisation, waits, fairness, lost work, power, cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from groundplane.control.lifecycle.job import JOB
from groundplane.sim.cluster import ClusterRun, JobRecord

S = 1_000_000_000
HOUR_S = 3600.0
SIZE_CLASSES = ((1, 1), (2, 7), (8, 8), (9, 15), (16, 63), (64, 1 << 40))
"""Gangs by number of devices, as waits are grouped."""
LARGE_GANG = 16
"""Gangs of so many devices and more have a wait of their own."""
ACCOUNTS = ("busy", "allocated_idle", "wasted_by_failure", "fragmentation", "maintenance", "free")
IDLE_POWER_SHARE = 0.3
"""What an idle device draws, with its part of the server, of what it draws at work. Assumed."""


@dataclass(frozen=True)
class Prices:
    """What turns device-time into energy and money: watts of a device with its part of the server, and
    dollars of a device-hour, used or not. None where it is not known."""

    device_w: float | None = None
    idle_share: float = IDLE_POWER_SHARE
    usd_per_device_hour: float | None = None


class Waits(Struct, frozen=True):
    """Jobs of one size class or queue, in seconds: from submission to first start, and to the end.

    `stretch` is the mean of that whole time over the work, in time on the best placement.
    """

    group: str
    jobs: int
    device_hours: float
    mean_s: float
    p50_s: float
    p95_s: float
    completion_mean_s: float
    completion_p95_s: float
    stretch: float


class ClusterSummary(Struct, frozen=True):
    """The whole run. Shares are of all device-time.

    `utilisation` is what was leased, `goodput` what did useful work (checkpoints and what was lost are none)
    and `fragmentation` that account, all three until the last job came. The `ledger` is of the whole run, its
    shares sum to 1 and `ledger_closes` says that the integers do exactly. `jain` is Jain's index over queues
    of the device-time that a queue's jobs needed over the device-time from their submission to their end.
    """

    policy: str
    seed: int
    nodes: int
    devices: int
    jobs: int
    succeeded: int
    failed: int
    simulated_s: float
    arrivals_s: float
    utilisation: float
    goodput: float
    fragmentation: float
    mean_wait_s: float
    p95_wait_s: float
    large_gang_wait_s: float | None
    jain: float
    waits: tuple[Waits, ...]
    queues: tuple[Waits, ...]
    restarts: int
    preemptions: int
    lost_work_device_s: float
    checkpoint_device_s: float
    energy_kwh: float | None
    cost_usd: float | None
    ledger: dict[str, float]
    ledger_closes: bool
    events: int
    faults: dict[str, int]
    digest: str


def summarise(
    run: ClusterRun, *, policy: str = "", seed: int = 0, prices: Prices | None = None
) -> ClusterSummary:
    """Counts a finished run together.

    Args:
        policy, seed: are repeated in the answer.
        prices: of power and devices.
    """
    jobs = run.jobs
    arrivals, final = run.arrivals_ledger, run.final_ledger
    sums = {account: getattr(final, f"{account}_ns") for account in ACCOUNTS}
    leased_ns = arrivals.busy_ns + arrivals.allocated_idle_ns + arrivals.wasted_by_failure_ns
    # Checkpoints are counted over the whole run; their share of busy time is taken as the same all along.
    working = 1.0 - run.checkpoint_device_ns / max(1, final.busy_ns)
    waits_s = np.array([_wait_s(job) for job in jobs if job.first_started_ns >= 0] or [0.0])
    large = [_wait_s(job) for job in jobs if job.num_devices >= LARGE_GANG and job.first_started_ns >= 0]
    energy_kwh, cost_usd = _bill(run, prices or Prices())
    return ClusterSummary(
        policy=policy,
        seed=seed,
        nodes=run.num_nodes,
        devices=run.num_devices,
        jobs=len(jobs),
        succeeded=sum(job.state == "succeeded" for job in jobs),
        failed=sum(job.state in JOB.final and job.state != "succeeded" for job in jobs),
        simulated_s=final.now_ns / S,
        arrivals_s=arrivals.now_ns / S,
        utilisation=leased_ns / max(1, arrivals.total_ns),
        goodput=working * arrivals.busy_ns / max(1, arrivals.total_ns),
        fragmentation=arrivals.fragmentation_ns / max(1, arrivals.total_ns),
        mean_wait_s=float(waits_s.mean()),
        p95_wait_s=float(np.percentile(waits_s, 95)),
        large_gang_wait_s=float(np.mean(large)) if large else None,
        jain=jain_index(_served_shares(jobs)),
        waits=_by_size(jobs),
        queues=_by_queue(jobs),
        restarts=sum(job.restarts_used for job in jobs),
        preemptions=sum(job.num_preemptions for job in jobs),
        lost_work_device_s=final.wasted_by_failure_ns / S,
        checkpoint_device_s=run.checkpoint_device_ns / S,
        energy_kwh=energy_kwh,
        cost_usd=cost_usd,
        ledger={account: total / max(1, final.total_ns) for account, total in sums.items()},
        ledger_closes=sum(sums.values()) == final.total_ns,
        events=run.num_events,
        faults=run.faults,
        digest=run.core.digest(),
    )


def jain_index(values: Sequence[float]) -> float:
    """Jain's fairness index: (sum x)**2 / (n x sum x**2); 1 where all are equal, 1/n where one has all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else 1.0


def _served_shares(jobs: Sequence[JobRecord]) -> list[float]:
    needed: dict[str, int] = {}
    taken: dict[str, int] = {}
    for job in jobs:
        if job.ended_ns > job.submitted_ns:
            needed[job.queue] = needed.get(job.queue, 0) + job.ideal_run_ns * job.num_devices
            spent_ns = (job.ended_ns - job.submitted_ns) * job.num_devices
            taken[job.queue] = taken.get(job.queue, 0) + spent_ns
    return [needed[queue] / taken[queue] for queue in needed]


def _bill(run: ClusterRun, prices: Prices) -> tuple[float | None, float | None]:
    ledger = run.final_ledger
    energy_kwh = cost_usd = None
    if prices.device_w is not None:
        working_s = (ledger.busy_ns + ledger.wasted_by_failure_ns) / S
        other_s = ledger.total_ns / S - working_s
        energy_kwh = prices.device_w * (working_s + prices.idle_share * other_s) / HOUR_S / 1e3
    if prices.usd_per_device_hour is not None:
        cost_usd = prices.usd_per_device_hour * ledger.total_ns / S / HOUR_S
    return energy_kwh, cost_usd


def _by_size(jobs: Sequence[JobRecord]) -> tuple[Waits, ...]:
    rows = []
    for least, most in (*SIZE_CLASSES, (1, 1 << 40)):
        rows += _row(_class_name(least, most), [job for job in jobs if least <= job.num_devices <= most])
    return tuple(rows)


def _by_queue(jobs: Sequence[JobRecord]) -> tuple[Waits, ...]:
    rows = []
    for queue in sorted({job.queue for job in jobs}):
        rows += _row(queue, [job for job in jobs if job.queue == queue])
    return tuple(rows)


def _row(group: str, jobs: Sequence[JobRecord]) -> list[Waits]:
    """The row of a group, none where no job of it ever started and ended."""
    done = [job for job in jobs if job.first_started_ns >= 0 and job.ended_ns >= 0]
    if not done:
        return []
    waits_s = np.array([_wait_s(job) for job in done])
    completion_s = np.array([(job.ended_ns - job.submitted_ns) / S for job in done])
    work_s = np.array([max(S, job.ideal_run_ns) / S for job in done])
    devices = np.array([job.num_devices for job in done])
    return [
        Waits(
            group=group,
            jobs=len(done),
            device_hours=float((work_s * devices).sum() / HOUR_S),
            mean_s=float(waits_s.mean()),
            p50_s=float(np.percentile(waits_s, 50)),
            p95_s=float(np.percentile(waits_s, 95)),
            completion_mean_s=float(completion_s.mean()),
            completion_p95_s=float(np.percentile(completion_s, 95)),
            stretch=float((completion_s / work_s).mean()),
        )
    ]


def _wait_s(job: JobRecord) -> float:
    return (job.first_started_ns - job.submitted_ns) / S


def _class_name(least: int, most: int) -> str:
    if most < 1 << 40:
        return str(least) if least == most else f"{least}-{most}"
    return "all" if least == 1 else f"{least}+"
