"""What `/proc` says of processes: who they are, whose children, which work's, how much memory.

A process is named by pid and start time together, since pids are used again. Nothing here knows of works
or files of ours. Linux only.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """One line of the process table. `start_ticks` is field 22 of `/proc/PID/stat`: ticks since boot."""

    pid: int
    parent_pid: int
    session_id: int
    start_ticks: int
    state: str


def boot_id() -> str:
    """The kernel's random id of this boot: pids and start times of another boot mean nothing."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def read_process(pid: int) -> Process | None:
    """The process with this pid, or None when there is none (any more)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            content = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name stands in parentheses and may itself hold spaces and parentheses: count from the last one.
    fields = content[content.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0].decode())


def scan() -> list[Process]:
    """Every process that can be seen, zombies too, in the order of their pids."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    found = (read_process(pid) for pid in pids)
    return [process for process in found if process is not None]


def descendants(processes: Iterable[Process], ancestor_pid: int) -> list[Process]:
    """Children, grandchildren and so on of one process, parents before their children; zombies left out."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent_pid, []).append(process)
    found: list[Process] = []
    reached = {ancestor_pid}
    frontier = [ancestor_pid]
    while frontier:
        below = [child for pid in frontier for child in children.get(pid, []) if child.pid not in reached]
        reached.update(child.pid for child in below)
        found += below
        frontier = [child.pid for child in below]
    return [process for process in found if process.state not in {"Z", "X"}]


def marked(processes: Iterable[Process], mark: str, session_ids: Iterable[int] = ()) -> list[Process]:
    """Processes that have an entry in their environment, or belong to one of some sessions; zombies left out.

    Sessions find programs that write their title over their environment. A session's number is not given out
    again while a member lives, so a member of a rank's session is of that rank's work.

    Args:
        processes: what `scan` gave.
        mark: the whole entry, `NAME=value`.
        session_ids: pids of session leaders, such as ranks.
    """
    entry = os.fsencode(mark)
    sessions = frozenset(session_ids)
    own_pid = os.getpid()
    found = []
    for process in processes:
        if process.pid == own_pid or process.state in {"Z", "X"}:
            continue
        if process.session_id in sessions or entry in _environment(process.pid).split(b"\0"):
            found.append(process)
    return found


def is_alive(pid: int, start_ticks: int) -> bool:
    """Whether exactly this process lives; a zombie does not."""
    process = read_process(pid)
    return process is not None and process.start_ticks == start_ticks and process.state not in {"Z", "X"}


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signals exactly this process: never another one that got its pid since."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        # Gone already; or a kernel without pidfd, where the check and the signal are two steps.
        if is_alive(process.pid, process.start_ticks):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)
        return
    try:
        if is_alive(process.pid, process.start_ticks):
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def wait_gone(pid: int, start_ticks: int, timeout_s: float) -> bool:
    """Waits until exactly this process has ended; False when it still lives after `timeout_s`."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return not is_alive(pid, start_ticks)
    try:
        if not is_alive(pid, start_ticks):
            return True
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000)) or not is_alive(pid, start_ticks)
    finally:
        os.close(handle)


def resident_bytes(pid: int) -> int:
    """Memory that a process has in RAM, shared pages counted whole; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def proportional_bytes(pid: int) -> int:
    """As `resident_bytes`, with each shared page divided by its number of users; dearer to read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return resident_bytes(pid)
    return 0


def environment_value(pid: int, name: str) -> str:
    """One variable of a process's environment as it was started; "" where it has none or cannot be read."""
    prefix = f"{name}=".encode()
    for entry in _environment(pid).split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return ""


def _environment(pid: int) -> bytes:
    """Empty for what is gone or somebody else's; any other error passes, since it proves nothing."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
