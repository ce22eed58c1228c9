"""Starts ranks: a process each, in a session of its own, on its CPUs, writing to its log.

Runs inside a keeper, which has one thread, so that forking is safe.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from groundplane.platform.engines.local.folder import LaunchFile, WorkFolder

TREE_VARIABLE: Final = "GROUNDPLANE_TREE"
"""Holds a work's random token: what marks its processes wherever they wander."""

FOLDER_VARIABLE: Final = "GROUNDPLANE_WORK_DIR"
"""Holds the work's folder, where rank 0 writes progress.jsonl."""

RANK_VARIABLE: Final = "GROUNDPLANE_RANK"
WORK_VARIABLE: Final = "GROUNDPLANE_WORK"

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_OOM_SCORE: Final = "500"
"""When the kernel runs out of memory it should end a rank before the control plane."""


def tree_mark(token: str) -> str:
    """The entry in the environment of every process of a work."""
    return f"{TREE_VARIABLE}={token}"


class RankStartError(Exception):
    """A rank cannot be started; the text says which, what and why."""


def become_subreaper() -> None:
    """Descendants whose parents end become children of this process, not of init."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a child subreaper")


def rank_environment(launch: LaunchFile, rank: int, folder: WorkFolder) -> dict[str, str]:
    """The keeper's own variables, under those of the launch, under the marks of the work."""
    return {
        **os.environ,
        **launch.ranks[rank].env,
        WORK_VARIABLE: f"{launch.work_id}.{launch.fence}",
        TREE_VARIABLE: launch.token,
        RANK_VARIABLE: str(rank),
        FOLDER_VARIABLE: str(folder.path),
    }


def find_program(launch: LaunchFile, rank: int, environment: dict[str, str]) -> str:
    """Absolute path of a rank's program.

    Raises:
        RankStartError: there is none of that name that may be run.
    """
    command = launch.ranks[rank].command
    if not command or not command[0]:
        raise RankStartError(f"rank {rank}: the command is empty")
    name = command[0]
    if "/" in name:
        found = shutil.which(os.path.join(launch.cwd, name))
    else:
        found = shutil.which(name, path=environment.get("PATH"))
    if found is None:
        raise RankStartError(f"rank {rank}: no program {name!r} that can be run")
    return found


def start_rank(
    launch: LaunchFile, rank: int, folder: WorkFolder, program: str, environment: dict[str, str]
) -> int:
    """Starts one rank and returns its pid, which is its session id too, once its program runs.

    Raises:
        RankStartError: its program could not be run; no process is left.
    """
    log = os.open(folder.log_path(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    # The write end closes by itself when the program is executed; until then it can carry what went wrong.
    trouble_read, trouble_write = os.pipe2(os.O_CLOEXEC)
    keeper_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        spec = launch.ranks[rank]
        cwds = (launch.cwd, folder.path)
        _become_rank(spec.command, program, environment, spec.cpus, cwds, log, trouble_write, keeper_pid)
    os.close(log)
    os.close(trouble_write)
    with os.fdopen(trouble_read, "rb") as pipe:
        trouble = pipe.read().decode(errors="replace")
    if trouble:
        os.waitpid(pid, 0)
        raise RankStartError(f"rank {rank}: cannot run {program!r}: {trouble}")
    return pid


def _become_rank(
    argv: tuple[str, ...],
    program: str,
    environment: dict[str, str],
    cpus: tuple[int, ...],
    cwds: tuple[str | Path, ...],
    log: int,
    trouble: int,
    keeper_pid: int,
) -> NoReturn:
    """The child's side of `start_rank`: never returns, and runs no code of the keeper afterwards."""
    try:
        os.setsid()
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper_pid:
            # The keeper died before the line above: nobody else would end this process.
            os._exit(1)
        os.sched_setaffinity(0, cpus)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(_OOM_SCORE)
        empty = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((empty, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        # The folder in which the control plane was started may be gone by now.
        os.chdir(next(cwd for cwd in cwds if os.path.isdir(cwd)))
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execve(program, argv, environment)
    except (OSError, ValueError) as error:
        os.write(trouble, (getattr(error, "strerror", None) or str(error)).encode())
    finally:
        os._exit(127)
