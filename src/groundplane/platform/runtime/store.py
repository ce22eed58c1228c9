"""Journal, snapshots and what is read from them, in SQL: one transaction a batch of events.

`append` writes each event with its actions to the journal and brings the tables that follow from it (works,
timers, endpoints, ends of jobs) up to it in the same transaction, so that they cannot tell different stories.
Decides nothing; all calls block and belong on the driver's writer thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.engine import Connection

from groundplane.control import actions as act
from groundplane.control import events as ev
from groundplane.control.actions import AnyAction, RankPlacement
from groundplane.control.journal import JournalRecord, SnapshotRecord, decode_record, encode_record
from groundplane.platform.engines.contract import Launch
from groundplane.platform.runtime import tables
from groundplane.platform.runtime.database import Database, upsert

SNAPSHOTS_KEPT: Final = 2
READ_BATCH: Final = 1000

Also = Callable[[Connection], object]
"""Further rows to write in the transaction of an event (the spec of a job, say)."""


class Endpoint(Struct, frozen=True):
    """Where the gateway finds a replica: the base URL of its OpenAI API, with `/v1`."""

    service_id: str
    model_name: str
    server: str
    url: str


class Prepared(Struct, frozen=True):
    """A lease made ready to run; `endpoint` for a replica."""

    launch: Launch
    endpoint: Endpoint | None = None


class Entry(Struct, frozen=True):
    """A record on its way into the journal, with what belongs into the same transaction."""

    record: JournalRecord
    position: int | None = None
    """For an event made of an engine's report: its position."""
    also: Also | None = None


class LiveWork(Struct, frozen=True):
    """A work that was leased and is not gone, as the journal tells it."""

    action: act.StartWork
    prepared: Prepared | None
    position: int
    draining_ns: int | None
    stop: act.StopWork | None


def append(database: Database, entries: Sequence[Entry]) -> None:
    """Makes a batch durable, whole or not at all.

    Raises:
        StorageError: nothing of it was written.
    """
    with database.begin() as connection:
        rows = [
            {
                "seq": entry.record.seq,
                "kind": type(entry.record.event).__name__,
                "now_ns": entry.record.now_ns,
                "payload": encode_record(entry.record),
            }
            for entry in entries
        ]
        connection.execute(tables.journal.insert(), rows)
        for entry in entries:
            _follow_event(connection, entry)
            for action in entry.record.actions:
                _follow_action(connection, action, entry.record.now_ns)
            if entry.also is not None:
                entry.also(connection)


def records(database: Database, after_seq: int = 0) -> Iterator[JournalRecord]:
    """The journal behind `after_seq`, in order, read in batches.

    Raises:
        InputError: a record that this version does not understand.
    """
    while True:
        query = sa.select(tables.journal.c.payload).where(tables.journal.c.seq > after_seq)
        with database.reading() as connection:
            payloads = connection.scalars(query.order_by(tables.journal.c.seq).limit(READ_BATCH)).all()
        for payload in payloads:
            record = decode_record(payload)
            after_seq = record.seq
            yield record
        if len(payloads) < READ_BATCH:
            return


def newest_snapshot(database: Database) -> SnapshotRecord | None:
    """The snapshot to start from, or None to replay from the beginning."""
    newest = sa.select(tables.snapshots).order_by(tables.snapshots.c.seq.desc()).limit(1)
    with database.reading() as connection:
        row = connection.execute(newest).mappings().first()
    return SnapshotRecord(**row) if row is not None else None


def write_snapshot(database: Database, snapshot: SnapshotRecord) -> None:
    """Keeps a snapshot and drops all but the newest few.

    Raises:
        StorageError: it was not written.
    """
    with database.begin() as connection:
        upsert(tables.snapshots, connection, msgspec.structs.asdict(snapshot), key="seq")
        newest = sa.select(tables.snapshots.c.seq).order_by(tables.snapshots.c.seq.desc())
        kept = connection.scalars(newest.limit(SNAPSHOTS_KEPT)).all()
        connection.execute(tables.snapshots.delete().where(tables.snapshots.c.seq.not_in(kept)))


def pending_timers(database: Database) -> dict[str, int]:
    """Timers that are set: id to due time in nanoseconds."""
    with database.reading() as connection:
        rows = connection.execute(sa.select(tables.timers.c.timer_id, tables.timers.c.at_ns))
        return {row.timer_id: row.at_ns for row in rows}


def live_works(database: Database) -> list[LiveWork]:
    """Every work that is not gone, oldest first."""
    works = tables.works
    alive = sa.select(works).where(works.c.gone_ns.is_(None)).order_by(works.c.leased_ns, works.c.fence)
    with database.reading() as connection:
        return [_live_work(row) for row in connection.execute(alive).mappings()]


def keep_prepared(database: Database, prepared: Prepared) -> None:
    """Keeps how a work is launched, before it is: a launch repeated after a crash is then the same one."""
    with database.begin() as connection:
        connection.execute(
            tables.works.update()
            .where(tables.works.c.work_id == prepared.launch.work_id)
            .values(launch=msgspec.json.encode(prepared).decode())
        )


def add_endpoint(connection: Connection, work_id: str, fence: int, endpoint: Endpoint, now_ns: int) -> None:
    """The gateway may send requests to this work from now on."""
    row = {"work_id": work_id, "fence": fence, "state": "ready", "updated_ns": now_ns}
    upsert(tables.endpoints, connection, row | msgspec.structs.asdict(endpoint), key="work_id")


def _live_work(row: sa.RowMapping) -> LiveWork:
    action = act.StartWork(
        work_id=row["work_id"],
        kind=row["kind"],
        owner_id=row["owner_id"],
        fence=row["fence"],
        placement=msgspec.json.decode(row["placement"], type=tuple[RankPlacement, ...]),
        generation=row["generation"],
    )
    stop = None
    if row["stop_grace_ns"] is not None:
        stop = act.StopWork(
            work_id=action.work_id,
            fence=action.fence,
            grace_ns=row["stop_grace_ns"],
            reason=row["stop_reason"],
        )
    prepared = msgspec.json.decode(row["launch"], type=Prepared) if row["launch"] else None
    return LiveWork(
        action=action,
        prepared=prepared,
        position=row["position"],
        draining_ns=row["draining_ns"],
        stop=stop,
    )


def _follow_event(connection: Connection, entry: Entry) -> None:
    event, now_ns = entry.record.event, entry.record.now_ns
    values: dict[str, object] = {} if entry.position is None else {"position": entry.position}
    match event:
        case ev.TimerFired(timer_id=timer_id):
            timers = tables.timers
            # One that was set anew in the meantime lies in the future and stays.
            due = (timers.c.timer_id == timer_id) & (timers.c.at_ns <= now_ns)
            connection.execute(timers.delete().where(due))
            return
        case ev.WorkStarted():
            values["started_ns"] = now_ns
        case ev.WorkReady():
            values["ready_ns"] = now_ns
        case ev.CheckpointCommitted(step=step):
            values["checkpoint_step"] = step
        case ev.WorkGone(outcome=outcome, exit_code=exit_code, detail=detail):
            values |= {"gone_ns": now_ns, "outcome": outcome, "exit_code": exit_code, "detail": detail}
        case ev.WorkUnready() | ev.WorkDrained():
            pass
        case _:
            return
    if values:
        connection.execute(
            tables.works.update()
            .where((tables.works.c.work_id == event.work_id) & (tables.works.c.fence == event.fence))
            .values(values)
        )
    if isinstance(event, ev.WorkGone | ev.WorkUnready):
        connection.execute(tables.endpoints.delete().where(tables.endpoints.c.work_id == event.work_id))


def _follow_action(connection: Connection, action: AnyAction, now_ns: int) -> None:
    match action:
        case act.StartWork():
            row = {
                "work_id": action.work_id,
                "kind": action.kind,
                "owner_id": action.owner_id,
                "generation": action.generation,
                "fence": action.fence,
                "placement": msgspec.json.encode(action.placement).decode(),
                "leased_ns": now_ns,
            }
            connection.execute(tables.works.insert(), row)
        case act.StopWork(work_id=work_id, grace_ns=grace_ns, reason=reason):
            connection.execute(
                tables.works.update()
                .where(tables.works.c.work_id == work_id)
                .values(stop_grace_ns=grace_ns, stop_reason=reason)
            )
        case act.DrainWork(work_id=work_id):
            connection.execute(
                tables.works.update().where(tables.works.c.work_id == work_id).values(draining_ns=now_ns)
            )
            connection.execute(
                tables.endpoints.update()
                .where(tables.endpoints.c.work_id == work_id)
                .values(state="draining", updated_ns=now_ns)
            )
        case act.SetTimer(timer_id=timer_id, at_ns=at_ns):
            values = {"timer_id": timer_id, "at_ns": at_ns}
            upsert(tables.timers, connection, values, key="timer_id")
        case act.JobEnded(job_id=job_id, outcome=outcome, reason=reason):
            connection.execute(
                tables.jobs.update()
                .where(tables.jobs.c.job_id == job_id)
                .values(ended_ns=now_ns, outcome=outcome, reason=reason)
            )
