"""Generated workloads: which jobs come when, how large they are and how long they really take.

Arrivals are a Poisson process whose rate gives the load asked for. Gang sizes are powers of two with the
shares of `SIZE_SHARES` (most jobs are small, most device-time is in large ones), cut at half the cluster.
Durations are log-normal, the median growing with the size. Predictions are right within a log-normal error,
as users' are not. All randomness is from one seeded numpy generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from groundplane.control.events import Gang

S = 1_000_000_000
SIZE_SHARES = {1: 0.45, 2: 0.12, 4: 0.12, 8: 0.17, 16: 0.06, 32: 0.04, 64: 0.025, 128: 0.01, 256: 0.005}
"""Share of jobs by number of devices. Assumed, after the shape of published traces; not fitted to one."""
MEDIAN_RUN_S = 600.0
"""Median run time of a one-device job; one of n devices has this times n**0.25."""
RUN_SIGMA = 1.2
"""Standard deviation of the logarithm of the run time."""
LONGEST_RUN_S = 86_400.0
PREDICTION_SIGMA = 0.3
"""Standard deviation of the logarithm of predicted over real run time."""


@dataclass(frozen=True, slots=True)
class Training:
    """What a job trains, where that is known: its speed follows from the model and from where it is placed.

    `steps` optimizer steps are its work; 0 where the trace gives a run time instead.
    """

    model: str
    global_batch: int
    seq: int
    steps: int = 0


@dataclass(frozen=True, slots=True)
class SimJob:
    """One job of a workload. `run_ns` is its work where it is placed best, without failures; 0 where it
    follows from the steps of its `training`."""

    job_id: str
    submit_ns: int
    gang: Gang
    run_ns: int
    predicted_run_ns: int
    queue: str = "default"
    priority: int = 0
    training: Training | None = None

    @property
    def num_devices(self) -> int:
        """Devices of the whole gang."""
        return self.gang.num_ranks * self.gang.devices_per_rank


def load_of(jobs: Sequence[SimJob], num_devices: int) -> float:
    """Device-time asked for over device-time there is, from the first submission to the last."""
    asked_ns = sum(job.num_devices * job.run_ns for job in jobs)
    return asked_ns / max(1, (jobs[-1].submit_ns - jobs[0].submit_ns) * num_devices)


def at_load(jobs: Sequence[SimJob], load: float, num_devices: int) -> list[SimJob]:
    """The same jobs, arriving as much faster or slower as makes the load on so many devices."""
    factor = load_of(jobs, num_devices) / load
    return [replace(job, submit_ns=int(job.submit_ns * factor)) for job in jobs]


def generate(
    *,
    num_jobs: int,
    load: float,
    num_nodes: int,
    devices_per_node: int,
    seed: int,
    prediction_sigma: float = PREDICTION_SIGMA,
) -> list[SimJob]:
    """A workload for a cluster of equal nodes.

    Args:
        num_jobs: how many jobs.
        load: device-time asked for over device-time there is, while jobs arrive.
        num_nodes, devices_per_node: the cluster.
        seed: picks everything.
        prediction_sigma: standard deviation of the logarithm of predicted over real run time.

    Returns:
        Jobs in the order of their submission.
    """
    random = np.random.default_rng(seed)
    num_devices = num_nodes * devices_per_node
    sizes = [size for size in SIZE_SHARES if size <= max(1, num_devices // 2)]
    shares = np.array([SIZE_SHARES[size] for size in sizes])
    devices = random.choice(sizes, size=num_jobs, p=shares / shares.sum())
    run_s = MEDIAN_RUN_S * devices**0.25 * np.exp(RUN_SIGMA * random.standard_normal(num_jobs))
    run_s = np.clip(run_s, 30.0, LONGEST_RUN_S)
    predicted_s = run_s * np.exp(prediction_sigma * random.standard_normal(num_jobs))
    span_s = float((devices * run_s).sum()) / (load * num_devices)
    submit_s = np.sort(random.uniform(0.0, span_s, num_jobs))
    return [
        SimJob(
            job_id=f"j{number}",
            submit_ns=int(submit_s[number] * S),
            gang=gang_of(int(devices[number]), devices_per_node),
            run_ns=int(run_s[number] * S),
            predicted_run_ns=int(predicted_s[number] * S),
        )
        for number in range(num_jobs)
    ]


def gang_of(num_devices: int, devices_per_node: int) -> Gang:
    """A gang of single-device ranks up to one node, of whole nodes beyond it."""
    if num_devices <= devices_per_node:
        return Gang(1, num_devices, 0)
    if num_devices % devices_per_node == 0:
        return Gang(num_devices // devices_per_node, devices_per_node, 0)
    return Gang(num_devices, 1, 0)
