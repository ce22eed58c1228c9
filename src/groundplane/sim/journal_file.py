"""Where journals are found: a file of JSON lines, a SQLite database, or the state folder of a platform.

Reads only. What the records mean is `control/journal.py`.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from groundplane.control.journal import (
    JournalRecord,
    Record,
    SnapshotRecord,
    decode_record,
    dump_lines,
    read_lines,
)
from groundplane.spec.errors import InputError

DATABASE_NAME = "groundplane.db"
"""The SQLite database in a state folder."""
_SQLITE_HEADER = b"SQLite format 3\x00"


def read_journal(path: Path) -> Iterator[Record]:
    """Records of the journal at `path`, in order.

    Raises:
        InputError: nothing is there, it cannot be read, or it is no journal.
    """
    if path.is_dir():
        path = path / DATABASE_NAME
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_HEADER))
            if head != _SQLITE_HEADER:
                file.seek(0)
                yield from read_lines(file, file=str(path))
                return
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from None
    yield from _read_sqlite(path)


def write_journal(path: Path, records: Iterable[Record]) -> None:
    """Writes a journal as JSON lines.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with path.open("wb") as file:
            file.writelines(dump_lines(records))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from None


def _read_sqlite(path: Path) -> Iterator[Record]:
    """Records and, between them, the snapshots that are kept. One is needed if the first records are gone."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            first = database.execute("SELECT min(seq) FROM journal").fetchone()[0]
            if first is None:
                return
            snapshots = [
                SnapshotRecord(*row)
                for row in database.execute(
                    "SELECT seq, now_ns, code_version, payload FROM snapshots WHERE seq >= ? ORDER BY seq",
                    (first - 1,),
                )
            ]
            begin = first - 1
            if first > 1:
                if not snapshots:
                    raise InputError(f"begins at record {first} and has no snapshot", file=str(path))
                begin = snapshots[0].seq
            yield from _in_order(path, database, begin, snapshots)
    except sqlite3.Error as error:
        raise InputError(f"is not a journal: {error}", file=str(path)) from None


def _in_order(
    path: Path, database: sqlite3.Connection, begin: int, snapshots: list[SnapshotRecord]
) -> Iterator[Record]:
    yield from (snapshot for snapshot in snapshots if snapshot.seq == begin)
    later = {snapshot.seq: snapshot for snapshot in snapshots if snapshot.seq > begin}
    for seq, payload in database.execute(
        "SELECT seq, payload FROM journal WHERE seq > ? ORDER BY seq", (begin,)
    ):
        yield _record(path, seq, payload)
        if seq in later:
            yield later[seq]


def _record(path: Path, seq: int, payload: bytes) -> JournalRecord:
    try:
        return decode_record(payload)
    except InputError as error:
        raise error.at(file=str(path), field=f"record {seq}") from None
