"""What is expected to happen: a copy of the core, run ahead on predictions.

A job ends when its predicted run time is over (one that nobody predicted, after an assumed time, or never), a
stop takes its grace at most, a start takes no time. The decisions on the way are those of the core itself.
"""

from __future__ import annotations

import heapq
from typing import Final

from msgspec import Struct

from groundplane.control.actions import AnyAction, DrainWork, JobEnded, SetTimer, StartWork, StopWork
from groundplane.control.core import ControlCore
from groundplane.control.events import (
    AnyEvent,
    JobSubmitted,
    NodeFenced,
    TimerFired,
    WorkDrained,
    WorkGone,
    WorkReady,
    WorkStarted,
)
from groundplane.control.lifecycle.job import JOB
from groundplane.control.state import Work

S: Final = 1_000_000_000
OVERDUE_NS: Final = 60 * S
"""A job that has run for longer than was predicted is taken to end so much later."""
WAITING: Final = ("held", "queued", "backing_off")
"""States of a job that holds no devices and has not ended."""
MAX_EVENTS: Final = 200_000
"""A forecast that needs more events ends there."""


class JobForecast(Struct, frozen=True):
    """What is expected of one job. Times in nanoseconds of the core's clock, -1 for not within the horizon.

    `num_stops` counts how often it is stopped, or loses its node, while it runs.
    """

    job_id: str
    queue: str
    num_devices: int
    start_ns: int
    end_ns: int
    num_stops: int


class Forecast:
    """One copy, and what is expected to happen to it.

    Args:
        core: the copy; it is changed.
        assumed_run_ns: run time of jobs of which nothing is predicted; 0 for no end in sight.
    """

    def __init__(self, core: ControlCore, assumed_run_ns: int) -> None:
        self.core = core
        self._assumed_run_ns = assumed_run_ns
        self._agenda: list[tuple[int, int, AnyEvent]] = []
        self._number = 0
        self._seen: dict[str, list[int]] = {}
        self._num_stops: dict[str, int] = {}
        for work in list(core.state.works.values()):
            self._expect_end(work)
        for timer_id, timer in core.state.timers.items():
            self._expect(timer.at_ns, TimerFired(timer_id))
        for job in core.state.jobs.values():
            if job.state not in JOB.final:
                self._seen[job.job_id] = [job.first_started_ns, -1]

    def give(self, now_ns: int, event: AnyEvent) -> list[AnyAction]:
        """Handles one event, and notes what is to be expected of its actions."""
        core, state = self.core, self.core.state
        running: list[str] = []
        if isinstance(event, NodeFenced):
            running = [work.owner_id for work in state.works.values() if work.kind == "attempt"]
        actions = core.handle(now_ns, event)
        for action in actions:
            match action:
                case StartWork(kind="attempt", owner_id=job_id):
                    start_end = self._seen.setdefault(job_id, [-1, -1])
                    start_end[0] = state.now_ns if start_end[0] < 0 else start_end[0]
                    self._expect(state.now_ns, WorkStarted(action.work_id, action.fence))
                    self._expect_end(state.works[action.work_id])
                case StartWork():
                    self._expect(state.now_ns, WorkReady(action.work_id, action.fence))
                case StopWork():
                    owner_id = state.works[action.work_id].owner_id
                    self._num_stops[owner_id] = self._num_stops.get(owner_id, 0) + 1
                    gone = WorkGone(action.work_id, action.fence, "stopped")
                    self._expect(state.now_ns + action.grace_ns, gone)
                case DrainWork():
                    self._expect(state.now_ns, WorkDrained(action.work_id, action.fence))
                case SetTimer():
                    self._expect(action.at_ns, TimerFired(action.timer_id))
                case JobEnded(job_id=job_id):
                    self._seen.setdefault(job_id, [-1, -1])[1] = state.now_ns
        if running:
            left = {work.owner_id for work in state.works.values()}
            for job_id in running:
                self._num_stops[job_id] = self._num_stops.get(job_id, 0) + (job_id not in left)
        if isinstance(event, JobSubmitted):
            self._seen.setdefault(event.job_id, [-1, -1])
        return actions

    def run(self, end_ns: int) -> dict[str, JobForecast]:
        """What becomes of every job that has not ended yet."""
        gangs = {job_id: self.core.state.jobs[job_id] for job_id in self._seen}
        num_events = 0
        while num_events < MAX_EVENTS and self._step(end_ns):
            num_events += 1
        return {
            job_id: JobForecast(
                job_id=job_id,
                queue=gangs[job_id].queue,
                num_devices=gangs[job_id].gang.num_ranks * gangs[job_id].gang.devices_per_rank,
                start_ns=start_ns,
                end_ns=job_end_ns,
                num_stops=self._num_stops.get(job_id, 0),
            )
            for job_id, (start_ns, job_end_ns) in self._seen.items()
        }

    def start_of(self, waiting_id: str, most_events: int) -> int:
        """When a job or replica that waits is placed; -1 if that takes more events, or cannot be told."""
        num_events = 0
        while num_events < most_events:
            replica, job = self.core.state.works.get(waiting_id), self.core.state.jobs.get(waiting_id)
            if replica is not None and replica.placement:
                return self.core.state.now_ns
            if job is not None and job.state not in WAITING:
                return -1 if job.state in JOB.final else self.core.state.now_ns
            num_events += 1
            if not self._step(None):
                return -1
        return -1

    def _step(self, end_ns: int | None) -> bool:
        """The next event that is expected; False when there is none before `end_ns`."""
        while self._agenda:
            at_ns, _, event = heapq.heappop(self._agenda)
            if end_ns is not None and at_ns > end_ns:
                return False
            if isinstance(event, WorkGone) and event.work_id not in self.core.state.works:
                continue  # it was to end, but is gone already
            self.give(max(self.core.state.now_ns, at_ns), event)
            return True
        return False

    def _expect(self, at_ns: int, event: AnyEvent) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (at_ns, self._number, event))

    def _expect_end(self, work: Work) -> None:
        state = self.core.state
        if work.stop_intent or work.state == "stopping":
            gone = WorkGone(work.work_id, work.fence, "stopped")
            self._expect(state.now_ns + work.stop_grace_ns, gone)
        elif work.kind == "attempt":
            run_ns = state.jobs[work.owner_id].predicted_run_ns or self._assumed_run_ns
            if run_ns:
                end_ns = max(work.leased_ns + run_ns, state.now_ns)
                end_ns += OVERDUE_NS if work.leased_ns + run_ns < state.now_ns else 0
                if work.state == "starting":
                    self._expect(state.now_ns, WorkStarted(work.work_id, work.fence))
                self._expect(end_ns, WorkGone(work.work_id, work.fence, "succeeded"))
