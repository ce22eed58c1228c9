"""The local engine: one node, whose devices are the CPUs this process may run on; one keeper a work.

All file work runs in one thread of the engine's own, one thing after the other, so that it needs no locks and
never holds up the event loop; reports go to the loop in the order in which that thread makes them.

A work's files and their order of writing are told in `folder.py`, positions of reports in `follower.py`.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from groundplane.platform.engines.contract import Launch, NodeOffer, Report
from groundplane.platform.engines.local import readiness
from groundplane.platform.engines.local.folder import LaunchFile, StopFile, WorkFolder, write_struct
from groundplane.platform.engines.local.follower import Follower
from groundplane.platform.engines.local.launching import (
    NODE_ID,
    LaunchRefused,
    available_cpus,
    check_work_id,
    launch_file,
    memory_bytes,
    spawn_keeper,
    write_launch,
)
from groundplane.platform.engines.local.ranks import FOLDER_VARIABLE
from groundplane.platform.engines.local.remains import end_marked
from groundplane.platform.engines.local.sweep import is_gone, signal_keeper
from groundplane.spec.errors import InputError, InvariantError

WITHOUT_FILES_POSITION: Final = 2**31 - 1
"""Position of a `gone` of a work that has no seen.jsonl: behind all that was ever reported of it."""

POLL_S: Final = 0.05
"""Pause between two looks at the files of all living works; a look costs a few system calls a work."""

LOCK_WAIT_S: Final = 1.0
"""How long `open` waits for another engine's lock before it gives up."""

STARTER_LIMIT_S: Final = 5.0
"""How long `close` waits for a process that is just starting a keeper."""

_log = logging.getLogger(__name__)
_ResultT = TypeVar("_ResultT")


class LocalEngine:
    """Works as local processes under `state_dir/works`. Obeys `engines.contract.Engine`.

    Args:
        state_dir: the state folder; only one open engine may use it.
        devices: CPU number of each device offered; by default each CPU this process may run on. A number may
            come more than once: its devices then share that CPU.

    Raises:
        InputError: a CPU that this process may not run on.
    """

    name = "local"

    def __init__(self, state_dir: Path, devices: Sequence[int] | None = None) -> None:
        available = available_cpus()
        self._devices = tuple(sorted(available if devices is None else devices))
        for cpu in self._devices:
            if cpu not in available:
                raise InputError(f"must be CPUs that this process may run on: {list(available)}", value=cpu)
        self._works_dir = Path(os.path.abspath(state_dir)) / "works"
        self._followers: dict[str, Follower] = {}
        self._starters: list[subprocess.Popen[bytes]] = []
        """Processes that start keepers, until they were reaped."""
        self._in_trouble: set[str] = set()
        self._on_report: Callable[[Report], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._lock: int | None = None

    @property
    def cpus(self) -> tuple[int, ...]:
        """CPU number of each device offered."""
        return self._devices

    async def open(self, on_report: Callable[[Report], None]) -> list[NodeOffer]:
        """Begins to watch; `on_report` is called in the event loop.

        Raises:
            InputError: another open engine uses this state folder.
        """
        if self._loop is not None:
            raise InvariantError("open is called once")
        self._lock = await _lock_works(self._works_dir)
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="local-engine")
        self._watch_task = asyncio.create_task(self._watch())
        self._watch_task.add_done_callback(self._watch_ended)
        return [NodeOffer(NODE_ID, "cpu", len(self._devices), memory_bytes())]

    async def start(self, launch: Launch) -> None:
        """See the contract. What cannot start is reported as gone, `start_failed`."""
        await self._in_thread(self._start, launch)

    async def stop(self, work_id: str, fence: int, grace_ns: int) -> None:
        """See the contract. A work that never started stays stopped: a late start of it does nothing."""
        await self._in_thread(self._stop, work_id, fence, grace_ns)

    async def reattach(self, work_id: str, fence: int) -> None:
        """See the contract. A work that never started is waited for: a start or a stop may follow."""
        await self._in_thread(self._reattach, work_id, fence)

    def log_path(self, work_id: str, rank: int) -> Path:
        """Where a rank's output is; `PATH.1` beside it holds the older part of a long one."""
        return self._folder(work_id).log_path(rank)

    def work_path(self, work_id: str) -> Path:
        """The folder of a work."""
        return self._folder(work_id).path

    async def close(self) -> None:
        """Stops watching; works go on. No report comes after this has returned."""
        tasks = [task for task in (self._watch_task, *self._probes.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._on_report = None
        if self._thread is not None:
            await self._in_thread(self._reap_starters)
            thread, self._thread = self._thread, None
            await asyncio.to_thread(thread.shutdown)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # In the event loop -----------------------------------------------------------------------------------

    async def _in_thread(self, function: Callable[..., _ResultT], *arguments: object) -> _ResultT:
        if self._thread is None or self._loop is None:
            raise InvariantError("the engine is not open")
        return await self._loop.run_in_executor(self._thread, function, *arguments)

    async def _watch(self) -> None:
        while True:
            if self._followers or self._starters:
                await self._in_thread(self._poll)
            for work_id, follower in list(self._followers.items()):
                if follower.launch.ready_url and follower.started and work_id not in self._probes:
                    self._probes[work_id] = asyncio.create_task(
                        self._probe(follower), name=f"ready-{work_id}"
                    )
            await asyncio.sleep(POLL_S)

    async def _probe(self, follower: Follower) -> None:
        """Asks one replica until it is gone. Says `unready` only after several failures in a row."""
        num_failures = 0
        while not follower.gone:
            if await readiness.answers(follower.launch.ready_url):
                num_failures = 0
                await self._in_thread(self._note_ready, follower, True)
            else:
                num_failures += 1
                if follower.ready and num_failures >= readiness.FAILURES_UNTIL_UNREADY:
                    await self._in_thread(self._note_ready, follower, False)
            calm = follower.ready and num_failures == 0
            await asyncio.sleep(readiness.PERIOD_WHEN_READY_S if calm else readiness.PERIOD_UNTIL_READY_S)
        self._probes.pop(follower.launch.work_id, None)

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        """A watch that ends by itself is a bug of ours, and must not pass unseen."""
        if not task.cancelled() and self._loop is not None:
            context = {"message": "the local engine watches no more", "exception": task.exception()}
            self._loop.call_exception_handler(context)

    def _deliver(self, report: Report) -> None:
        if self._on_report is not None:
            self._on_report(report)

    # In the engine's thread --------------------------------------------------------------------------------

    def _emit(self, *reports: Report) -> None:
        if self._loop is None:
            raise InvariantError("the engine is not open")
        for report in reports:
            self._loop.call_soon_threadsafe(self._deliver, report)

    def _start(self, launch: Launch) -> None:
        follower = self._followers.get(launch.work_id)
        if follower is not None and follower.launch.fence == launch.fence:
            self._spawn_if_needed(follower)
            return
        folder = self._folder(launch.work_id)
        try:
            check_work_id(launch.work_id)
        except LaunchRefused as refusal:
            self._emit(_start_failed(launch, str(refusal)))
            return
        # An error of reading from here on says nothing of what runs: it goes to the caller to try again.
        former = folder.launch()
        if former is not None and former.fence == launch.fence:
            self._follow(Follower(folder, former))
        elif folder.stop(launch.fence) is not None:
            self._emit(_stopped_before_start(launch.work_id, launch.fence))
        else:
            self._start_new(folder, former, launch)

    def _start_new(self, folder: WorkFolder, former: LaunchFile | None, launch: Launch) -> None:
        try:
            file = launch_file(launch, self._devices)
            if former is not None:
                _make_room(folder, former.fence, launch.fence)
            write_launch(folder, file)
        except LaunchRefused as refusal:
            self._emit(_start_failed(launch, str(refusal)))
        except (OSError, UnicodeEncodeError) as error:
            self._emit(_start_failed(launch, f"cannot prepare the start: {error}"))
        else:
            self._follow(Follower(folder, file))

    def _follow(self, follower: Follower) -> None:
        """Repeats what was reported, starts the keeper if none has ever come, and watches from now on."""
        self._emit(*follower.replay())
        if follower.gone:
            return
        self._followers[follower.launch.work_id] = follower
        self._spawn_if_needed(follower)

    def _spawn_if_needed(self, follower: Follower) -> None:
        if not follower.never_started or follower.folder.stop(follower.launch.fence) is not None:
            return
        try:
            starter = spawn_keeper(follower.folder)
            self._starters.append(starter)
            follower.watch_start(starter)
        except OSError as error:
            follower.start_trouble = f"no process could be started: {error}"

    def _stop(self, work_id: str, fence: int, grace_ns: int) -> None:
        try:
            check_work_id(work_id)
        except LaunchRefused:
            self._emit(_stopped_before_start(work_id, fence))
            return
        folder = self._folder(work_id)
        launch = folder.launch()
        order = folder.stop(fence)
        if order is None or grace_ns < order.grace_ns:
            try:
                folder.path.mkdir(parents=True, exist_ok=True)
                write_struct(folder.stop_path(fence), StopFile(grace_ns))
            except OSError as error:
                # A full disk must not keep a work running: the signal alone stops it.
                _log.warning("the order to stop %s cannot be written: %s", work_id, error)
        if launch is None and end_marked(f"{FOLDER_VARIABLE}={folder.path}", ()):
            _log.warning("processes of %s, whose files were deleted, cannot be ended", work_id)
            return
        if launch is None or launch.fence != fence:
            self._emit(_stopped_before_start(work_id, fence))
            return
        if work_id not in self._followers:
            self._follow(Follower(folder, launch))
        signal_keeper(folder)

    def _reattach(self, work_id: str, fence: int) -> None:
        try:
            check_work_id(work_id)
        except LaunchRefused:
            return
        folder = self._folder(work_id)
        launch = folder.launch()
        if launch is None or launch.fence != fence:
            if folder.stop(fence) is not None:
                self._emit(_stopped_before_start(work_id, fence))
            return
        if work_id in self._followers:
            # Only one follower may write seen.jsonl: this one only reads it.
            self._emit(*Follower(folder, launch).replay())
        else:
            self._follow(Follower(folder, launch))

    def _note_ready(self, follower: Follower, ready: bool) -> None:
        try:
            self._emit(*follower.note_ready(ready))
        except OSError as error:
            self._complain(follower, error)

    def _poll(self) -> None:
        self._starters = [starter for starter in self._starters if starter.poll() is None]
        for work_id, follower in list(self._followers.items()):
            try:
                for report in follower.advance():
                    self._emit(report)
                self._in_trouble.discard(work_id)
            except (OSError, msgspec.MsgspecError) as error:
                self._complain(follower, error)
            if follower.gone:
                del self._followers[work_id]

    def _reap_starters(self) -> None:
        for starter in self._starters:
            with suppress(subprocess.TimeoutExpired):
                starter.wait(STARTER_LIMIT_S)

    def _complain(self, follower: Follower, error: Exception) -> None:
        """Says once that a work cannot be followed now; the next look tries again."""
        work_id = follower.launch.work_id
        if work_id not in self._in_trouble:
            self._in_trouble.add(work_id)
            _log.warning("work %s cannot be followed now: %s", work_id, error)

    def _folder(self, work_id: str) -> WorkFolder:
        return WorkFolder(self._works_dir / work_id)


def _make_room(folder: WorkFolder, former_fence: int, fence: int) -> None:
    """Puts the folder of an older fence aside, if that one is gone."""
    if former_fence > fence:
        raise LaunchRefused(f"fence {fence} is older than {former_fence}, which was started before")
    if not is_gone(folder):
        raise LaunchRefused(f"fence {former_fence} of this work is not gone yet")
    os.rename(folder.path, folder.path.with_name(f"{folder.path.name}~{former_fence}"))


def _stopped_before_start(work_id: str, fence: int) -> Report:
    detail = "stopped before it started"
    return Report(work_id, fence, WITHOUT_FILES_POSITION, "gone", outcome="stopped", detail=detail)


def _start_failed(launch: Launch, detail: str) -> Report:
    position = WITHOUT_FILES_POSITION
    return Report(launch.work_id, launch.fence, position, "gone", outcome="start_failed", detail=detail)


async def _lock_works(works_dir: Path) -> int:
    """Only one engine may write seen.jsonl of a state folder. The lock goes with the process.

    A control plane that was killed while it started a keeper holds the lock a moment longer, in a child that
    has not yet executed its program: that is what LOCK_WAIT_S is for.
    """
    works_dir.mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + LOCK_WAIT_S
    descriptor = os.open(works_dir / ".engine-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                os.close(descriptor)
                state = str(works_dir.parent)
                rule = "is used by another running control plane"
                raise InputError(rule, field="state", value=state) from None
        await asyncio.sleep(POLL_S)
