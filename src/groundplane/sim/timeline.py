"""What a simulated cluster looked like over time: samples of all devices, and the stays of jobs on theirs.

Bounded: when there are more than `MAX_SAMPLES` samples every second one is dropped and the next come half as
often; of jobs the `MAX_BARS` that held most device-time are kept.
"""

from __future__ import annotations

import heapq
from typing import Final

from msgspec import Struct

from groundplane.control.actions import AnyAction, StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import AnyEvent, NodeFenced, WorkGone

MAX_SAMPLES: Final = 600
MAX_BARS: Final = 400


class Sample(Struct, frozen=True):
    """Devices at one moment. `held` and `free` and `closed` (by failure or an operator) are all of them."""

    now_ns: int
    held: int
    free: int
    closed: int
    waiting_jobs: int
    waiting_devices: int


class Bar(Struct, frozen=True, order=True):
    """One attempt of a job: how long it held how many devices, and how it ended."""

    device_ns: int
    work_id: str
    job_id: str
    queue: str
    num_devices: int
    start_ns: int
    end_ns: int
    outcome: str


class Timeline:
    """Watches one run.

    Args:
        interval_ns: between two samples, to begin with.
    """

    def __init__(self, interval_ns: int) -> None:
        self.samples: list[Sample] = []
        self.interval_ns = max(1, interval_ns)
        self._bars: list[Bar] = []
        self._open: dict[str, tuple[int, StartWork]] = {}

    @property
    def bars(self) -> list[Bar]:
        """The attempts that held most, by their start."""
        return sorted(self._bars, key=lambda bar: (bar.start_ns, bar.work_id))

    def sample(self, now_ns: int, core: ControlCore) -> None:
        """Takes a sample."""
        held = free = closed = 0
        for node in core.state.nodes.values():
            held += node.num_devices - node.num_free
            if node.is_open:
                free += node.num_free
            else:
                closed += node.num_free
        waiting = [job.gang for job in core.state.jobs.values() if job.state == "queued"]
        devices = sum(gang.num_ranks * gang.devices_per_rank for gang in waiting)
        self.samples.append(Sample(now_ns, held, free, closed, len(waiting), devices))
        if len(self.samples) > MAX_SAMPLES:
            del self.samples[1::2]
            self.interval_ns *= 2

    def note(self, now_ns: int, event: AnyEvent, actions: list[AnyAction], core: ControlCore) -> None:
        """Takes note of starts and ends."""
        if isinstance(event, WorkGone):
            self._close(now_ns, event.work_id, event.outcome, core)
        elif isinstance(event, NodeFenced):
            for work_id in [work_id for work_id in self._open if work_id not in core.state.works]:
                self._close(now_ns, work_id, "failed", core)
        for action in actions:
            if isinstance(action, StartWork):
                self._open[action.work_id] = (now_ns, action)

    def finish(self, now_ns: int, core: ControlCore) -> None:
        """What still runs ends with the picture."""
        for work_id in list(self._open):
            self._close(now_ns, work_id, "running", core)

    def _close(self, now_ns: int, work_id: str, outcome: str, core: ControlCore) -> None:
        if work_id in core.state.works and outcome != "running":
            return  # a report of an old fence: the work lives on
        start_ns, action = self._open.pop(work_id, (now_ns, None))
        if action is None:
            return
        num_devices = sum(len(rank.devices) for rank in action.placement)
        job = core.state.jobs.get(action.owner_id)
        bar = Bar(
            (now_ns - start_ns) * num_devices,
            work_id,
            action.owner_id,
            "" if job is None else job.queue,
            num_devices,
            start_ns,
            now_ns,
            outcome,
        )
        if len(self._bars) < MAX_BARS:
            heapq.heappush(self._bars, bar)
        else:
            heapq.heappushpop(self._bars, bar)
