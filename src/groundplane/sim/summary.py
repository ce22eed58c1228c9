"""What a simulated cluster's run comes to: utilisation, goodput, waits by gang size, restarts, lost work."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from groundplane.control.events import Gang
from groundplane.control.lifecycle.job import JOB
from groundplane.sim.cluster import ClusterRun

S = 1_000_000_000
SIZE_CLASSES = ((1, 1), (2, 7), (8, 8), (9, 63), (64, 1 << 40))
"""Gangs by number of devices, as the waits are grouped."""
ACCOUNTS = ("busy", "allocated_idle", "wasted_by_failure", "fragmentation", "maintenance", "free")


class Waits(Struct, frozen=True):
    """Time from submission to first start of the jobs of one size class, in seconds."""

    devices: str
    jobs: int
    mean_s: float
    p50_s: float
    p95_s: float


class ClusterSummary(Struct, frozen=True):
    """The whole run. Shares are of all device-time.

    `utilisation` is what was leased and `goodput` what did useful work, both until the last job came; the
    `ledger` is of the whole run, its shares sum to 1 and `ledger_closes` says that the integers do exactly.
    """

    nodes: int
    devices: int
    jobs: int
    succeeded: int
    failed: int
    simulated_s: float
    arrivals_s: float
    utilisation: float
    goodput: float
    waits: tuple[Waits, ...]
    restarts: int
    lost_work_device_s: float
    ledger: dict[str, float]
    ledger_closes: bool
    events: int
    faults: dict[str, int]
    digest: str


def summarise(run: ClusterRun) -> ClusterSummary:
    """Counts a finished run together."""
    jobs = run.jobs
    arrivals, final = run.arrivals_ledger, run.final_ledger
    sums = {account: getattr(final, f"{account}_ns") for account in ACCOUNTS}
    leased_ns = arrivals.busy_ns + arrivals.allocated_idle_ns + arrivals.wasted_by_failure_ns
    return ClusterSummary(
        nodes=run.num_nodes,
        devices=run.num_nodes * run.devices_per_node,
        jobs=len(jobs),
        succeeded=sum(job.state == "succeeded" for job in jobs),
        failed=sum(job.state in JOB.final and job.state != "succeeded" for job in jobs),
        simulated_s=final.now_ns / S,
        arrivals_s=arrivals.now_ns / S,
        utilisation=leased_ns / max(1, arrivals.total_ns),
        goodput=arrivals.busy_ns / max(1, arrivals.total_ns),
        waits=_waits(run),
        restarts=sum(job.restarts_used for job in jobs),
        lost_work_device_s=final.wasted_by_failure_ns / S,
        ledger={account: total / max(1, final.total_ns) for account, total in sums.items()},
        ledger_closes=sum(sums.values()) == final.total_ns,
        events=run.num_events,
        faults=run.faults,
        digest=run.core.digest(),
    )


def _waits(run: ClusterRun) -> tuple[Waits, ...]:
    rows = []
    classes = [*SIZE_CLASSES, (1, 1 << 40)]
    for least, most in classes:
        waits_s = np.array(
            [
                (job.first_started_ns - job.submitted_ns) / S
                for job in run.jobs
                if least <= job.num_devices <= most and job.first_started_ns >= 0
            ]
        )
        if len(waits_s):
            rows.append(
                Waits(
                    devices=_class_name(least, most),
                    jobs=len(waits_s),
                    mean_s=float(waits_s.mean()),
                    p50_s=float(np.percentile(waits_s, 50)),
                    p95_s=float(np.percentile(waits_s, 95)),
                )
            )
    return tuple(rows)


def size_of(gang: Gang) -> int:
    """Devices of a whole gang."""
    return gang.num_ranks * gang.devices_per_rank


def _class_name(least: int, most: int) -> str:
    if most < 1 << 40:
        return str(least) if least == most else f"{least}-{most}"
    return "all" if least == 1 else f"{least}+"
