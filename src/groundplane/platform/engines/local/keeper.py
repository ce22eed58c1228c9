"""The keeper of one work: `python -m groundplane.platform.engines.local.keeper WORK_FOLDER`.

It starts the ranks, watches them, and ends the whole tree with proof. It is no child of the control plane and
lives in a session of its own; it knows nothing of jobs or services and imports little, to be small and quick.

It owns reports.jsonl: `started`, one `rank_exited` a rank, and last `gone`. `gone` is written only when

1. it has no child left (as subreaper of its tree it becomes parent of whatever its ranks left behind), and
2. no process on the machine carries the work's token in its environment.

Should it be killed itself, the kernel kills the ranks (PR_SET_PDEATHSIG), and the engine ends what they left.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from groundplane.platform.engines.local import processes, ranks, remains
from groundplane.platform.engines.local.folder import (
    KeeperFile,
    KeeperLine,
    LaunchFile,
    LineLog,
    WorkFolder,
    write_struct,
)
from groundplane.platform.engines.local.guard import MemoryGuard, bound_log, last_lines

FAILURE_GRACE_S: Final = 3.0
"""What the other ranks get between SIGTERM and SIGKILL when one has failed."""

LEFTOVER_GRACE_S: Final = 1.0
"""What processes that outlive the ranks of a work that ended well get."""

SIGNAL_GRACE_S: Final = 10.0
"""Grace of a stop by a bare SIGTERM, without an order in a file."""

LOOK_S: Final = 0.25
"""Longest time between two looks at memory, logs and orders."""

LOOK_SHARE: Final = 0.02
"""A look at memory is repeated no sooner than makes this share of one core."""

RETRY_S: Final = 0.5
"""Pause before a line that could not be written (disk full) is tried again."""

KILL_PAUSE_S: Final = 0.02
KILL_PAUSE_LIMIT_S: Final = 1.0

_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
_STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Keeper:
    """Runs one work from its start to its proven end. `run` is called once."""

    def __init__(self, folder: WorkFolder, launch: LaunchFile) -> None:
        self._folder = folder
        self._launch = launch
        self._mark = ranks.tree_mark(launch.token)
        self._log = LineLog(folder.reports_path)
        self._unwritten: list[bytes] = []
        self._rank_of_pid: dict[int, int] = {}
        self._exits: dict[int, int] = {}
        """Exit code by rank in the order of their ends; minus the number of the signal that ended one."""
        self._has_children = False
        self._told_to_stop = False
        self._guard = MemoryGuard(launch.memory_bytes_per_rank)
        self._next_memory_look_s = 0.0

    def run(self) -> None:
        """Starts, watches, ends, and writes `gone`. Whatever goes wrong in between, the tree is ended."""
        gone: KeeperLine | None = None
        grace_s = 0.0
        try:
            gone, grace_s = self._start() or self._watch()
        finally:
            self._end_tree(grace_s)
            self._say(
                gone or KeeperLine("gone", time.time_ns(), outcome="failed", detail=self._own_trouble())
            )
            while self._unwritten and self._folder.path.exists():
                time.sleep(RETRY_S)
                self._write()

    def _start(self) -> tuple[KeeperLine, float] | None:
        """Starts every rank, or tells why not."""
        if self._folder.stop(self._launch.fence) is not None:
            return KeeperLine("gone", 0, outcome="stopped", detail="stopped before it started"), 0.0
        try:
            environments = [
                ranks.rank_environment(self._launch, rank, self._folder)
                for rank in range(len(self._launch.ranks))
            ]
            programs = [ranks.find_program(self._launch, rank, env) for rank, env in enumerate(environments)]
            for rank, program in enumerate(programs):
                pid = ranks.start_rank(self._launch, rank, self._folder, program, environments[rank])
                self._rank_of_pid[pid] = rank
        except ranks.RankStartError as error:
            return KeeperLine("gone", 0, outcome="start_failed", detail=str(error)), 0.0
        except (OSError, ValueError) as error:
            # ValueError: a zero byte in a command, which no system call can carry.
            return KeeperLine("gone", 0, outcome="start_failed", detail=f"cannot start: {error}"), 0.0
        self._say(KeeperLine("started", time.time_ns(), pids=tuple(self._rank_of_pid)))
        return None

    def _watch(self) -> tuple[KeeperLine, float]:
        """Waits for the end of the work; returns its last line and the grace for what is left of it."""
        while True:
            self._reap()
            failed = next((rank for rank, code in self._exits.items() if code), None)
            if failed is not None:
                return self._failure(failed), self._grace_s() if self._stop_wanted() else FAILURE_GRACE_S
            if len(self._exits) == len(self._launch.ranks):
                return KeeperLine("gone", 0, outcome="succeeded"), LEFTOVER_GRACE_S
            if self._stop_wanted():
                return KeeperLine("gone", 0, outcome="stopped"), self._grace_s()
            if not self._folder.launch_path.exists():
                # Somebody deleted the state folder: nobody could ever ask for this work again.
                return KeeperLine(
                    "gone", 0, outcome="stopped", detail="its folder was deleted"
                ), SIGNAL_GRACE_S
            excess = self._memory_excess()
            if excess:
                code = -int(signal.SIGKILL)
                return KeeperLine("gone", 0, outcome="failed", exit_code=code, detail=excess), 0.0
            for rank in range(len(self._launch.ranks)):
                bound_log(self._folder.log_path(rank))
            self._write()
            self._wait(LOOK_S)

    def _memory_excess(self) -> str:
        """What the guard says, asked no more often than LOOK_SHARE allows."""
        now_s = time.monotonic()
        if now_s < self._next_memory_look_s:
            return ""
        try:
            excess = self._guard.excess(self._rank_of_pid)
        except OSError as error:
            # The machine may be short of memory or open files: that is no fault of this work.
            _complain(f"cannot look at memory: {error}")
            excess = ""
        took_s = time.monotonic() - now_s
        self._next_memory_look_s = now_s + max(LOOK_S, took_s / LOOK_SHARE)
        return excess

    def _failure(self, rank: int) -> KeeperLine:
        code = self._exits[rank]
        if self._stop_wanted():
            return KeeperLine("gone", 0, outcome="stopped")
        how = f"exited with code {code}" if code > 0 else f"was killed by {_signal_name(-code)}"
        tail = last_lines(self._folder.log_path(rank))
        detail = f"rank {rank} {how}" + (f"; its last lines:\n{tail}" if tail else "; its log is empty")
        return KeeperLine("gone", 0, rank=rank, outcome="failed", exit_code=code, detail=detail)

    def _own_trouble(self) -> str:
        error = sys.exc_info()[1]
        return f"its keeper failed: {error!r}"

    # Ending ---------------------------------------------------------------------------------------------

    def _end_tree(self, grace_s: float) -> None:
        """Ends every process of the work and returns when none is left, however long that takes.

        Polite at first, to the ranks alone: one that saves its state on SIGTERM needs its helpers for that.
        What is left when they have ended is asked next, and all are killed when the grace is over.
        """
        begun_s = time.monotonic()
        asked: set[tuple[int, int]] = set()
        killed: list[processes.Process] = []
        pause_s = KILL_PAUSE_S
        while True:
            try:
                left = self._left()
            except OSError as error:
                _complain(f"cannot read the process table: {error}")
                self._wait(RETRY_S)
                continue
            if not left and not self._has_children:
                return
            if self._stop_wanted():
                grace_s = min(grace_s, self._grace_s())
            if time.monotonic() - begun_s < grace_s:
                living_ranks = [process for process in left if process.pid in self._rank_of_pid]
                self._ask_to_end(living_ranks or left, asked)
            else:
                for process in left:
                    processes.send_signal(process, signal.SIGKILL)
                # What forks as fast as it is killed needs quick looks; what hangs in the kernel cannot be
                # ended now: less and less often.
                is_stuck = left == killed
                pause_s = min(pause_s * 1.5, KILL_PAUSE_LIMIT_S) if is_stuck else KILL_PAUSE_S
                killed = left
            self._wait(pause_s)

    @staticmethod
    def _ask_to_end(left: list[processes.Process], asked: set[tuple[int, int]]) -> None:
        """Sends SIGTERM to each that was not asked before."""
        for process in left:
            if (process.pid, process.start_ticks) not in asked:
                asked.add((process.pid, process.start_ticks))
                processes.send_signal(process, signal.SIGTERM)
                # A stopped process acts on SIGTERM only once it runs again.
                processes.send_signal(process, signal.SIGCONT)

    def _left(self) -> list[processes.Process]:
        """Living processes of the work: its tree, and once that is empty, whatever carries its mark."""
        self._reap()
        found = processes.scan()
        tree = processes.descendants(found, os.getpid())
        if tree or self._has_children:
            return tree
        return processes.marked(found, self._mark, tuple(self._rank_of_pid))

    def _reap(self) -> None:
        """Takes note of every child that has ended; orphans of the tree are children too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                return
            if pid == 0:
                self._has_children = True
                return
            rank = self._rank_of_pid.get(pid)
            if rank is not None and rank not in self._exits:
                self._exits[rank] = os.waitstatus_to_exitcode(status)
                self._say(KeeperLine("rank_exited", time.time_ns(), rank=rank, exit_code=self._exits[rank]))

    # Orders and lines -------------------------------------------------------------------------------------

    def _stop_wanted(self) -> bool:
        return self._told_to_stop or self._folder.stop(self._launch.fence) is not None

    def _grace_s(self) -> float:
        order = self._folder.stop(self._launch.fence)
        return SIGNAL_GRACE_S if order is None else order.grace_ns / 1e9

    def _wait(self, timeout_s: float) -> None:
        """Sleeps until a signal comes, at most `timeout_s`."""
        info = signal.sigtimedwait(_SIGNALS, timeout_s)
        if info is not None and info.si_signo in _STOPPING:
            self._told_to_stop = True

    def _say(self, line: KeeperLine) -> None:
        if line.time_ns == 0:
            line = msgspec.structs.replace(line, time_ns=time.time_ns())
        self._unwritten.append(msgspec.json.encode(line))
        self._write()

    def _write(self) -> None:
        """Writes what was said and not yet written: a full disk delays lines, it loses none."""
        if not self._unwritten:
            return
        try:
            self._log.append(*self._unwritten)
        except OSError as error:
            _complain(f"cannot write {self._folder.reports_path}: {error}")
            return
        self._unwritten.clear()


def keep(folder: WorkFolder) -> bool:
    """Keeps the work of a folder to its end; False when there was nothing to keep or no way to begin."""
    launch = folder.launch()
    if launch is None:
        _complain("there is no launch.json here")
        return False
    lock = folder.try_lock()
    if lock is None:
        return True
    lines = folder.keeper_lines()
    if lines and lines[-1].what == "gone":
        return True
    if folder.keeper() is not None:
        folder.unlock(lock)
        return remains.close_without_keeper(folder, launch)
    me = processes.read_process(os.getpid())
    if me is None:
        _complain("cannot read /proc/self/stat")
        return False
    ranks.become_subreaper()
    write_struct(folder.keeper_path, KeeperFile(me.pid, me.start_ticks, processes.boot_id()))
    _tell_starter()
    # The lock is held until this process ends.
    Keeper(folder, launch).run()
    return True


def main(arguments: list[str]) -> int:
    """Leaves the starter and keeps. Exit code 0: the work is kept, by this keeper or another, or is gone."""
    if len(arguments) != 1:
        _complain("usage: python -m groundplane.platform.engines.local.keeper WORK_FOLDER")
        return 2
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    if os.fork():
        # The starter's child: says whether a keeper came, and ends, so that the keeper is nobody's child.
        os.close(ready_write)
        return 0 if os.read(ready_read, 1) else 1
    os.close(ready_read)
    os.setsid()
    _starter.append(ready_write)
    kept = keep(WorkFolder(Path(arguments[0])))
    if kept:
        _tell_starter()
    return 0 if kept else 1


_starter: list[int] = []
"""The pipe to the starter, until it has been told that a keeper came."""


def _tell_starter() -> None:
    while _starter:
        descriptor = _starter.pop()
        os.write(descriptor, b"1")
        os.close(descriptor)


def _complain(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
