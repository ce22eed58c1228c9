"""The folder of one work: its files, who may write them, and how they survive a crash at any point.

    launch.json      written once by the engine, before anything is started
    stop-FENCE.json  written by the engine: end this work; also the tombstone of one that never started
    lock             held (flock) by the keeper as long as it lives; whoever holds it owns reports.jsonl
    keeper.json      pid, start time and boot id of the keeper
    reports.jsonl    what the keeper saw; `gone` is its last line
    progress.jsonl   what rank 0 tells of itself
    seen.jsonl       the reports that the engine made of both, in order: line n is the report at position n
    rank-N.log       output of rank N; rank-N.log.1 is the older part of one that grew too long
    keeper.log       what the keeper itself has to complain of

Files that are written once are written beside, synced and renamed. The line logs are appended and synced; a
last line that a crash tore is cut off by the next writer.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct

LINE_LIMIT_BYTES: Final = 64 * 1024
"""Longest line of a log that is believed; detail texts are cut far below."""

_StructT = TypeVar("_StructT", bound=Struct)


class RankLaunch(Struct, frozen=True):
    """What one rank runs: command, variables beside the inherited ones, CPU numbers it may use."""

    command: tuple[str, ...]
    env: dict[str, str]
    cpus: tuple[int, ...]


class LaunchFile(Struct, frozen=True):
    """`launch.json`. `token` marks the work's processes; `memory_bytes_per_rank` 0 means no limit."""

    work_id: str
    fence: int
    kind: Literal["attempt", "replica"]
    token: str
    cwd: str
    ranks: tuple[RankLaunch, ...]
    memory_bytes_per_rank: int
    ready_url: str
    boot_id: str


class StopFile(Struct, frozen=True):
    """`stop-FENCE.json`: politely for `grace_ns` from when it is read, then by force."""

    grace_ns: int


class KeeperFile(Struct, frozen=True):
    """`keeper.json`: who keeps the work. `start_ticks` is field 22 of `/proc/PID/stat`."""

    pid: int
    start_ticks: int
    boot_id: str


class KeeperLine(Struct, frozen=True, omit_defaults=True):
    """One line of `reports.jsonl`. `pids` of `started` are the ranks' pids and session ids at once."""

    what: Literal["started", "rank_exited", "gone"]
    time_ns: int
    pids: tuple[int, ...] = ()
    rank: int = -1
    exit_code: int = 0
    outcome: Literal["", "succeeded", "failed", "stopped", "start_failed"] = ""
    detail: str = ""


class WorkFolder:
    """Paths and files of one work. Holds no state beside the path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.launch_path = path / "launch.json"
        self.lock_path = path / "lock"
        self.keeper_path = path / "keeper.json"
        self.reports_path = path / "reports.jsonl"
        self.progress_path = path / "progress.jsonl"
        self.seen_path = path / "seen.jsonl"
        self.keeper_log_path = path / "keeper.log"

    def stop_path(self, fence: int) -> Path:
        """Where the order to stop this fence stands."""
        return self.path / f"stop-{fence}.json"

    def log_path(self, rank: int) -> Path:
        """Output of one rank."""
        return self.path / f"rank-{rank}.log"

    def launch(self) -> LaunchFile | None:
        """What was launched here, or None."""
        return read_struct(self.launch_path, LaunchFile)

    def keeper(self) -> KeeperFile | None:
        """Who keeps or kept the work; None when no keeper ever came so far."""
        return read_struct(self.keeper_path, KeeperFile)

    def stop(self, fence: int) -> StopFile | None:
        """The order to stop, or None."""
        return read_struct(self.stop_path(fence), StopFile)

    def keeper_lines(self) -> list[KeeperLine]:
        """Every complete line of `reports.jsonl`."""
        return [msgspec.json.decode(line, type=KeeperLine) for line in LineLog(self.reports_path).lines()]

    def try_lock(self) -> int | None:
        """Takes the lock and returns what `unlock` needs, or None when it is held."""
        descriptor = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    @staticmethod
    def unlock(descriptor: int) -> None:
        """Gives back what `try_lock` took."""
        os.close(descriptor)


class LineLog:
    """A file of JSON lines with one writer, who may be killed at any point.

    Raises:
        OSError: from `append`, when the line could not be made durable; it is then not in the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> list[bytes]:
        """The complete lines, without their ends; a torn last one is left out."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return []
        return content[: content.rfind(b"\n") + 1].splitlines()

    def append(self, *lines: bytes) -> None:
        """Adds lines durably, cutting off a torn one before them. Only the one writer may call this."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            end = _end_of_last_line(descriptor)
            os.ftruncate(descriptor, end)
            try:
                _write_all(descriptor, b"".join(line + b"\n" for line in lines), end)
                os.fsync(descriptor)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)
        if end == 0:
            sync_folder(self._path.parent)


def write_struct(path: Path, value: Struct, *, mode: int = 0o644) -> None:
    """Writes a file whole or not at all, durably.

    Raises:
        OSError: no space, no permission; nothing is left behind then.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            _write_all(descriptor, msgspec.json.encode(value) + b"\n", 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_struct(path: Path, kind: type[_StructT]) -> _StructT | None:
    """The content of a file written by `write_struct`, or None when there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], offset + written)


def _end_of_last_line(descriptor: int) -> int:
    """Offset behind the last line end of a file."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - LINE_LIMIT_BYTES)
    tail = os.pread(descriptor, size - start, start)
    return start + tail.rfind(b"\n") + 1
