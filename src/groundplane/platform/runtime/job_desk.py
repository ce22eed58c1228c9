"""What can be asked of jobs: submit, cancel, list, follow, explain. Between the HTTP routes and the driver.

Checks what a person asked for, makes ids, hands events to the driver and reads its core and SQL for answers.
Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from groundplane.control import events as ev
from groundplane.control.lifecycle.job import JOB
from groundplane.control.state import Job
from groundplane.control.views import JobExplanation, explain_job
from groundplane.platform.engines.contract import Engine
from groundplane.platform.runtime import launch, progress, tables
from groundplane.platform.runtime.database import Database
from groundplane.platform.runtime.driver import Driver
from groundplane.platform.runtime.job_history import JobView as JobView  # noqa: PLC0414
from groundplane.platform.runtime.job_history import past_job
from groundplane.spec.errors import InputError, nearest_name, unknown_name
from groundplane.spec.job import JobSpec

ID_ALPHABET: Final = "abcdefghjkmnpqrstuvwxyz23456789"
ID_CHARS: Final = 6
LIST_LIMIT: Final = 1000
"""Jobs listed at once, newest first."""
LOG_LIMIT_BYTES: Final = 256 << 10
"""Output given in one answer."""


class MissingError(InputError):
    """What was named is not there."""


class AttemptView(Struct, frozen=True):
    """One attempt or replica, from lease to proof that it is gone."""

    work_id: str
    fence: int
    devices: tuple[str, ...]
    leased_ns: int
    started_ns: int | None
    ready_ns: int | None
    gone_ns: int | None
    outcome: str
    exit_code: int
    detail: str
    checkpoint_step: int | None


class Explanation(Struct, frozen=True):
    """Why a job waits, or what became of it: attempts, restarts, last progress and where its time went."""

    job: JobView
    decision: JobExplanation | None
    attempts: list[AttemptView]
    last_step: int | None
    last_loss: float | None
    stages_ns: dict[str, int]


class LogPart(Struct, frozen=True):
    """A piece of one rank's output. `is_over`: nothing more will come of this work."""

    work_id: str
    rank: int
    text: str
    next_offset: int
    is_over: bool


class JobDesk:
    """Jobs of one platform.

    Args:
        state: the state folder.
        database: specs and history.
        driver: takes events.
        engine: knows where output lies.
    """

    def __init__(self, state: Path, database: Database, driver: Driver, engine: Engine) -> None:
        self._state = state
        self._database = database
        self._driver = driver
        self._engine = engine
        self._by_request: dict[str, asyncio.Lock] = {}

    async def submit(self, spec: JobSpec, *, project: str, request_id: str | None = None) -> JobView:
        """Takes a job in, durably. The same `request_id` again gives the same job.

        Raises:
            InputError: it could never run.
            Busy: too much waits already.
            StorageError: it could not be made durable.
        """
        if request_id is None:
            return await self._submit(spec, project, None)
        lock = self._by_request.setdefault(request_id, asyncio.Lock())
        try:
            async with lock:
                known = await asyncio.to_thread(self._find_request, request_id)
                if known is not None:
                    return await self.view(known)
                return await self._submit(spec, project, request_id)
        finally:
            if not lock.locked():
                self._by_request.pop(request_id, None)

    async def _submit(self, spec: JobSpec, project: str, request_id: str | None) -> JobView:
        await asyncio.to_thread(launch.check_job, spec, self._state, self._driver.core)
        job_id = f"{spec.name}-{''.join(secrets.choice(ID_ALPHABET) for _ in range(ID_CHARS))}"
        event = ev.JobSubmitted(
            job_id=job_id,
            name=spec.name,
            queue=spec.queue,
            priority=spec.priority,
            gang=launch.gang_of(spec, self._driver.core),
            restart=restart_policy(spec.restart),
            stop_grace_ns=round(spec.stop_grace_s * 1e9),
            time_limit_ns=round((spec.time_limit_s or 0) * 1e9),
            is_preemptible=spec.preemptible,
            larger_ranks=spec.sizes[1:],
            after=spec.after,
            group=spec.group,
            group_limit=spec.group_limit,
            deadline_ns=self._driver.now_ns() + round(spec.deadline_s * 1e9) if spec.deadline_s else 0,
            stops_at_checkpoint=launch.stops_at_checkpoint(spec),
        )
        row = {
            "job_id": job_id,
            "name": spec.name,
            "project": project,
            "request_id": request_id,
            "spec": msgspec.json.encode(spec).decode(),
            "submitted_ns": self._driver.now_ns(),
        }
        await self._driver.handle(event, lambda connection: connection.execute(tables.jobs.insert(), row))
        return self._view(self._driver.core.state.jobs[job_id], project)

    async def cancel(self, job_id: str) -> JobView:
        """Asks for the job's end; a job that is over stays as it is.

        Raises:
            MissingError: no such job.
        """
        view = await self.view(job_id)
        if view.state not in JOB.final:
            await self._driver.handle(ev.JobCancelRequested(job_id=view.job_id))
        return await self.view(view.job_id)

    async def list_jobs(self, *, only: str | None = None, limit: int = LIST_LIMIT) -> list[JobView]:
        """Jobs, newest first.

        Raises:
            InputError: `only` is no state of a job.
        """
        states = {JOB.initial, *JOB.transitions.values()}
        if only is not None and only not in states:
            raise unknown_name("state", only, states, field="only")
        jobs = self._driver.core.state.jobs
        wanted = [job for job in reversed(jobs.values()) if only is None or job.state == only][:limit]
        projects = await asyncio.to_thread(self._projects, [job.job_id for job in wanted])
        return [self._view(job, projects.get(job.job_id, "")) for job in wanted]

    async def view(self, job_id: str) -> JobView:
        """One job by its id or, the newest one, by its name.

        Raises:
            MissingError: no such job.
        """
        job = self._find(job_id)
        if job is None:
            past = await asyncio.to_thread(past_job, self._database, job_id)
            if past is not None:
                return past
            jobs = self._driver.core.state.jobs.values()
            names = [name for each in jobs for name in (each.job_id, each.name)]
            raise MissingError("no such job", field="job", value=job_id, nearest=nearest_name(job_id, names))
        projects = await asyncio.to_thread(self._projects, [job.job_id])
        return self._view(job, projects.get(job.job_id, ""))

    def _find(self, job_id: str) -> Job | None:
        """The core's job by id, or the newest of that name. It knows those that ended last, not all."""
        jobs = self._driver.core.state.jobs
        if job_id in jobs:
            return jobs[job_id]
        return next((job for job in reversed(jobs.values()) if job.name == job_id), None)

    async def explain(self, job_id: str) -> Explanation:
        """Why it waits, its attempts, and where its time went.

        Raises:
            MissingError: no such job.
        """
        view = await self.view(job_id)
        attempts = await asyncio.to_thread(self.attempts, view.job_id)
        folders = [self._state / "works" / attempt.work_id for attempt in attempts]
        told = await asyncio.to_thread(progress.read, folders)
        return Explanation(
            job=view,
            decision=explain_job(self._driver.core, view.job_id, self._driver.now_ns()),
            attempts=attempts,
            last_step=told.last_step,
            last_loss=told.last_loss,
            stages_ns=told.stages_ns,
        )

    def attempts(self, owner_id: str) -> list[AttemptView]:
        """Works of a job or a service, oldest first. Blocks on SQL."""
        works = tables.works
        query = sa.select(works).where(works.c.owner_id == owner_id).order_by(works.c.fence).limit(LIST_LIMIT)
        with self._database.reading() as connection:
            return [_attempt_view(row) for row in connection.execute(query).mappings()]

    async def logs(
        self, job_id: str, *, rank: int = 0, attempt: int | None = None, offset: int = 0
    ) -> LogPart:
        """Output of one rank of an attempt, by default the newest one, from a byte offset on.

        Raises:
            MissingError: no such job, attempt or rank.
        """
        job = await self.view(job_id)
        number = job.attempts if attempt is None else attempt
        if number == 0:
            return LogPart("", rank, "", 0, is_over=job.state in JOB.final)
        if not 1 <= number <= job.attempts:
            raise MissingError(f"must be from 1 to {job.attempts}", field="attempt", value=number)
        return await self.work_logs(f"{job.job_id}.a{number}", rank=rank, offset=offset)

    async def work_logs(self, work_id: str, *, rank: int = 0, offset: int = 0) -> LogPart:
        """Output of one rank of a work.

        Raises:
            MissingError: no such work or rank.
        """
        ranks = await asyncio.to_thread(self._num_ranks, work_id)
        if not 0 <= rank < ranks:
            raise MissingError(f"must be from 0 to {ranks - 1}", field="rank", value=rank)
        # Asked before reading: what is written between the two is read the next time.
        is_over = work_id not in self._driver.core.state.works
        path = self._engine.log_path(work_id, rank)
        text, next_offset = await asyncio.to_thread(read_part, path, offset)
        return LogPart(work_id, rank, text, next_offset, is_over=is_over and not text)

    def _view(self, job: Job, project: str) -> JobView:
        return JobView(
            job_id=job.job_id,
            name=job.name,
            project=project,
            queue=job.queue,
            priority=job.priority,
            state=job.state,
            ranks=job.gang.num_ranks,
            devices_per_rank=job.gang.devices_per_rank,
            submitted_ns=job.submitted_ns,
            started_ns=job.first_started_ns if job.first_started_ns >= 0 else None,
            ended_ns=job.ended_ns if job.ended_ns >= 0 else None,
            attempts=job.num_attempts,
            restarts_used=job.restarts_used,
            checkpoint_step=job.checkpoint_step if job.checkpoint_step >= 0 else None,
            work_id=job.work_id,
            reason=job.reason,
        )

    def _projects(self, job_ids: list[str]) -> dict[str, str]:
        jobs = tables.jobs.c
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(jobs.job_id, jobs.project).where(jobs.job_id.in_(job_ids)))
            return {row.job_id: row.project for row in rows}

    def _num_ranks(self, work_id: str) -> int:
        """Ranks of a work that was leased: only such ids become names of folders."""
        works = tables.works.c
        with self._database.reading() as connection:
            # Postgres holds no zero byte, not even to compare with.
            known = "\0" not in work_id
            query = sa.select(works.placement).where(works.work_id == work_id)
            found = connection.scalar(query) if known else None
        if found is None:
            raise MissingError("no such work", field="work", value=work_id)
        return len(msgspec.json.decode(found))

    def _find_request(self, request_id: str) -> str | None:
        jobs = tables.jobs.c
        with self._database.reading() as connection:
            found: str | None = connection.scalar(sa.select(jobs.job_id).where(jobs.request_id == request_id))
        return found


def restart_policy(spec: Any) -> ev.RestartPolicy:
    """A `RestartSpec` in the core's integers."""
    return ev.RestartPolicy(
        budget=spec.budget,
        backoff_ns=round(spec.backoff_s * 1e9),
        backoff_limit_ns=round(spec.backoff_limit_s * 1e9),
    )


def read_part(path: Path, offset: int) -> tuple[str, int]:
    """Text of a growing file from a byte offset on, and the offset of what comes next; blocks.

    Ends at a line's end where there is one, so that no character is cut in two.
    """
    try:
        with path.open("rb") as file:
            if offset > file.seek(0, 2):
                offset = 0  # A log that grew too long was begun anew.
            file.seek(offset)
            content = file.read(LOG_LIMIT_BYTES)
    except FileNotFoundError:
        return "", offset
    whole = content.rfind(b"\n") + 1
    if whole:
        content = content[:whole]
    return content.decode(errors="replace"), offset + len(content)


def _attempt_view(row: sa.RowMapping) -> AttemptView:
    placement = msgspec.json.decode(row["placement"])
    return AttemptView(
        work_id=row["work_id"],
        fence=row["fence"],
        devices=tuple(f"{rank['node_id']}/{device}" for rank in placement for device in rank["devices"]),
        leased_ns=row["leased_ns"],
        started_ns=row["started_ns"],
        ready_ns=row["ready_ns"],
        gone_ns=row["gone_ns"],
        outcome=row["outcome"],
        exit_code=row["exit_code"],
        detail=row["detail"],
        checkpoint_step=row["checkpoint_step"],
    )
