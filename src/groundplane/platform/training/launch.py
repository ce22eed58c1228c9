"""A training run on this machine without a platform: starts the ranks, watches them, ends them together.

For tests, benchmarks and the reader who wants to see the trainer alone; under a platform the engine's keeper
does this.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from groundplane.spec.errors import InputError
from groundplane.spec.job import TrainSpec

_POLL_S: Final = 0.02
SETTLE_LIMIT_S: Final = 5.0
"""How long the others may take to end by themselves after one rank has failed or stopped."""
KILL_LIMIT_S: Final = 10.0
"""Longest wait for a killed rank to be gone."""


def write_spec(job_dir: Path, spec: TrainSpec) -> None:
    """Makes a job's folder with its `train.json`."""
    job_dir.mkdir(parents=True, exist_ok=True)
    (job_dir / "train.json").write_bytes(msgspec.json.encode(spec))


def run_local(
    job_dir: Path, work_dir: Path, ranks: int, *, threads: int = 1, limit_s: float = 600.0
) -> list[int]:
    """Runs one attempt to its end; where a rank fails the others are killed.

    Args:
        job_dir: holds `train.json`.
        work_dir: this attempt's folder; made here, gets `rank-N.log`.
        ranks: processes.
        threads: a rank.
        limit_s: everything is killed after this time.

    Returns:
        Exit code of each rank, negative for a signal.
    """
    gang = LocalGang(job_dir, work_dir, ranks, threads=threads)
    try:
        return gang.wait(limit_s)
    finally:
        gang.kill()


class LocalGang:
    """The ranks of one attempt as child processes."""

    def __init__(
        self, job_dir: Path, work_dir: Path, ranks: int, *, threads: int = 1, fence: int | None = None
    ) -> None:
        if not job_dir.is_dir():
            raise InputError("no such folder", field="job_dir", value=str(job_dir))
        work_dir.mkdir(parents=True, exist_ok=True)
        self._work_dir = work_dir
        shared = {
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GROUNDPLANE_JOB_DIR": str(job_dir),
            "GROUNDPLANE_WORK_DIR": str(work_dir),
            "OMP_NUM_THREADS": str(threads),
        }
        if fence is not None:
            shared["GROUNDPLANE_FENCE"] = str(fence)
        self.processes = [self._start(rank, os.environ | shared) for rank in range(ranks)]

    def wait(self, limit_s: float) -> list[int]:
        """Waits for all ranks; kills the rest once one has failed or the limit has passed."""
        deadline = time.monotonic() + limit_s
        while any(process.poll() is None for process in self.processes):
            if any(process.poll() for process in self.processes) or time.monotonic() > deadline:
                self._settle()
                self.kill()
                break
            time.sleep(_POLL_S)
        return [process.wait(KILL_LIMIT_S) for process in self.processes]

    def kill(self) -> None:
        """SIGKILL to every rank that still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait(KILL_LIMIT_S)

    def log(self, rank: int) -> str:
        """What a rank has printed so far."""
        return (self._work_dir / f"rank-{rank}.log").read_text(errors="replace")

    def _settle(self) -> None:
        """Gives the other ranks a moment to end by themselves, for the sake of their logs and exit codes."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while any(process.poll() is None for process in self.processes) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _start(self, rank: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self._work_dir / f"rank-{rank}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "groundplane.platform.training.worker"],
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
