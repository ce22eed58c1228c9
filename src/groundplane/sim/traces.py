"""Recorded workloads: which jobs came when, and how large they were.

`read_gavel` reads the tab-separated job lists that Gavel (Narayanan et al., OSDI 2020) made of Microsoft's
Philly traces: the last two columns are the arrival in seconds and the number of devices. The steps in them
are no durations; those are drawn from measured run times instead (one number a line, in seconds, below a
header).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from groundplane.sim.workload import SimJob, gang_of
from groundplane.spec.errors import InputError
from groundplane.spec.load import read_text

S = 1_000_000_000
SHORTEST_RUN_S = 1.0
"""Run times of zero stand for jobs that ended within the clock's resolution."""


def read_gavel(
    paths: Sequence[Path], *, run_times: Path, devices_per_node: int, seed: int, speed: float = 1.0
) -> list[SimJob]:
    """The jobs of several lists as one workload, in the order of their arrival.

    Args:
        run_times: measured run times, from which each job's is drawn.
        devices_per_node: how gangs are cut into ranks.
        seed: picks the run times.
        speed: how many times as fast the jobs arrive as they did; changes the load.

    Raises:
        InputError: a file that cannot be read, or a line that is no job.
    """
    rows = sorted(
        (row for path in paths for row in _rows(path)), key=lambda row: (row[0], row[1])
    )  # time, then list and line
    measured_s = _run_times(run_times)
    run_s = np.maximum(SHORTEST_RUN_S, np.random.default_rng(seed).choice(measured_s, size=len(rows)))
    return [
        SimJob(
            job_id=f"j{number}",
            submit_ns=int(arrival_s / speed * S),
            gang=gang_of(num_devices, devices_per_node),
            run_ns=int(run_s[number] * S),
            predicted_run_ns=int(run_s[number] * S),
        )
        for number, (arrival_s, _, num_devices) in enumerate(rows)
    ]


def _rows(path: Path) -> list[tuple[float, str, int]]:
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        cells = line.split("\t")
        try:
            arrival_s, num_devices = float(cells[-2]), int(cells[-1])
        except (IndexError, ValueError):
            rule = "must end in an arrival in seconds and a number of devices, after tabs"
            raise InputError(rule, file=str(path), line=number) from None
        if not (0 <= arrival_s < float("inf")) or num_devices < 1:
            raise InputError("needs an arrival of 0 or later and a device", file=str(path), line=number)
        rows.append((arrival_s, f"{path.name}:{number:09d}", num_devices))
    return rows


def _run_times(path: Path) -> np.ndarray:
    lines = read_text(path).splitlines()[1:]
    try:
        run_s = np.array([float(line) for line in lines])
    except ValueError as error:
        raise InputError(f"must hold one run time a line: {error}", file=str(path)) from None
    if not len(run_s) or not np.isfinite(run_s).all() or run_s.min() < 0:
        raise InputError("must hold run times of 0 or more", file=str(path))
    return run_s
