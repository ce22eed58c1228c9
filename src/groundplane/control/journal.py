"""The journal's records and their bytes.

Every event is written before it is handled, every action before it is carried out. A platform keeps the
records in the SQL table `journal`: `seq` INTEGER PRIMARY KEY, `kind` TEXT ('event', 'action' or
'snapshot'), `now_ns` INTEGER, `payload` BLOB, the msgpack of the event, of the action, or of a
`CoreSnapshot`. The actions of an event follow it, in order. As a file it is JSON lines, one record a line.

Knows of no file and no database, and decides nothing; `replay.py` does the comparing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from groundplane import __version__
from groundplane.control.actions import AnyAction
from groundplane.control.core import SCHEMA_VERSION, ControlCore
from groundplane.control.events import AnyEvent
from groundplane.spec.errors import InputError

T = TypeVar("T")


class CoreSnapshot(Struct, frozen=True, forbid_unknown_fields=True):
    """A core at rest: what `ControlCore.snapshot` and `digest` gave, and what wrote it."""

    schema_version: int
    code_version: str
    digest: str
    data: bytes


class EventRecord(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="event"):
    """An event and the time it was stamped with."""

    seq: int
    now_ns: int
    event: AnyEvent


class ActionRecord(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="action"):
    """The action at place `index` among those of the event before it, decided at its time."""

    seq: int
    now_ns: int
    index: int
    action: AnyAction


class SnapshotRecord(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="snapshot"):
    """The state after all records before this one."""

    seq: int
    now_ns: int
    snapshot: CoreSnapshot


Record = EventRecord | ActionRecord | SnapshotRecord


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table `journal`."""

    seq: int
    kind: Literal["event", "action", "snapshot"]
    now_ns: int
    payload: bytes


def take_snapshot(core: ControlCore) -> CoreSnapshot:
    """The core as it is to be written."""
    return CoreSnapshot(SCHEMA_VERSION, __version__, core.digest(), core.snapshot())


def records_of(seq: int, now_ns: int, event: AnyEvent, actions: Iterable[AnyAction]) -> list[Record]:
    """The records of one event and its actions, numbered from `seq`."""
    records: list[Record] = [EventRecord(seq, now_ns, event)]
    records += [ActionRecord(seq + 1 + i, now_ns, i, action) for i, action in enumerate(actions)]
    return records


def row_of(record: Record) -> Row:
    """The row that keeps a record."""
    match record:
        case EventRecord():
            return Row(record.seq, "event", record.now_ns, msgspec.msgpack.encode(record.event))
        case ActionRecord():
            return Row(record.seq, "action", record.now_ns, msgspec.msgpack.encode(record.action))
        case SnapshotRecord():
            return Row(record.seq, "snapshot", record.now_ns, msgspec.msgpack.encode(record.snapshot))


def decode_event(payload: bytes) -> AnyEvent:
    """An event from a row's payload.

    Raises:
        InputError: the bytes are of no event that this version knows.
    """
    return _decode(_EVENT, payload, "an event")


def decode_action(payload: bytes) -> AnyAction:
    """An action from a row's payload.

    Raises:
        InputError: the bytes are of no action that this version knows.
    """
    return _decode(_ACTION, payload, "an action")


def decode_snapshot(payload: bytes) -> CoreSnapshot:
    """A snapshot from a row's payload.

    Raises:
        InputError: the bytes are of no snapshot.
    """
    return _decode(_SNAPSHOT, payload, "a snapshot")


def read_rows(rows: Iterable[Row], *, file: str | None = None) -> Iterator[Record]:
    """Records from rows in the order of `seq`.

    Raises:
        InputError: a payload cannot be read.
    """
    index = 0
    for row in rows:
        try:
            if row.kind == "event":
                index = 0
                yield EventRecord(row.seq, row.now_ns, decode_event(row.payload))
            elif row.kind == "action":
                yield ActionRecord(row.seq, row.now_ns, index, decode_action(row.payload))
                index += 1
            else:
                yield SnapshotRecord(row.seq, row.now_ns, decode_snapshot(row.payload))
        except InputError as error:
            raise error.at(file=file, field=f"journal[seq={row.seq}]") from None


def dump_lines(records: Iterable[Record]) -> Iterator[bytes]:
    """Records as the lines of a journal file."""
    return (msgspec.json.encode(record) + b"\n" for record in records)


def read_lines(lines: Iterable[bytes], *, file: str | None = None) -> Iterator[Record]:
    """Records from the lines of a journal file.

    Raises:
        InputError: a line is no record.
    """
    for number, line in enumerate(lines, start=1):
        try:
            yield _LINE.decode(line)
        except msgspec.MsgspecError as error:
            raise InputError(f"is not a journal record: {error}", file=file, line=number) from None


_EVENT: msgspec.msgpack.Decoder[AnyEvent] = msgspec.msgpack.Decoder(AnyEvent)
_ACTION: msgspec.msgpack.Decoder[AnyAction] = msgspec.msgpack.Decoder(AnyAction)
_SNAPSHOT = msgspec.msgpack.Decoder(CoreSnapshot)
_LINE: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def _decode(decoder: msgspec.msgpack.Decoder[T], payload: bytes, what: str) -> T:
    try:
        return decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise InputError(f"is not {what} that this version knows: {error}") from None
