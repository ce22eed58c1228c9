"""The routes of the control plane. Thin: what happens is in the desks.

Bodies are the same structs that files are checked by, so that a quantity may be written "8 GiB" or as a
number in base units. What a route works with it finds in the application's state (`api.Platform`).
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Annotated, Any, Final

from litestar import Request, Response, delete, get, post
from litestar.datastructures import State
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from groundplane import __version__
from groundplane.control.views import LedgerView, ledger_view
from groundplane.platform.runtime import identity
from groundplane.platform.runtime.driver import Driver
from groundplane.platform.runtime.http import needs, read_body
from groundplane.platform.runtime.identity import Key
from groundplane.platform.runtime.job_desk import (
    LIST_LIMIT,
    AttemptView,
    Explanation,
    JobDesk,
    JobView,
    LogPart,
    MissingError,
)
from groundplane.platform.runtime.node_routes import NODE_HANDLERS
from groundplane.platform.runtime.operation import body_operation
from groundplane.platform.runtime.service_desk import Service, ServiceDesk
from groundplane.platform.runtime.state import hidden_password
from groundplane.platform.runtime.window_desk import WINDOW_HANDLERS
from groundplane.spec.errors import InputError
from groundplane.spec.job import JobSpec
from groundplane.spec.quantity import Name, Seconds
from groundplane.spec.service import Replicas, ServiceSpec


class Status(Struct, frozen=True):
    """How the control plane does."""

    version: str
    database: str
    engine: str
    pid: int
    uptime_s: float
    journal_seq: int
    memory_bytes: int
    nodes: int
    devices: int
    devices_leased: int
    jobs: dict[str, int]
    services: dict[str, int]


class ScaleRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """How many replicas are wanted."""

    replicas: Replicas


class KeyRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to be made; it expires after `expires_s` seconds, or never."""

    name: Name
    project: Name = identity.DEFAULT_PROJECT
    role: str = "member"
    expires_s: Seconds | None = None


class NewKey(Struct, frozen=True):
    """A key just made. `secret` is shown this once."""

    secret: str
    key: Key


@get("/health", include_in_schema=False, sync_to_thread=False)
def health(state: State) -> Response[dict[str, str]]:
    """Whether the control plane can take events."""
    if state.driver.failure.done():
        return Response({"status": "failed"}, status_code=503)
    return Response({"status": "ok"})


@post("/jobs", guards=[needs("member")], operation_class=body_operation(JobSpec))
async def submit_job(request: Request[Key, Any, State], state: State) -> JobView:
    """Submits a job. A header `Idempotency-Key` makes repeating the request harmless."""
    spec = await read_body(request, JobSpec)
    desk: JobDesk = state.jobs
    request_id = request.headers.get("idempotency-key")
    return await desk.submit(spec, project=request.user.project, request_id=request_id)


@get("/jobs")
async def list_jobs(
    state: State,
    only: Annotated[str | None, QueryParameter(description="jobs in this state")] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=LIST_LIMIT)] = LIST_LIMIT,
) -> list[JobView]:
    """Jobs, newest first."""
    desk: JobDesk = state.jobs
    return await desk.list_jobs(only=only, limit=limit)


@get("/jobs/{job_id:str}")
async def view_job(job_id: FromPath[str], state: State) -> JobView:
    """One job, by its id or by its name (the newest)."""
    desk: JobDesk = state.jobs
    return await desk.view(job_id)


@post("/jobs/{job_id:str}/cancel", guards=[needs("member")], status_code=200)
async def cancel_job(job_id: FromPath[str], state: State) -> JobView:
    """Asks for a job's end."""
    desk: JobDesk = state.jobs
    return await desk.cancel(job_id)


@get("/jobs/{job_id:str}/logs")
async def job_logs(
    job_id: FromPath[str],
    state: State,
    rank: Annotated[int, QueryParameter(ge=0)] = 0,
    attempt: Annotated[int | None, QueryParameter(ge=1)] = None,
    offset: Annotated[int, QueryParameter(ge=0)] = 0,
) -> LogPart:
    """Output of one rank from a byte offset on, by default of the newest attempt."""
    desk: JobDesk = state.jobs
    return await desk.logs(job_id, rank=rank, attempt=attempt, offset=offset)


@get("/jobs/{job_id:str}/explain")
async def explain_job(job_id: FromPath[str], state: State) -> Explanation:
    """Why a job waits, its attempts, and where its time went."""
    desk: JobDesk = state.jobs
    return await desk.explain(job_id)


@post("/services", guards=[needs("member")], operation_class=body_operation(ServiceSpec))
async def deploy_service(request: Request[Key, Any, State], state: State) -> Service:
    """Creates a service or gives it a new description."""
    desk: ServiceDesk = state.services
    return await desk.deploy(await read_body(request, ServiceSpec), project=request.user.project)


@get("/services")
async def list_services(state: State) -> list[Service]:
    """All services."""
    desk: ServiceDesk = state.services
    return await desk.list_services()


@get("/services/{name:str}")
async def view_service(name: FromPath[str], state: State) -> Service:
    """One service."""
    desk: ServiceDesk = state.services
    return await desk.view(name)


@post(
    "/services/{name:str}/scale",
    guards=[needs("member")],
    status_code=200,
    operation_class=body_operation(ScaleRequest),
)
async def scale_service(name: FromPath[str], request: Request[Key, Any, State], state: State) -> Service:
    """Changes how many replicas are wanted."""
    desk: ServiceDesk = state.services
    return await desk.scale(name, (await read_body(request, ScaleRequest)).replicas)


@delete("/services/{name:str}", guards=[needs("member")], status_code=200)
async def remove_service(name: FromPath[str], state: State) -> Service:
    """Removes a service; its replicas drain first."""
    desk: ServiceDesk = state.services
    return await desk.remove(name)


@get("/services/{name:str}/replicas")
async def list_replicas(name: FromPath[str], state: State) -> list[AttemptView]:
    """Every replica that a service had, oldest first."""
    jobs: JobDesk = state.jobs
    services: ServiceDesk = state.services
    await services.view(name)
    return await asyncio.to_thread(jobs.attempts, name)


@get("/works/{work_id:str}/logs")
async def work_logs(
    work_id: FromPath[str], state: State, offset: Annotated[int, QueryParameter(ge=0)] = 0
) -> LogPart:
    """Output of rank 0 of an attempt or of a replica."""
    desk: JobDesk = state.jobs
    return await desk.work_logs(work_id, offset=offset)


@get("/ledger", sync_to_thread=False)
def read_ledger(state: State) -> LedgerView:
    """Where every device-nanosecond went; the accounts sum to the total exactly."""
    driver: Driver = state.driver
    return ledger_view(driver.core, driver.now_ns())


@get("/status", sync_to_thread=False)
def status(state: State) -> Status:
    """How the control plane does."""
    driver: Driver = state.driver
    core = driver.core.state
    jobs: dict[str, int] = {}
    for job in core.jobs.values():
        jobs[job.state] = jobs.get(job.state, 0) + 1
    services: dict[str, int] = {}
    for service in core.services.values():
        services[service.state] = services.get(service.state, 0) + 1
    return Status(
        version=__version__,
        database=hidden_password(str(state.database.url)),
        engine=state.engine.name,
        pid=os.getpid(),
        uptime_s=(driver.now_ns() - state.started_ns) / 1e9,
        journal_seq=driver.seq,
        memory_bytes=_resident_bytes(),
        nodes=len(core.nodes),
        devices=sum(node.num_devices for node in core.nodes.values()),
        devices_leased=sum(node.num_devices - node.num_free for node in core.nodes.values()),
        jobs=jobs,
        services=services,
    )


@get("/keys", guards=[needs("admin")])
async def list_keys(state: State) -> list[Key]:
    """All keys, without their secrets."""

    def read() -> list[Key]:
        with state.database.reading() as connection:
            return identity.list_keys(connection)

    return await asyncio.to_thread(read)


@post("/keys", guards=[needs("admin")], operation_class=body_operation(KeyRequest))
async def create_key(request: Request[Key, Any, State], state: State) -> NewKey:
    """Makes a key; its secret is in this answer and nowhere else."""
    wanted = await read_body(request, KeyRequest)
    now_ns = time.time_ns()
    expires_ns = None if wanted.expires_s is None else now_ns + round(wanted.expires_s * 1e9)

    def write() -> NewKey:
        with state.database.begin() as connection:
            secret, key = identity.create_key(
                connection,
                name=wanted.name,
                now_ns=now_ns,
                project=wanted.project,
                role=wanted.role,
                expires_ns=expires_ns,
            )
        state.key_ring.load(state.database)
        return NewKey(secret=secret, key=key)

    made: NewKey = await state.driver.sql(write)
    return made


@delete("/keys/{key_id:str}", guards=[needs("admin")], status_code=200)
async def revoke_key(key_id: FromPath[str], state: State) -> Key:
    """Ends a key, by its id or its first characters."""

    def write() -> Key:
        with state.database.begin() as connection:
            try:
                key = identity.revoke_key(connection, key_id, time.time_ns())
            except InputError as error:
                raise MissingError(error.rule, field="key", value=key_id, nearest=error.nearest) from None
        state.key_ring.load(state.database)
        return key

    ended: Key = await state.driver.sql(write)
    return ended


def _resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


HANDLERS: Final = [
    submit_job, list_jobs, view_job, cancel_job, job_logs, explain_job, deploy_service, list_services,
    view_service, scale_service, remove_service, list_replicas, work_logs, read_ledger, status,
    list_keys, create_key, revoke_key, *NODE_HANDLERS,
    *WINDOW_HANDLERS,
]  # fmt: skip
