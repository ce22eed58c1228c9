"""`up.json`: which processes the platform of a state folder has, where they listen, and whether they live.

A process is known by pid, start time and boot, so that a pid used again by somebody else is never taken for
ours. Imports little: the supervisor and every command of the CLI read it.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from groundplane.platform.engines.local import processes

NAME: Final = "up.json"
SUPERVISOR_LOCK: Final = "supervisor.lock"
CONTROL_LOCK: Final = "control.lock"
GATEWAY_LOCK: Final = "metering/lock"


class ProcessId(Struct, frozen=True, forbid_unknown_fields=True):
    """A process, past any doubt. `start_ticks` is field 22 of `/proc/PID/stat`."""

    pid: int
    start_ticks: int

    @property
    def is_alive(self) -> bool:
        """Whether exactly this process lives."""
        return processes.is_alive(self.pid, self.start_ticks)

    def signal(self, number: signal.Signals) -> None:
        """Signals exactly this process, if it lives."""
        process = processes.read_process(self.pid)
        if process is not None and process.start_ticks == self.start_ticks:
            processes.send_signal(process, number)

    def wait_gone(self, timeout_s: float) -> bool:
        """Waits for its end; False when it still lives."""
        return processes.wait_gone(self.pid, self.start_ticks, timeout_s)


class UpFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The content. `control` and `gateway` are None while they are being restarted."""

    boot_id: str
    version: str
    host: str
    port: int
    gateway_port: int
    started_ns: int
    supervisor: ProcessId
    control: ProcessId | None = None
    gateway: ProcessId | None = None
    restarts: int = 0
    trouble: str = ""
    """Why a child ended last, while it is not up again."""

    @property
    def alive(self) -> list[ProcessId]:
        """Those of its processes that live, the supervisor first."""
        return [each for each in (self.supervisor, self.control, self.gateway) if each and each.is_alive]

    @property
    def url(self) -> str:
        """Base URL of the control plane's API."""
        return f"http://{address(self.host, self.port)}"

    @property
    def gateway_url(self) -> str:
        """Base URL for OpenAI clients."""
        return f"http://{address(self.host, self.gateway_port)}/v1"


class _Holder(Struct, frozen=True):
    """Content of a lock file: who took it last, and so holds it if that process lives."""

    boot_id: str
    process: ProcessId


def address(host: str, port: int) -> str:
    """ "host:port" of where a client on this machine reaches a listener."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}"


def process_id(pid: int) -> ProcessId | None:
    """The process that has this pid now."""
    process = processes.read_process(pid)
    return ProcessId(process.pid, process.start_ticks) if process is not None else None


def read(state: Path) -> UpFile | None:
    """The file of a state folder; None where there is none, or one of an earlier boot or another version."""
    try:
        up = msgspec.json.decode((state / NAME).read_bytes(), type=UpFile)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None
    return up if up.boot_id == processes.boot_id() else None


def write(state: Path, up: UpFile) -> None:
    """Replaces the file whole."""
    beside = state / f".{NAME}.new"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(up)) + b"\n")
    beside.replace(state / NAME)


def take_lock(path: Path) -> int | None:
    """Takes a lock that is held as long as the descriptor is open, and says in its file who holds it.

    What `up.json` misses, because its supervisor was killed or the file deleted, is found by these locks.

    Returns:
        The descriptor; None when another process holds the lock.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    me = process_id(os.getpid())
    with suppress(OSError):  # without space for it the lock holds all the same
        os.ftruncate(descriptor, 0)
        if me is not None:
            os.pwrite(descriptor, msgspec.json.encode(_Holder(processes.boot_id(), me)), 0)
    return descriptor


def living(state: Path) -> list[ProcessId]:
    """Every process of a state folder's platform that lives, the supervisor first: by `up.json` and locks."""
    up = read(state)
    listed = [up.supervisor, up.control, up.gateway] if up is not None else []
    held = [_holder(state / name) for name in (SUPERVISOR_LOCK, CONTROL_LOCK, GATEWAY_LOCK)]
    # The supervisor comes first in both.
    known = [each for pair in zip_longest(listed, held) for each in pair]
    return [each for each in dict.fromkeys(known) if each is not None and each.is_alive]


def is_orphan(supervisor_pid: int) -> bool:
    """Whether the supervisor that started this process was killed before the process had its lock.

    Nobody may know of it then: it must end. Later it is known by its lock.

    Args:
        supervisor_pid: 0 for a process that was started by hand.
    """
    return supervisor_pid != 0 and os.getppid() != supervisor_pid


def _holder(path: Path) -> ProcessId | None:
    """Who holds a lock of `take_lock`."""
    try:
        holder = msgspec.json.decode(path.read_bytes(), type=_Holder)
    except (OSError, msgspec.MsgspecError):
        return None
    return holder.process if holder.boot_id == processes.boot_id() else None


def remove(state: Path) -> None:
    """Nothing is up here any more."""
    (state / NAME).unlink(missing_ok=True)
