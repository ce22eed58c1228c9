"""From the metering log to SQL, exactly once; and what was left open by a gateway that died.

Rows are inserted by request id, first come, first kept, and the position in the log moves in the same
transaction: whatever is killed between, no request is lost or counted twice. While SQL is away the log grows
and nothing else happens. Blocking; call it from a thread.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import Connection, Insert, Table, select

from groundplane.platform.runtime.database import Database
from groundplane.platform.serving.metering import (
    Progress,
    Record,
    Reservation,
    Settlement,
    read_segment,
    segments,
)
from groundplane.platform.serving.tables import usage, usage_positions
from groundplane.spec.errors import InvariantError

BATCH_RECORDS: Final = 2000
"""Records folded in one transaction, so that other writers of the database get their turn."""
KEEP_SEGMENTS: Final = 8
"""Folded segments kept for whoever wants to look; older ones are deleted."""

log = logging.getLogger(__name__)


class OpenRequest(Struct):
    """A reservation without a settlement, and the last that is known of it."""

    segment: int
    reservation: Reservation
    progress: Progress | None = None


class Settler:
    """Folds the log of one folder into the `usage` table.

    Attributes:
        open: reservations read so far that have no settlement, by request id.
        num_damaged: lines that failed their checksum; each is also logged with its place.
    """

    def __init__(self, folder: Path, database: Database, name: str) -> None:
        self._folder = folder
        self._database = database
        self._name = name
        self.open: dict[str, OpenRequest] = {}
        self.num_damaged = 0

    def recover(self, before_segment: int) -> list[OpenRequest]:
        """Reads every segment before this process's first and gives what was left open there."""
        for number, path in segments(self._folder):
            if number < before_segment:
                for record, position_bytes in read_segment(path):
                    self._follow(record, number, position_bytes)
        return list(self.open.values())

    def fold(self) -> int:
        """Folds all that is written. Returns the number of settlements read.

        Raises:
            StorageError: the database cannot take it now; call again later.
        """
        num_settled = 0
        while True:
            num_records, num_batch, folded_segment = self._fold_batch()
            num_settled += num_batch
            if num_records < BATCH_RECORDS:
                self._delete_old(folded_segment)
                return num_settled

    def _fold_batch(self) -> tuple[int, int, int]:
        """Folds at most `BATCH_RECORDS`: records read, settlements among them, segment reached."""
        begin = self._position()
        end = begin or (0, 0)
        rows: list[dict[str, Any]] = []
        num_records = 0
        for number, path in segments(self._folder):
            if number < end[0] or num_records >= BATCH_RECORDS:
                continue
            start_bytes = end[1] if number == end[0] else 0
            for record, position_bytes in read_segment(path, start_bytes):
                num_records += 1
                end = (number, position_bytes)
                if self._follow(record, number, position_bytes) and isinstance(record, Settlement):
                    rows.append(_row(record))
                if num_records >= BATCH_RECORDS:
                    break
        if num_records:
            with self._database.begin() as connection:
                if rows:
                    connection.execute(insert_new(connection, usage, ["request_id"]), rows)
                self._move(connection, begin, end)
        return num_records, len(rows), end[0]

    def _follow(self, record: Record | None, segment: int, position_bytes: int) -> bool:
        """Keeps `open` true; says whether the record is a settlement."""
        if isinstance(record, Settlement):
            self.open.pop(record.request_id, None)
            return True
        if isinstance(record, Reservation):
            known = self.open.get(record.request_id)
            self.open[record.request_id] = OpenRequest(segment if known is None else known.segment, record)
        elif isinstance(record, Progress):
            if record.request_id in self.open:
                self.open[record.request_id].progress = record
        else:
            self.num_damaged += 1
            log.error("metering segment %d: damaged record before byte %d", segment, position_bytes)
        return False

    def _position(self) -> tuple[int, int] | None:
        with self._database.reading() as connection:
            row = connection.execute(
                select(usage_positions.c.segment, usage_positions.c.position_bytes).where(
                    usage_positions.c.log == self._name
                )
            ).first()
        return (row.segment, row.position_bytes) if row else None

    def _move(self, connection: Connection, begin: tuple[int, int] | None, end: tuple[int, int]) -> None:
        if begin is None:
            row = {"log": self._name, "segment": end[0], "position_bytes": end[1]}
            connection.execute(usage_positions.insert().values(row))
            return
        moved = connection.execute(
            usage_positions.update()
            .where(
                usage_positions.c.log == self._name,
                usage_positions.c.segment == begin[0],
                usage_positions.c.position_bytes == begin[1],
            )
            .values(segment=end[0], position_bytes=end[1])
        )
        if moved.rowcount != 1:
            raise InvariantError(f"two processes fold the metering log {self._name!r}")

    def _delete_old(self, folded_segment: int) -> None:
        oldest_open = min((request.segment for request in self.open.values()), default=folded_segment)
        last = min(folded_segment, oldest_open) - KEEP_SEGMENTS
        for number, path in segments(self._folder):
            if number < last:
                path.unlink(missing_ok=True)


def insert_new(connection: Connection, table: Table, keys: Iterable[str]) -> Insert:
    """An insert that leaves existing rows as they are, on SQLite and on Postgres."""
    # Each dialect is imported where it is used: the other one's costs 0.1 s of the start.
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as postgres_insert

        return postgres_insert(table).on_conflict_do_nothing(index_elements=list(keys))
    from sqlalchemy.dialects.sqlite import insert as sqlite_insert

    return sqlite_insert(table).on_conflict_do_nothing(index_elements=list(keys))


def _row(settlement: Settlement) -> dict[str, Any]:
    started_s = settlement.started_ns // 10**9
    day = datetime.datetime.fromtimestamp(started_s, datetime.UTC).date().isoformat()
    row = {name: getattr(settlement, name) for name in settlement.__struct_fields__ if name != "attempt"}
    return row | {"day": day}
