"""Turns a launch into the files of a work, and the files into a running keeper."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from groundplane.platform.engines.contract import Launch
from groundplane.platform.engines.local import processes
from groundplane.platform.engines.local.folder import (
    LaunchFile,
    RankLaunch,
    WorkFolder,
    sync_folder,
    write_struct,
)
from groundplane.platform.engines.local.readiness import url_trouble

NODE_ID: Final = "local"

WORK_ID_LIMIT: Final = 200
"""Longest work id: it is the name of a folder, which has at most 255 bytes."""


class LaunchRefused(Exception):
    """A launch that cannot be: the text says why."""


def check_work_id(work_id: str) -> None:
    """A work id is a folder name of its own.

    Raises:
        LaunchRefused: it cannot be one.
    """
    if (
        not work_id
        or work_id.startswith(".")
        or len(work_id.encode()) > WORK_ID_LIMIT
        or set(work_id) & set("/~\0")
    ):
        raise LaunchRefused(f"{work_id[:80]!r} cannot be the name of a folder")


def launch_file(launch: Launch, devices: Sequence[int]) -> LaunchFile:
    """What the keeper will read.

    Args:
        launch: the gang to start.
        devices: CPU number of each device of this node.

    Raises:
        LaunchRefused: ranks, commands and placement do not fit together, or not this node.
    """
    num_ranks = len(launch.placement)
    if num_ranks == 0 or not num_ranks == len(launch.commands) == len(launch.envs):
        raise LaunchRefused(
            "needs one placement, one command and one environment a rank, and at least one rank"
        )
    if launch.ready_url and (trouble := url_trouble(launch.ready_url)):
        raise LaunchRefused(trouble)
    ranks = []
    for rank, place in enumerate(launch.placement):
        if place.node_id != NODE_ID:
            raise LaunchRefused(f"rank {rank}: no node {place.node_id!r} here, only {NODE_ID!r}")
        unknown = [device for device in place.devices if not 0 <= device < len(devices)]
        if unknown or not place.devices:
            raise LaunchRefused(
                f"rank {rank}: devices {list(place.devices)} are not among 0 to {len(devices) - 1}"
            )
        cpus = tuple(sorted({devices[device] for device in place.devices}))
        ranks.append(RankLaunch(launch.commands[rank], launch.envs[rank], cpus))
    return LaunchFile(
        work_id=launch.work_id,
        fence=launch.fence,
        kind=launch.kind,
        token=secrets.token_hex(16),
        cwd=_current_folder(),
        ranks=tuple(ranks),
        memory_bytes_per_rank=launch.memory_bytes_per_rank,
        ready_url=launch.ready_url,
        boot_id=processes.boot_id(),
    )


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"  # it was deleted under us


def write_launch(folder: WorkFolder, file: LaunchFile) -> None:
    """Makes the folder with launch.json, readable by its owner only: environments hold secrets.

    Raises:
        OSError: no space or no permission; no launch.json and no new folder is left behind.
        UnicodeEncodeError: a command, variable or current folder that is not UTF-8; nothing is left either.
    """
    is_new = not folder.path.exists()
    folder.path.mkdir(parents=True, exist_ok=True)
    try:
        write_struct(folder.launch_path, file, mode=0o600)
        sync_folder(folder.path.parent)
    except (OSError, UnicodeEncodeError):
        folder.launch_path.unlink(missing_ok=True)
        if is_new:
            folder.path.rmdir()
        raise


def spawn_keeper(folder: WorkFolder) -> subprocess.Popen[bytes]:
    """Starts a keeper. What is returned is its starter, which ends (with 0) once the keeper has come.

    Raises:
        OSError: no process can be started.
    """
    # The keeper inherits the mask: a stop that comes before it listens waits, and does not kill it.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    try:
        with folder.keeper_log_path.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "groundplane.platform.engines.local.keeper", str(folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def available_cpus() -> tuple[int, ...]:
    """CPUs that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def memory_bytes() -> int:
    """Memory of this node: what the machine has, or what this process's cgroup may use, whichever is less."""
    limits = [_machine_memory_bytes()]
    for path in _cgroup_limit_paths():
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)


def _machine_memory_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limit_paths() -> list[Path]:
    """Where the limits of this process's cgroup and of all above it stand, for both versions of cgroups."""
    paths = []
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            hierarchy, controllers, place = line.rstrip("\n").split(":", 2)
            if hierarchy == "0":
                root, name = Path("/sys/fs/cgroup"), "memory.max"
            elif "memory" in controllers.split(","):
                root, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
            else:
                continue
            here = Path(place.lstrip("/"))
            paths += [root / above / name for above in (here, *here.parents)]
    return paths
