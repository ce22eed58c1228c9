"""Ends every work of a state folder with proof, with or without a control plane: `groundplane down`."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from groundplane.platform.engines.local import processes
from groundplane.platform.engines.local.folder import StopFile, WorkFolder, write_struct
from groundplane.platform.engines.local.remains import close_without_keeper

KEEPER_LIMIT_S: Final = 5.0
"""What a keeper gets beyond the grace before it is killed itself and its work ended from here."""


class SweepResult(Struct, frozen=True):
    """Work ids: `ended` were not gone before and are now, `left` could not be ended."""

    ended: tuple[str, ...]
    left: tuple[str, ...]


def sweep(state_dir: Path, grace_s: float = 5.0) -> SweepResult:
    """Stops every work below `state_dir/works`; all at once, then waits for each.

    Args:
        state_dir: the state folder; one that does not exist has no works.
        grace_s: time between SIGTERM and SIGKILL for the ranks.

    Raises:
        OSError: a folder cannot be read, or the last line of a work cannot be written (disk full).
    """
    works_dir = Path(state_dir).absolute() / "works"
    paths = sorted(works_dir.iterdir()) if works_dir.is_dir() else []
    folders = [WorkFolder(path) for path in paths if path.is_dir()]
    open_folders = [folder for folder in folders if not is_gone(folder)]
    for folder in open_folders:
        order_stop(folder, grace_s)
    deadline_s = time.monotonic() + grace_s + KEEPER_LIMIT_S
    ended: list[str] = []
    left: list[str] = []
    for folder in open_folders:
        (ended if _end(folder, deadline_s) else left).append(folder.path.name)
    return SweepResult(tuple(ended), tuple(left))


def is_gone(folder: WorkFolder) -> bool:
    """Whether nothing of this folder can run: never launched, or proven gone and the keeper ended."""
    if folder.launch() is None:
        return True
    lines = folder.keeper_lines()
    keeper = folder.keeper()
    alive = keeper is not None and processes.is_alive(keeper.pid, keeper.start_ticks)
    return bool(lines) and lines[-1].what == "gone" and not alive


def order_stop(folder: WorkFolder, grace_s: float) -> None:
    """Writes the order to stop and wakes the keeper. Without space for the order the signal alone must do."""
    launch = folder.launch()
    if launch is None:
        return
    with suppress(OSError):
        write_struct(folder.stop_path(launch.fence), StopFile(int(grace_s * 1e9)))
    signal_keeper(folder)


def signal_keeper(folder: WorkFolder, number: signal.Signals = signal.SIGTERM) -> None:
    """Signals the keeper of a work, if it lives."""
    keeper = folder.keeper()
    if keeper is None or keeper.boot_id != processes.boot_id():
        return
    process = processes.read_process(keeper.pid)
    if process is not None and process.start_ticks == keeper.start_ticks:
        processes.send_signal(process, number)
        # A keeper that somebody stopped acts on a signal only once it runs again.
        processes.send_signal(process, signal.SIGCONT)


def _end(folder: WorkFolder, deadline_s: float) -> bool:
    launch = folder.launch()
    keeper = folder.keeper()
    if launch is None:
        return True
    if keeper is not None and keeper.boot_id == processes.boot_id():
        remaining_s = max(0.0, deadline_s - time.monotonic())
        if not processes.wait_gone(keeper.pid, keeper.start_ticks, remaining_s):
            signal_keeper(folder, signal.SIGKILL)
            processes.wait_gone(keeper.pid, keeper.start_ticks, KEEPER_LIMIT_S)
    return close_without_keeper(folder, launch)
