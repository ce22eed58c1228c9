"""Jobs that the control core has forgotten: what SQL still knows of them.

The core keeps the jobs that have not ended and the newest that have; the tables keep all. Blocks on SQL.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.engine import Connection

from groundplane.platform.runtime import tables
from groundplane.platform.runtime.database import Database
from groundplane.spec.job import JobSpec
from groundplane.spec.load import from_data


class JobView(Struct, frozen=True):
    """A job as it stands. Times in nanoseconds since 1970, None where not yet."""

    job_id: str
    name: str
    project: str
    queue: str
    priority: int
    state: str
    ranks: int
    devices_per_rank: int
    submitted_ns: int
    started_ns: int | None
    ended_ns: int | None
    attempts: int
    restarts_used: int
    checkpoint_step: int | None
    work_id: str
    reason: str


def past_job(database: Database, job_id: str) -> JobView | None:
    """A job that has ended, by its id or, the newest one, by its name; None if there is none."""
    if "\0" in job_id:
        return None  # Postgres holds no zero byte, not even to compare with.
    jobs = tables.jobs
    named = sa.select(jobs).where(
        (jobs.c.job_id == job_id) | (jobs.c.name == job_id), jobs.c.ended_ns.is_not(None)
    )
    order = (sa.case((jobs.c.job_id == job_id, 0), else_=1), jobs.c.submitted_ns.desc())
    with database.reading() as connection:
        row = connection.execute(named.order_by(*order).limit(1)).mappings().first()
        return None if row is None else _view(connection, row)


def _view(connection: Connection, row: sa.RowMapping) -> JobView:
    spec = from_data(msgspec.json.decode(row["spec"]), JobSpec, bare=True)
    works = tables.works.c
    of_job = sa.select(works.work_id, works.leased_ns, works.checkpoint_step, works.outcome)
    attempts = connection.execute(of_job.where(works.owner_id == row["job_id"]).order_by(works.fence)).all()
    steps = [each.checkpoint_step for each in attempts if each.checkpoint_step is not None]
    return JobView(
        job_id=row["job_id"],
        name=row["name"],
        project=row["project"],
        queue=spec.queue,
        priority=spec.priority,
        state=row["outcome"],
        ranks=spec.ranks,
        devices_per_rank=spec.devices_per_rank,
        submitted_ns=row["submitted_ns"],
        started_ns=attempts[0].leased_ns if attempts else None,
        ended_ns=row["ended_ns"],
        attempts=len(attempts),
        restarts_used=sum(each.outcome not in {"succeeded", "stopped"} for each in attempts[:-1]),
        checkpoint_step=max(steps, default=None),
        work_id=attempts[-1].work_id if attempts else "",
        reason=row["reason"],
    )
