"""The training chapters: one job killed twice, the same job left alone, and what each kill cost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from groundplane.spec.errors import GroundplaneError
from groundplane.spec.job import JobSpec
from groundplane.tour import watch
from groundplane.tour.platform import TourPlatform
from groundplane.tour.result import Fault, StepPoint, TrainingRun
from groundplane.tour.stage import Line, Stage

KILL_RANK_AT: Final = 0.4
KILL_CONTROL_AT: Final = 0.75
"""Shares of all steps after which a fault is injected: each some steps behind a checkpoint."""

POLL_S: Final = 0.5
"""Each look costs the ranks some milliseconds of their cores."""
DEADLINE_S: Final = 600.0
"""The longest that one job may take before the tour gives up."""

FINAL_STATES: Final = {"succeeded", "failed", "cancelled"}


class TourFailure(GroundplaneError):
    """A chapter did not come out as it should; the message says what happened and where to look."""


class JobWatch:
    """Follows one job to its end and injects faults into it on the way."""

    def __init__(self, platform: TourPlatform, spec: JobSpec, stage: Stage) -> None:
        self._platform = platform
        self._spec = spec
        self._stage = stage
        self._job_id = ""
        self._peak_bytes = 0
        self._begun_s = time.monotonic()
        self._deadline_s = self._begun_s + DEADLINE_S

    def run(self, *, disturbed: bool) -> tuple[TrainingRun, list[Fault]]:
        """Submits the job, kills a rank and the control plane if it is to be disturbed, waits for its end.

        Raises:
            TourFailure: the job did not succeed, or took too long.
        """
        self._job_id = self._platform.post("/api/jobs", msgspec.to_builtins(self._spec))["job_id"]
        faults = []
        with self._stage.moving("waiting for the first step") as line:
            if disturbed:
                faults.append(self._kill_rank(line))
                faults.append(self._kill_control_plane(line))
            job = self._wait(line, lambda _steps, job: job["state"] in FINAL_STATES)
        if job["state"] != "succeeded":
            raise TourFailure(f"job {self._job_id} {job['state']}: {job['reason']}")
        return self._finished(job), faults

    def _kill_rank(self, line: Line) -> Fault:
        victim_rank = self._spec.ranks - 1
        self._wait_for_step(line, KILL_RANK_AT)
        pid = watch.rank_pids(self._platform.state, self._job_id)[victim_rank]
        os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        at_step = self._steps()[-1].step
        self._stage.say(f"step {at_step}: [red]kill -9[/red] of rank {victim_rank} (pid {pid})")

        def is_past(steps: list[StepPoint], _job: dict[str, Any]) -> bool:
            return steps[-1].work_id != first_attempt and steps[-1].step > at_step

        first_attempt = self._steps()[-1].work_id
        self._wait(line, is_past)
        lost_s = time.monotonic() - killed_s
        repeated = sum(
            1 for point in self._steps() if point.work_id != first_attempt and point.step <= at_step
        )
        self._stage.say(
            f"whole gang restarted from the last complete checkpoint; {repeated} steps made again, "
            f"{lost_s:.1f} s lost"
        )
        return Fault(f"kill -9 of rank {victim_rank}", at_step, repeated, lost_s)

    def _kill_control_plane(self, line: Line) -> Fault:
        self._wait_for_step(line, KILL_CONTROL_AT)
        before = self._steps()[-1]
        pid = self._platform.control_pid()
        os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        self._stage.say(f"step {before.step}: [red]kill -9[/red] of the control plane (pid {pid})")
        self._platform.wait_until_ready(line, not_pid=pid)
        away_s = time.monotonic() - killed_s
        after = self._steps()[-1]
        if after.work_id != before.work_id:
            raise TourFailure("the job restarted although only the control plane was killed")
        self._stage.say(
            f"the supervisor brought it back after {away_s:.1f} s; it replayed its journal and found the "
            f"job, which had gone on to step {after.step}"
        )
        return Fault("kill -9 of the control plane", before.step, 0, 0.0)

    def _wait_for_step(self, line: Line, share: float) -> None:
        wanted_step = round(share * self._train_steps)
        self._wait(line, lambda steps, _job: bool(steps) and steps[-1].step >= wanted_step)

    def _wait(self, line: Line, is_met: Callable[[list[StepPoint], dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            job: dict[str, Any] = self._platform.get(f"/api/jobs/{self._job_id}")
            steps = self._steps()
            self._peak_bytes = max(
                self._peak_bytes,
                watch.resident_bytes(watch.rank_pids(self._platform.state, self._job_id)),
            )
            if is_met(steps, job):
                return job
            if job["state"] in FINAL_STATES:
                raise TourFailure(
                    f"job {self._job_id} ended early, {job['state']}: {job['reason']} "
                    f"(output: groundplane logs {self._job_id})"
                )
            if time.monotonic() > self._deadline_s:
                raise TourFailure(f"job {self._job_id} was not done after {DEADLINE_S:.0f} s")
            if steps:
                line.set(f"step {steps[-1].step}/{self._train_steps}  loss {steps[-1].loss:.2f}")
            time.sleep(POLL_S)

    def _finished(self, job: dict[str, Any]) -> TrainingRun:
        final = read_final(self._platform.state, self._job_id)
        train = self._spec.train
        return TrainingRun(
            job_id=self._job_id,
            attempts=job["attempts"],
            wall_s=time.monotonic() - self._begun_s,
            steps=self._steps(),
            weights_sha256=final["weights_sha256"],
            peak_memory_bytes=self._peak_bytes,
            tokens_per_step=0 if train is None else train.global_batch * train.seq,
        )

    @property
    def _train_steps(self) -> int:
        return 0 if self._spec.train is None else self._spec.train.steps

    def _steps(self) -> list[StepPoint]:
        return watch.steps_of(self._platform.state, self._job_id)


def read_final(state: Path, job_id: str) -> dict[str, Any]:
    """What the trainer wrote when it was done: step, loss and the digest of the weights."""
    final: dict[str, Any] = msgspec.json.decode((state / "jobs" / job_id / "final.json").read_bytes())
    return final
