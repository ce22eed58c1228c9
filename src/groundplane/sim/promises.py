"""What users and operators were promised, beyond the books: kept from events and actions.

- A job that was cancelled, or one attempt of which had succeeded after all, starts no more.
- A replica that answers requests drains before it is stopped, unless it hangs or its node is lost.
- What is left of a gang that lost a node is stopped.
- A service never has more replicas that stay than are wanted.
- Among jobs of one queue that ask for the same and run as long, the higher priority starts first.
- What may not have been carried out before a crash is carried out after it: every start not seen to run,
  every drain, every stop and every timer; and nothing that runs is started again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from groundplane.control.actions import AnyAction, DrainWork, JobEnded, SetTimer, StartWork, StopWork
from groundplane.control.core import ControlCore
from groundplane.control.events import (
    AnyEvent,
    CheckpointCommitted,
    JobCancelRequested,
    JobSubmitted,
    ServiceDeployed,
    ServiceRemoved,
    ServiceScaled,
    WorkGone,
    WorkReady,
    WorkStarted,
)
from groundplane.spec.errors import GroundplaneError

WITHOUT_DRAIN = ("node ", "did not answer", "no progress")
"""How reasons begin for which a replica is stopped without a drain: it is lost or hangs."""


class ViolationError(GroundplaneError):
    """An invariant of the control core does not hold."""


@dataclass
class _Run:
    """A work that was started and is not known to be gone."""

    action: StartWork
    has_started: bool = False
    is_ready: bool = False
    is_draining: bool = False
    is_stopping: bool = False


@dataclass
class _Service:
    generation: int
    num_replicas: int
    is_removed: bool = False


@dataclass
class Promises:
    """Watches one control plane; raises `ViolationError` at the first promise that is broken."""

    _runs: dict[str, _Run] = field(default_factory=dict)
    _over: dict[str, str] = field(default_factory=dict)
    _ended: dict[str, str] = field(default_factory=dict)
    _last_lost: dict[str, tuple[str, int]] = field(default_factory=dict)
    _jobs: dict[str, JobSubmitted] = field(default_factory=dict)
    _services: dict[str, _Service] = field(default_factory=dict)

    def check(self, event: AnyEvent, actions: list[AnyAction], core: ControlCore) -> None:
        """Takes note of an event and its actions, then asks whether all promises hold.

        Raises:
            ViolationError: one does not.
        """
        queued_before = {job.job_id for job in core.state.jobs.values() if job.state == "queued"}
        self._note_event(event)
        for action in actions:
            match action:
                case StartWork():
                    self._note_start(action, core, queued_before)
                case DrainWork(work_id):
                    self._runs[work_id].is_draining = True
                case StopWork():
                    self._note_stop(action)
                case JobEnded(job_id, outcome):
                    self._ended[job_id] = outcome
        self._forget_gone(core)
        self._check_lost(core)
        self._check_services()
        self._check_pending(core)

    # Notes -----------------------------------------------------------------------------------------------

    def _note_event(self, event: AnyEvent) -> None:
        match event:
            case JobSubmitted():
                self._jobs.setdefault(event.job_id, event)
            case JobCancelRequested(job_id):
                if job_id in self._jobs and job_id not in self._ended:
                    self._over.setdefault(job_id, "was cancelled")
            case (
                WorkStarted(work_id, fence) | WorkReady(work_id, fence) | CheckpointCommitted(work_id, fence)
            ):
                run = self._run(work_id, fence)
                if run is not None:
                    run.has_started = True
                    run.is_ready = run.is_ready or isinstance(event, WorkReady)
            case WorkGone():
                self._note_gone(event)
            case ServiceDeployed():
                self._note_deployed(event)
            case ServiceScaled(service_id, num_replicas):
                service = self._services.get(service_id)
                if service is not None and not service.is_removed:
                    service.num_replicas = num_replicas
            case ServiceRemoved(service_id):
                service = self._services.get(service_id)
                if service is not None:
                    service.is_removed, service.num_replicas = True, 0

    def _note_deployed(self, event: ServiceDeployed) -> None:
        service = self._services.get(event.service_id)
        if service is None or event.generation > service.generation:
            self._services[event.service_id] = _Service(event.generation, event.num_replicas)

    def _note_gone(self, event: WorkGone) -> None:
        run = self._run(event.work_id, event.fence)
        if run is not None:
            if run.action.kind == "attempt" and event.outcome != "succeeded":
                self._last_lost[run.action.owner_id] = (event.work_id, event.fence)
            del self._runs[event.work_id]
            return
        owner = event.work_id.rpartition(".a")[0]
        is_last = self._last_lost.get(owner) == (event.work_id, event.fence)
        if is_last and event.outcome == "succeeded" and owner not in self._ended:
            self._over.setdefault(owner, "had succeeded")

    def _forget_gone(self, core: ControlCore) -> None:
        """A work whose every node was fenced is given up without a report of its own."""
        for work_id in [work_id for work_id in self._runs if work_id not in core.state.works]:
            run = self._runs.pop(work_id)
            if run.action.kind == "attempt":
                self._last_lost[run.action.owner_id] = (work_id, run.action.fence)

    def _note_start(self, action: StartWork, core: ControlCore, queued: set[str]) -> None:
        self._runs[action.work_id] = _Run(action)
        if action.kind != "attempt":
            return
        if action.owner_id in self._over:
            raise ViolationError(f"{action.work_id} starts though its job {self._over[action.owner_id]}")
        mine = self._jobs[action.owner_id]
        for other_id in queued:
            other = self._jobs[other_id]
            if other.priority > mine.priority and _are_alike(mine, other) and self._is_plain(core, mine):
                raise ViolationError(f"{action.work_id} starts before {other_id}, of higher priority")

    def _is_plain(self, core: ControlCore, job: JobSubmitted) -> bool:
        """Whether nothing but priority and submission can decide about its turn."""
        return not core.state.windows and not job.larger_ranks

    def _note_stop(self, action: StopWork) -> None:
        run = self._runs[action.work_id]
        is_cut_off = run.action.kind == "replica" and run.is_ready and not run.is_draining
        if is_cut_off and not action.reason.startswith(WITHOUT_DRAIN):
            raise ViolationError(f"{action.work_id} is stopped without a drain: {action.reason}")
        run.is_stopping = True

    def _run(self, work_id: str, fence: int) -> _Run | None:
        run = self._runs.get(work_id)
        return run if run is not None and run.action.fence == fence else None

    # Promises --------------------------------------------------------------------------------------------

    def _check_lost(self, core: ControlCore) -> None:
        """Of a gang that lost a node the rest is asked to stop: it cannot go on, and must be proven gone."""
        for work_id, run in self._runs.items():
            if core.state.works[work_id].lost_nodes and not run.is_stopping:
                raise ViolationError(f"{work_id} lost a node, and its rest is not stopped")

    def _check_services(self) -> None:
        staying: dict[str, int] = {}
        for run in self._runs.values():
            if run.action.kind == "replica" and not run.is_draining and not run.is_stopping:
                staying[run.action.owner_id] = staying.get(run.action.owner_id, 0) + 1
        for service_id, num_replicas in staying.items():
            wanted = self._services[service_id].num_replicas
            if num_replicas > wanted:
                raise ViolationError(
                    f"{service_id} has {num_replicas} replicas that stay, wanted are {wanted}"
                )

    def _check_pending(self, core: ControlCore) -> None:
        """What a control plane that died now would carry out again."""
        starts: dict[str, int] = {}
        drains: dict[str, int] = {}
        stops: dict[str, int] = {}
        timers: dict[str, int] = {}
        for action in core.pending_actions():
            match action:
                case StartWork(work_id, fence=fence):
                    starts[work_id] = fence
                case DrainWork(work_id, fence):
                    drains[work_id] = fence
                case StopWork(work_id, fence):
                    stops[work_id] = fence
                case SetTimer(timer_id, at_ns):
                    timers[timer_id] = at_ns
        for work_id, run in self._runs.items():
            fence = run.action.fence
            if run.is_stopping and stops.get(work_id) != fence:
                raise ViolationError(f"the stop of {work_id} would be lost with the control plane")
            if run.is_draining and not run.is_stopping and drains.get(work_id) != fence:
                raise ViolationError(f"the drain of {work_id} would be lost with the control plane")
            is_new = not (run.has_started or run.is_draining or run.is_stopping)
            again = starts.pop(work_id, None)
            if again != (fence if is_new else None):
                what = "lost" if is_new else "repeated"
                raise ViolationError(f"the start of {work_id} would be {what} with the control plane")
        if starts:
            raise ViolationError(f"works that nobody started would be started: {sorted(starts)}")
        if timers != {timer_id: timer.at_ns for timer_id, timer in core.state.timers.items()}:
            raise ViolationError("timers would be lost with the control plane")


def _are_alike(mine: JobSubmitted, other: JobSubmitted) -> bool:
    """Whether two jobs stand in one line, and fit into the same gaps of time."""
    return (
        (mine.queue, mine.gang, mine.predicted_run_ns) == (other.queue, other.gang, other.predicted_run_ns)
        and mine.larger_ranks == other.larger_ranks
        and mine.is_preemptible == other.is_preemptible
    )
