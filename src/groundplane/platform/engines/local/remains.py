"""What is done about a work that has no keeper any more: end what is left, prove it, say so.

Used by the engine for a keeper that was killed, by a keeper that finds itself the second one, and by `sweep`.
"""

from __future__ import annotations

import signal
import time
from typing import Final

import msgspec

from groundplane.platform.engines.local import processes
from groundplane.platform.engines.local.folder import KeeperLine, LaunchFile, LineLog, WorkFolder
from groundplane.platform.engines.local.ranks import tree_mark

END_LIMIT_S: Final = 5.0
"""How long one call tries to end what is left; a process that hangs in the kernel needs another call."""

NUM_EMPTY_LOOKS: Final = 3
_PAUSE_S: Final = 0.02


def end_marked(
    mark: str, session_ids: tuple[int, ...], limit_s: float = END_LIMIT_S
) -> list[processes.Process]:
    """Kills every process with a mark and returns those that are still there after `limit_s`, best none.

    A process may fork and end while the process table is read, so that one empty look is no proof. Only what
    is never listed in NUM_EMPTY_LOOKS looks in a row escapes; a living keeper misses nothing.
    """
    deadline_s = time.monotonic() + limit_s
    num_empty_looks = 0
    while True:
        left = processes.marked(processes.scan(), mark, session_ids)
        num_empty_looks = 0 if left else num_empty_looks + 1
        if num_empty_looks == NUM_EMPTY_LOOKS or time.monotonic() > deadline_s:
            return left
        for process in left:
            processes.send_signal(process, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def close_without_keeper(folder: WorkFolder, launch: LaunchFile, trouble: str = "") -> bool:
    """Ends what a work without a living keeper has left and writes its `gone` line.

    Args:
        folder: the work's folder.
        launch: what was launched there.
        trouble: why no keeper came, where that is known.

    Returns:
        True when the last line of reports.jsonl is `gone`; False when a keeper holds the lock or some
        process cannot be ended: then nothing was proven and nothing was written.

    Raises:
        OSError: the line could not be written.
    """
    lock = folder.try_lock()
    if lock is None:
        return False
    try:
        lines = folder.keeper_lines()
        if lines and lines[-1].what == "gone":
            return True
        keeper = folder.keeper()
        same_boot = (keeper.boot_id if keeper else launch.boot_id) == processes.boot_id()
        # A number means nothing in another boot: whatever ran then is gone.
        session_ids = tuple(pid for line in lines for pid in line.pids)
        if same_boot and end_marked(tree_mark(launch.token), session_ids):
            return False
        gone = _verdict(folder, launch, lines, same_boot=same_boot, trouble=trouble)
        LineLog(folder.reports_path).append(msgspec.json.encode(gone))
        return True
    finally:
        folder.unlock(lock)


def _verdict(
    folder: WorkFolder, launch: LaunchFile, lines: list[KeeperLine], *, same_boot: bool, trouble: str
) -> KeeperLine:
    now_ns = time.time_ns()
    exits = {line.rank: line.exit_code for line in lines if line.what == "rank_exited"}
    if len(exits) == len(launch.ranks) and not any(exits.values()):
        # The keeper was lost after the last rank had ended well: what succeeded is not run again.
        return KeeperLine("gone", now_ns, outcome="succeeded")
    if folder.stop(launch.fence) is not None:
        return KeeperLine("gone", now_ns, outcome="stopped")
    if folder.keeper() is None:
        return KeeperLine(
            "gone", now_ns, outcome="start_failed", detail=trouble or "its keeper did not start"
        )
    cause = "keeper lost: its process was killed" if same_boot else "the machine was restarted"
    failed = next((line for line in lines if line.what == "rank_exited" and line.exit_code), None)
    if failed is not None:
        cause = f"rank {failed.rank} failed with {failed.exit_code}, then the {cause}"
    return KeeperLine(
        "gone", now_ns, outcome="failed", exit_code=failed.exit_code if failed else 0, detail=cause
    )
