"""What a keeper guards while its ranks run: their memory and the size of their logs.

Memory is the sum over a rank's whole tree. RLIMIT_AS would not do: libraries such as torch reserve far more
address space than they use. Looked at are resident bytes; only a tree that exceeds its limit by them is read
again by proportional bytes, where pages shared within the tree count once. Between two looks a rank can
overshoot by what it can touch in that time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from groundplane.platform.engines.local import processes
from groundplane.platform.engines.local.ranks import RANK_VARIABLE

LOG_LIMIT_BYTES: Final = 64 * 2**20
"""A log that has grown beyond this is copied to rank-N.log.1 (its last 64 MiB, and what came meanwhile) and
begins anew, so that a rank's logs take about 192 MiB at most, and what it writes between two looks.

What is written between the end of the copy and the cut is lost, and what is written faster than copied.
"""

TAIL_LINES: Final = 12
TAIL_BYTES: Final = 2048

_COPY_BYTES: Final = 2**20


class MemoryGuard:
    """Finds the rank that uses more memory than its limit. Remembers which process belongs to which rank."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._rank_of_process: dict[tuple[int, int], int] = {}

    def excess(self, rank_of_pid: dict[int, int]) -> str:
        """Says which rank exceeds its limit, or "" when none does.

        Args:
            rank_of_pid: the ranks by the pids of their first processes.
        """
        if self._limit_bytes <= 0:
            return ""
        members = self._members(rank_of_pid)
        for rank, pids in sorted(members.items()):
            if sum(map(processes.resident_bytes, pids)) <= self._limit_bytes:
                continue
            used_bytes = sum(map(processes.proportional_bytes, pids))
            if used_bytes > self._limit_bytes:
                from groundplane.spec.units import show_bytes

                return (
                    f"rank {rank} used {show_bytes(used_bytes)} of memory in {len(pids)} process(es), "
                    f"more than its limit of {show_bytes(self._limit_bytes)}, and was stopped"
                )
        return ""

    def _members(self, rank_of_pid: dict[int, int]) -> dict[int, list[int]]:
        """Pids by rank. A process belongs to the rank of its session, its parent, or its environment."""
        members: dict[int, list[int]] = {}
        rank_of_process: dict[tuple[int, int], int] = {}
        rank_of_living: dict[int, int] = {}
        for process in processes.descendants(processes.scan(), os.getpid()):
            key = (process.pid, process.start_ticks)
            rank = rank_of_pid.get(process.session_id, rank_of_living.get(process.parent_pid))
            if rank is None:
                rank = self._rank_of_process.get(key)
            if rank is None:
                written = processes.environment_value(process.pid, RANK_VARIABLE)
                rank = int(written) if written.isdecimal() else 0
            rank_of_process[key] = rank_of_living[process.pid] = rank
            members.setdefault(rank, []).append(process.pid)
        self._rank_of_process = rank_of_process
        return members


def bound_log(path: Path, limit_bytes: int = LOG_LIMIT_BYTES) -> None:
    """Moves a log that has grown too long aside and lets it begin anew; its writers, who append, go on."""
    with suppress(OSError):  # trouble with a log is no reason to end what writes it
        size_bytes = path.stat().st_size
        if size_bytes <= limit_bytes:
            return
        older = path.with_name(path.name + ".1")
        # Without space for the older part it is dropped: a full disk must not keep the log growing.
        with suppress(OSError):
            _copy(path, older, size_bytes - limit_bytes, 2 * limit_bytes)
        os.truncate(path, 0)
        with path.open("ab") as log:
            log.write(
                f"[groundplane: more than {limit_bytes} bytes; what came before: {older.name}]\n".encode()
            )


def last_lines(path: Path) -> str:
    """The end of a log for an error's detail: at most TAIL_LINES lines and TAIL_BYTES bytes."""
    try:
        with path.open("rb") as log:
            size_bytes = log.seek(0, os.SEEK_END)
            log.seek(max(0, size_bytes - TAIL_BYTES))
            tail = log.read(TAIL_BYTES)
    except OSError:
        return ""
    return "\n".join(tail.decode(errors="replace").splitlines()[-TAIL_LINES:]).strip()


def _copy(source: Path, target: Path, begin: int, limit_bytes: int) -> None:
    """Copies from `begin` to the end of a file that may grow meanwhile, at most `limit_bytes`."""
    left_bytes = limit_bytes
    with source.open("rb") as reader, target.open("wb") as writer:
        while left_bytes > 0:
            num_bytes = os.sendfile(writer.fileno(), reader.fileno(), begin, min(_COPY_BYTES, left_bytes))
            if num_bytes == 0:
                return
            begin += num_bytes
            left_bytes -= num_bytes
