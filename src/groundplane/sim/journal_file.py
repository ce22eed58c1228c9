"""Where journals are found: a file of JSON lines, a SQLite database, a Postgres, or a state folder.

Reads only. What the records mean is `control/journal.py`.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from groundplane.control.journal import (
    JournalRecord,
    Record,
    SnapshotRecord,
    decode_record,
    dump_lines,
    read_lines,
)
from groundplane.spec.errors import InputError

CONNECT_S = 10
"""How long a Postgres may take to answer."""
DATABASE_NAME = "groundplane.db"
"""The SQLite database in a state folder."""
URL_NAME = "database.url"
"""In a state folder: which database it has, where that is not the file above."""
_POSTGRES = "postgresql://"
_SQLITE_HEADER = b"SQLite format 3\x00"


def read_journal(place: str | Path) -> Iterator[Record]:
    """Records of the journal at `place`, in order.

    Args:
        place: a file, a state folder, or the URL of a platform's Postgres.

    Raises:
        InputError: nothing is there, it cannot be read, or it is no journal.
    """
    if str(place).startswith(_POSTGRES):
        yield from _read_postgres(str(place))
        return
    path = Path(place)
    if path.is_dir():
        url = _url_of(path)
        if url.startswith(_POSTGRES):
            yield from _read_postgres(url)
            return
        path = Path(url.removeprefix("sqlite:///")) if url else path / DATABASE_NAME
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
            yield from _in_order(str(path), database.execute)
    except sqlite3.Error as error:
        raise InputError(f"is not a journal: {error}", file=str(path)) from None


def _read_postgres(url: str) -> Iterator[Record]:
    """As `_read_sqlite`, in one reading transaction of a Postgres. Its driver is in the `platform` extra."""
    import psycopg

    shown = re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_S) as connection:
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            yield from _in_order(shown, lambda query: connection.execute(query.encode()))
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"is not a journal: {reason}", file=shown) from None


def _in_order(place: str, execute: Callable[[str], Iterable[Any]]) -> Iterator[Record]:
    """The records of a database, with each snapshot where it belongs."""
    (first,) = next(iter(execute("SELECT min(seq) FROM journal")))
    if first is None:
        return
    query = (
        f"SELECT seq, now_ns, code_version, payload FROM snapshots WHERE seq >= {int(first) - 1} ORDER BY seq"
    )
    snapshots = [SnapshotRecord(*row) for row in execute(query)]
    begin = first - 1
    if first > 1:
        if not snapshots:
            raise InputError(f"begins at record {first} and has no snapshot", file=place)
        begin = snapshots[0].seq
    yield from (snapshot for snapshot in snapshots if snapshot.seq == begin)
    later = {snapshot.seq: snapshot for snapshot in snapshots if snapshot.seq > begin}
    for seq, payload in execute(f"SELECT seq, payload FROM journal WHERE seq > {int(begin)} ORDER BY seq"):
        yield _record(place, seq, payload)
        if seq in later:
            yield later[seq]


def _record(place: str, seq: int, payload: bytes) -> JournalRecord:
    try:
        return decode_record(payload)
    except InputError as error:
        raise error.at(file=place, field=f"record {seq}") from None


def _url_of(folder: Path) -> str:
    """The database that a state folder names; "" for the usual one."""
    try:
        return (folder / URL_NAME).read_text("utf-8").strip()
    except OSError:
        return ""
