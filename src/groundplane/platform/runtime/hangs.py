"""Says when an attempt hangs: rank 0 has told of no progress for longer than its job allows.

Progress is a line in the work's `progress.jsonl` (a step, a checkpoint); before the first one, its start. The
file's time of change is all that is read. Only jobs with a `progress_limit` are watched.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from groundplane.control import events as ev
from groundplane.platform.runtime import tables
from groundplane.platform.runtime.database import Database
from groundplane.platform.runtime.driver import Driver
from groundplane.spec.units import show_duration

PERIOD_S: Final = 1.0


class HangWatch:
    """Watches the attempts of one platform.

    Args:
        state: the state folder.
        database: where the jobs' descriptions are.
        driver: knows which attempts run and takes `WorkStalled`.
    """

    def __init__(self, state: Path, database: Database, driver: Driver) -> None:
        self._state = state
        self._database = database
        self._driver = driver
        self._limits_s: dict[str, float] = {}
        self._told: dict[str, int] = {}

    async def watch(self) -> None:
        """Watches for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.look()

    async def look(self) -> None:
        """Looks at every running attempt once."""
        works = self._driver.core.state.works
        running = {
            work.work_id: (work.owner_id, work.fence)
            for work in works.values()
            if work.kind == "attempt" and work.state in {"running", "stepping"}
        }
        self._told = {work_id: fence for work_id, fence in self._told.items() if work_id in running}
        unknown = [owner for owner, _ in running.values() if owner not in self._limits_s]
        if unknown:
            self._limits_s |= await asyncio.to_thread(self._read_limits, unknown)
        owners = dict.fromkeys(owner for owner, _ in running.values())
        self._limits_s = {owner: self._limits_s[owner] for owner in owners}
        watched = [work_id for work_id, (owner, _) in running.items() if self._limits_s[owner]]
        silent_s = await asyncio.to_thread(self._silent_s, watched) if watched else {}
        for work_id, passed_s in silent_s.items():
            owner, fence = running[work_id]
            if passed_s > self._limits_s[owner] and self._told.get(work_id) != fence:
                self._told[work_id] = fence
                detail = f"nothing for {show_duration(passed_s)}"
                await self._driver.handle(ev.WorkStalled(work_id=work_id, fence=fence, detail=detail))

    def _read_limits(self, job_ids: list[str]) -> dict[str, float]:
        """Seconds without progress that each job allows; 0 for any."""
        jobs = tables.jobs.c
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(jobs.job_id, jobs.spec).where(jobs.job_id.in_(job_ids)))
            found = {row.job_id: _limit_s(msgspec.json.decode(row.spec)) for row in rows}
        return {job_id: found.get(job_id, 0.0) for job_id in job_ids}

    def _silent_s(self, work_ids: list[str]) -> dict[str, float]:
        """Seconds since the last progress of each work; since it began to run, where it told of none."""
        works = tables.works.c
        query = sa.select(works.work_id, works.started_ns).where(works.work_id.in_(work_ids))
        with self._database.reading() as connection:
            started_ns = {row.work_id: row.started_ns for row in connection.execute(query)}
        now_ns = time.time_ns()
        silent = {}
        for work_id, began_ns in started_ns.items():
            if began_ns is None:
                continue
            try:
                last_ns = (self._state / "works" / work_id / "progress.jsonl").stat().st_mtime_ns
            except OSError:
                last_ns = 0
            silent[work_id] = (now_ns - max(began_ns, last_ns)) / 1e9
        return silent


def _limit_s(spec: Any) -> float:
    return float(spec.get("progress_limit") or 0.0)
