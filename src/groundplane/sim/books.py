"""What each device's accounts must be, found by plain integration: the checker's own books.

Between two events the time of every device goes to one account, by what was known before the second of
them. That is slow and obvious, and shares nothing with the ledger's settling. Free and fragmented time are
one here. Time is counted in nanoseconds times units of a device, of which a whole one has 7,000.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from groundplane.control.actions import AnyAction, DrainWork, StartWork, StopWork
from groundplane.control.events import AnyEvent, CheckpointCommitted, WorkReady, WorkStarted, WorkUnready

Place = tuple[str, int]
"""A node and the index of a device there."""


@dataclass
class Expected:
    """Nanoseconds times units of one device, or of several."""

    idle_ns: int = 0
    busy_ns: int = 0
    wasted_ns: int = 0
    maintenance_ns: int = 0
    open_ns: int = 0

    def add(self, other: Expected) -> None:
        """Adds those of another device."""
        self.idle_ns += other.idle_ns
        self.busy_ns += other.busy_ns
        self.wasted_ns += other.wasted_ns
        self.maintenance_ns += other.maintenance_ns
        self.open_ns += other.open_ns

    def total_ns(self) -> int:
        """All that is accounted for."""
        return self.idle_ns + self.busy_ns + self.wasted_ns + self.maintenance_ns + self.open_ns


@dataclass
class _Run:
    """A work that holds devices: what it has done since its lease."""

    action: StartWork
    is_busy: bool = False
    is_leaving: bool = False
    is_stopping: bool = False
    has_started: bool = False
    step: int = -1
    idle_ns: int = 0
    safe_ns: int = 0
    at_risk_ns: int = 0


@dataclass
class Books:
    """The accounts of all devices, and the works that hold some."""

    devices: dict[Place, Expected] = field(default_factory=dict)
    _runs: dict[str, _Run] = field(default_factory=dict)
    _now_ns: int = 0

    def pass_time(self, now_ns: int, unleased: list[tuple[Place, int, bool]]) -> None:
        """Books the time since the last event.

        Args:
            unleased: devices, the units of each that nobody held in that time, and whether its node was open.
        """
        elapsed_ns = now_ns - self._now_ns
        self._now_ns = now_ns
        for run in self._runs.values():
            if not run.is_busy:
                run.idle_ns += elapsed_ns
            elif run.action.kind == "attempt":
                run.at_risk_ns += elapsed_ns
            else:
                run.safe_ns += elapsed_ns
        for place, units, is_open in unleased:
            if is_open:
                self.devices[place].open_ns += elapsed_ns * units
            else:
                self.devices[place].maintenance_ns += elapsed_ns * units

    def note_event(self, event: AnyEvent) -> None:
        """A report on a work changes what its time counts as."""
        if not isinstance(event, WorkStarted | WorkReady | WorkUnready | CheckpointCommitted):
            return
        run = self._runs.get(event.work_id)
        if run is None or run.action.fence != event.fence:
            return
        if run.action.kind == "replica":
            if not run.is_leaving and not isinstance(event, WorkStarted | CheckpointCommitted):
                run.is_busy = isinstance(event, WorkReady)
        elif not isinstance(event, WorkUnready):
            self._note_attempt(run, event)

    def note_action(self, action: AnyAction) -> None:
        """An order to a work changes what its time counts as."""
        match action:
            case StartWork():
                self._runs[action.work_id] = _Run(action)
            case DrainWork(work_id):
                self._runs[work_id].is_leaving = True
            case StopWork(work_id):
                run = self._runs[work_id]
                run.is_leaving = run.is_stopping = True
                run.is_busy = False

    def give_back(self, work_id: str, places: list[Place], units: int, *, is_failure: bool) -> None:
        """The work's time on these devices, of each of which it had so many units, is known for good."""
        run = self._runs[work_id]
        for place in places:
            device = self.devices[place]
            device.idle_ns += run.idle_ns * units
            device.busy_ns += run.safe_ns * units
            if is_failure:
                device.wasted_ns += run.at_risk_ns * units
            else:
                device.busy_ns += run.at_risk_ns * units

    def forget(self, work_id: str) -> None:
        """The work holds nothing any more."""
        del self._runs[work_id]

    def expected(self, place: Place, holders: dict[str, int]) -> Expected:
        """The accounts of a device now; work at risk counts as busy until it is lost.

        Args:
            holders: works that hold it, and how many units each.
        """
        device = self.devices[place]
        busy_ns, idle_ns = device.busy_ns, device.idle_ns
        for holder, units in holders.items():
            run = self._runs[holder]
            busy_ns += (run.safe_ns + run.at_risk_ns) * units
            idle_ns += run.idle_ns * units
        return Expected(idle_ns, busy_ns, device.wasted_ns, device.maintenance_ns, device.open_ns)

    def _note_attempt(self, run: _Run, event: WorkStarted | WorkReady | CheckpointCommitted) -> None:
        if isinstance(event, CheckpointCommitted):
            if event.step <= run.step:
                return
            run.step = event.step
            run.safe_ns += run.at_risk_ns
            run.at_risk_ns = 0
        if not run.has_started and not run.is_stopping:
            run.has_started = run.is_busy = True
