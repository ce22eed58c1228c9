"""The gateway's own ledger: an append-only log of reservations and settlements, in integers.

Each record is one line, `CRC32 JSON`, written by one write(2): what `append` has returned from survives a
kill -9 of the gateway whole. Against loss of power survives what was synced: a thread syncs at most
`SYNC_INTERVAL_S` after a write, so that what can be lost is the last 20 ms plus one fsync. A reservation is
appended before a request goes to a model server, the settlement before the client has the end of its answer;
what lies between and has no settlement at a restart was interrupted, and is closed as such.

The log knows of no SQL; `settlement.py` folds it. One process writes a folder at a time (flock).
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from groundplane.platform.runtime import upfile
from groundplane.spec.errors import InputError

SYNC_INTERVAL_S: Final = 0.02
SEGMENT_LIMIT_BYTES: Final = 16 * 2**20
"""A new segment begins after this many bytes."""

Outcome = Literal["completed", "cancelled", "failed", "interrupted"]
CountedBy = Literal["usage", "server", "delivered", "nobody"]
"""Who counted: the server's `usage` in its answer, the server when asked by request id, the gateway by what
it delivered, or nobody (nothing was delivered and the server cannot be asked)."""


class Reservation(Struct, frozen=True, tag="R", array_like=True):
    """A request is about to go to a model server. A retry repeats it with the next `attempt`."""

    request_id: str
    attempt: int
    key_id: str
    project: str
    model: str
    work_id: str
    server: str
    url: str
    path: str
    streamed: bool
    started_ns: int


class Progress(Struct, frozen=True, tag="P", array_like=True):
    """What a stream has delivered so far; with an outcome when it was cut and the server is being asked."""

    request_id: str
    tokens_out: int
    outcome: Literal["", "cancelled", "failed", "interrupted"]


class Settlement(Struct, frozen=True, tag="S", array_like=True):
    """The end of a request; complete in itself. Durations count from the request's arrival; 0 is never."""

    request_id: str
    attempt: int
    key_id: str
    project: str
    model: str
    work_id: str
    path: str
    streamed: bool
    started_ns: int
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    counted_by: CountedBy
    partial: bool
    outcome: Outcome
    status: int
    queued_ns: int
    first_token_ns: int
    total_ns: int


Record = Reservation | Progress | Settlement
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


def frame(record: Record) -> bytes:
    """One line of the log."""
    payload = _encode(record)
    return b"%08x %b\n" % (zlib.crc32(payload), payload)


def unframe(line: bytes) -> Record | None:
    """The record of one line without its end, or None when the line is torn or damaged."""
    if len(line) < 10 or line[8:9] != b" ":
        return None
    payload = line[9:]
    try:
        if int(line[:8], 16) != zlib.crc32(payload):
            return None
        return _decode(payload)
    except (ValueError, msgspec.DecodeError):
        return None


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Number and path of every segment, in order."""
    found = []
    for path in folder.glob("segment-*.log"):
        number = path.stem.removeprefix("segment-")
        if number.isdigit():
            found.append((int(number), path))
    return sorted(found)


def read_segment(path: Path, position_bytes: int = 0) -> Iterator[tuple[Record | None, int]]:
    """Records from a position on, each with the position after it; None for a damaged line.

    A last line without its end is not given: it is still being written, or was torn and never acknowledged.
    """
    with path.open("rb") as file:
        file.seek(position_bytes)
        for line in file:
            if not line.endswith(b"\n"):
                return
            position_bytes += len(line)
            yield unframe(line[:-1]), position_bytes


class MeteringLog:
    """Writes the log of one folder.

    Raises:
        InputError: the folder cannot be written, or another gateway writes it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = upfile.take_lock(folder / "lock")
        except OSError as error:
            raise InputError(
                "must be a folder that can be written", field="state", value=str(folder)
            ) from error
        if lock is None:
            raise InputError("another gateway writes this metering log", field="state", value=str(folder))
        self._lock = lock
        known = segments(folder)
        self._number = known[-1][0] if known else 0
        self._file = -1
        self._size_bytes = 0
        self._changed = threading.Event()
        self._sync_error: OSError | None = None
        self._closing = False
        self._file_lock = threading.Lock()
        self._next_segment()
        self._syncer = threading.Thread(target=self._sync_loop, name="metering-sync", daemon=True)
        self._syncer.start()

    @property
    def end(self) -> tuple[int, int]:
        """Segment and position up to which records are written."""
        return self._number, self._size_bytes

    def append(self, record: Record) -> None:
        """Writes one record to the operating system; on disk at most `SYNC_INTERVAL_S` and a sync later.

        Raises:
            OSError: it could not be written whole (a full disk), and nothing of it counts; or an earlier
                record could not be synced, after which nothing is taken until the gateway is started again.
        """
        if self._sync_error is not None:
            # What was written since may be lost with the power: the log promises nothing any more.
            raise self._sync_error
        line = frame(record)
        if self._size_bytes + len(line) > SEGMENT_LIMIT_BYTES:
            self._next_segment()
        written = os.write(self._file, line)
        if written != len(line):
            # A torn line must not swallow the next record: the next one opens a new segment.
            self._size_bytes = SEGMENT_LIMIT_BYTES
            raise OSError(f"only {written} of {len(line)} bytes of a metering record could be written")
        self._size_bytes += written
        if not self._changed.is_set():
            self._changed.set()

    def sync(self) -> None:
        """Returns when all that was appended before is on disk."""
        with self._file_lock:
            os.fsync(self._file)

    def close(self) -> None:
        """Syncs and gives the folder free."""
        self._closing = True
        self._changed.set()
        self._syncer.join()
        os.close(self._file)
        os.close(self._lock)

    def _next_segment(self) -> None:
        number = self._number + 1
        path = self.folder / f"segment-{number:08d}.log"
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with self._file_lock:
            if self._file >= 0:
                os.fsync(self._file)
                os.close(self._file)
            self._file = opened
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._number = number
        self._size_bytes = 0

    def _sync_loop(self) -> None:
        while True:
            self._changed.wait()
            if not self._closing:
                time.sleep(SYNC_INTERVAL_S)
            self._changed.clear()
            try:
                self.sync()
            except OSError as error:
                self._sync_error = error
                return
            if self._closing:
                return
