"""Helpers of the engine tests: a harness that runs an engine, and a look for processes left behind."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from groundplane.control.actions import RankPlacement
from groundplane.platform.engines.contract import Engine, Launch, NodeOffer, Report

TAG = "GROUNDPLANE_TEST_TAG"
DEADLINE_S = 60.0


def python(source: str) -> tuple[str, ...]:
    """A command that runs Python source without site packages, which starts quickly."""
    return (sys.executable, "-I", "-S", "-c", source)


def shell(source: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", source)


class Harness:
    """One engine with a loop of its own. The loop turns only while a method of this class waits."""

    def __init__(self, engine: Engine, tag: str) -> None:
        self.engine = engine
        self.tag = tag
        self.reports: list[Report] = []
        self.loop = asyncio.new_event_loop()
        self.loop_errors: list[dict[str, object]] = []
        self.loop.set_exception_handler(lambda _, context: self.loop_errors.append(context))
        try:
            self.offers: list[NodeOffer] = self.loop.run_until_complete(engine.open(self.reports.append))
        except BaseException:
            self.loop.close()
            raise

    def launch(
        self,
        work_id: str,
        *commands: Sequence[str],
        fence: int = 1,
        kind: str = "attempt",
        memory_bytes: int = 0,
        ready_url: str = "",
        env: dict[str, str] | None = None,
        devices: Sequence[tuple[int, ...]] | None = None,
    ) -> Launch:
        placement = []
        for rank in range(len(commands)):
            offer = self.offers[rank % len(self.offers)]
            mine = devices[rank] if devices is not None else (rank // len(self.offers) % offer.num_devices,)
            placement.append(RankPlacement(offer.node_id, mine))
        return Launch(
            work_id,
            fence,
            "replica" if kind == "replica" else "attempt",
            tuple(placement),
            tuple(tuple(command) for command in commands),
            tuple({TAG: self.tag, **(env or {})} for _ in commands),
            memory_bytes,
            ready_url,
        )

    def start(self, launch: Launch) -> None:
        self.loop.run_until_complete(self.engine.start(launch))

    def stop(self, work_id: str, fence: int = 1, grace_s: float = 5.0) -> None:
        self.loop.run_until_complete(self.engine.stop(work_id, fence, int(grace_s * 1e9)))

    def reattach(self, work_id: str, fence: int = 1) -> None:
        self.loop.run_until_complete(self.engine.reattach(work_id, fence))

    def of(self, work_id: str, fence: int | None = None) -> list[Report]:
        return [r for r in self.reports if r.work_id == work_id and fence in {None, r.fence}]

    def whats(self, work_id: str) -> list[str]:
        return [report.what for report in self.of(work_id)]

    def wait(self, condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
        """Turns the loop until the condition holds."""

        async def turn() -> None:
            end_s = time.monotonic() + deadline_s
            while not condition():
                if time.monotonic() > end_s:
                    raise TimeoutError(f"not within {deadline_s} s; reports: {self.reports}")
                await asyncio.sleep(0.005)

        self.loop.run_until_complete(turn())

    def wait_for(self, work_id: str, what: str, fence: int | None = None) -> Report:
        """The last report of that kind, waiting for the first."""
        self.wait(lambda: any(report.what == what for report in self.of(work_id, fence)))
        return [report for report in self.of(work_id, fence) if report.what == what][-1]

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.run_until_complete(self.engine.close())
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()
        assert self.loop_errors == []


def left_behind(tag: str) -> list[int]:
    """Pids of the living processes that carry a tag in their environment."""
    needle = f"{TAG}={tag}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if needle in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


def wait_until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Polls until a condition holds, where no engine runs."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {deadline_s} s"
        time.sleep(0.005)
