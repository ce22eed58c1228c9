"""The journal's records and their bytes.

A record is an event, the time it was stamped with, and the actions it led to; it is durable before any of its
actions is carried out and before anybody is told that the event was taken. A platform keeps records in the
SQL table `journal` (`seq`, `kind`, `now_ns`, `payload`: the msgpack of a `JournalRecord`) and snapshots of
the core in the table `snapshots` (`seq`, `now_ns`, `code_version`, `payload`). As a file a journal is JSON
lines: `{"record": {...}}`, before the first of them perhaps `{"snapshot": {...}}` to start from.

Knows of no file and no database, and decides nothing; `replay.py` does the comparing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from groundplane.control.actions import AnyAction
from groundplane.control.events import AnyEvent
from groundplane.spec.errors import InputError


class JournalRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """One event as it was handled, and the actions it led to. `seq` grows by one from record to record."""

    seq: int
    now_ns: int
    event: AnyEvent
    actions: tuple[AnyAction, ...]


class SnapshotRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """The core after the record `seq`; `payload` is what `ControlCore.snapshot` gave."""

    seq: int
    now_ns: int
    code_version: str
    payload: bytes


Record = JournalRecord | SnapshotRecord


class _Line(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    record: JournalRecord | None = None
    snapshot: SnapshotRecord | None = None


def encode_record(record: JournalRecord) -> bytes:
    """The payload of a row of the table `journal`."""
    return msgspec.msgpack.encode(record)


def decode_record(payload: bytes) -> JournalRecord:
    """A record from the payload of a row.

    Raises:
        InputError: it is no record, or one with an event or action that this version does not know.
    """
    try:
        return _RECORD.decode(payload)
    except msgspec.MsgspecError as error:
        raise InputError(f"is not a journal record that this version knows: {error}") from None


def dump_lines(records: Iterable[Record]) -> Iterator[bytes]:
    """Records as the lines of a journal file."""
    for record in records:
        line = _Line(record=record) if isinstance(record, JournalRecord) else _Line(snapshot=record)
        yield msgspec.json.encode(line) + b"\n"


def read_lines(lines: Iterable[bytes], *, file: str | None = None) -> Iterator[Record]:
    """Records from the lines of a journal file.

    Raises:
        InputError: a line is no record.
    """
    for number, text in enumerate(lines, start=1):
        try:
            line = _LINE.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(f"is not a journal record: {error}", file=file, line=number) from None
        record = line.record or line.snapshot
        if record is None:
            raise InputError("must be a record or a snapshot", file=file, line=number)
        yield record


_RECORD: msgspec.msgpack.Decoder[JournalRecord] = msgspec.msgpack.Decoder(JournalRecord)
_LINE: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)
