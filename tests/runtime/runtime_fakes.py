"""An engine without processes, to inject faults in the driver's tests: starts nothing and says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from groundplane.control import actions as act
from groundplane.platform.engines.contract import Launch, NodeOffer, Report
from groundplane.platform.runtime.store import Prepared


class World:
    """What outlives a control plane: the works as they really are, with every report ever made of them."""

    def __init__(self, num_devices: int = 2) -> None:
        self.num_devices = num_devices
        self.starts: list[tuple[str, int]] = []
        self.stops: list[tuple[str, int]] = []
        self.reports: dict[str, list[Report]] = {}
        self.fences: dict[str, int] = {}

    def is_gone(self, work_id: str) -> bool:
        return any(report.what == "gone" for report in self.reports.get(work_id, []))


class FakeEngine:
    """Obeys the contract over a `World`. `deaf` keeps reports back; `broken` fails starts with OSError."""

    name = "fake"

    def __init__(self, world: World) -> None:
        self.world = world
        self.deaf = False
        self.broken = False
        self._on_report: Callable[[Report], None] | None = None
        self._watched: set[str] = set()

    async def open(self, on_report: Callable[[Report], None]) -> list[NodeOffer]:
        self._on_report = on_report
        return [NodeOffer("fake", "cpu", self.world.num_devices, 8 << 30)]

    async def start(self, launch: Launch) -> None:
        if self.broken:
            raise OSError("no space left")
        if launch.work_id not in self.world.fences:
            self.world.starts.append((launch.work_id, launch.fence))
            self.world.fences[launch.work_id] = launch.fence
            self.world.reports[launch.work_id] = []
            self._watched.add(launch.work_id)
            self.tell(launch.work_id, "started")

    async def stop(self, work_id: str, fence: int, grace_ns: int) -> None:
        self.world.stops.append((work_id, fence))
        self.world.fences.setdefault(work_id, fence)
        self._watched.add(work_id)
        if not self.world.is_gone(work_id):
            self.tell(work_id, "gone", outcome="stopped")

    async def reattach(self, work_id: str, fence: int) -> None:
        self._watched.add(work_id)
        for report in self.world.reports.get(work_id, []):
            self._deliver(report)

    def log_path(self, work_id: str, rank: int) -> Path:
        return Path("/nonexistent") / work_id / f"rank-{rank}.log"

    async def close(self) -> None:
        self._on_report = None

    def tell(self, work_id: str, what: str, *, outcome: str = "", step: int = 0, exit_code: int = 0) -> None:
        """Something happens to a work; it is remembered, and reported unless nobody listens."""
        told = self.world.reports.setdefault(work_id, [])
        report = Report(
            work_id,
            self.world.fences[work_id],
            len(told) + 1,
            what,  # type: ignore[arg-type]
            outcome=outcome,  # type: ignore[arg-type]
            step=step,
            exit_code=exit_code,
        )
        told.append(report)
        if work_id in self._watched and not self.deaf:
            self._deliver(report)

    def _deliver(self, report: Report) -> None:
        if self._on_report is not None:
            self._on_report(report)


class FakeLauncher:
    """Launches `true` for every lease, or refuses with `refuse_with`."""

    def __init__(self) -> None:
        self.refuse_with: Exception | None = None

    def prepare(self, action: act.StartWork) -> Prepared:
        if self.refuse_with is not None:
            raise self.refuse_with
        num_ranks = len(action.placement)
        return Prepared(
            launch=Launch(
                work_id=action.work_id,
                fence=action.fence,
                kind=action.kind,
                placement=action.placement,
                commands=(("true",),) * num_ranks,
                envs=({},) * num_ranks,
                memory_bytes_per_rank=0,
            )
        )
