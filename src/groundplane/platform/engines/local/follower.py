"""Follows the files of one work and turns them into reports, each with a position that never changes.

Two files are written by others: reports.jsonl by the keeper, progress.jsonl by rank 0; and readiness is asked
of the replica itself. The follower brings them into one order: it appends each report to seen.jsonl, synced,
before it hands it out. **Line n of seen.jsonl is the report at position n, counted from 1.** A line carries
how far both files had been read, so that the follower of a restarted control plane repeats the old reports
word for word and goes on where the old one had stopped.

Not known here: threads, the event loop, other works.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from groundplane.platform.engines.contract import Report
from groundplane.platform.engines.local import processes
from groundplane.platform.engines.local.folder import KeeperFile, KeeperLine, LaunchFile, LineLog, WorkFolder
from groundplane.platform.engines.local.guard import last_lines
from groundplane.platform.engines.local.remains import close_without_keeper

KEEPER_START_LIMIT_S: Final = 20.0
"""How long a keeper may take until it has written keeper.json."""

READ_BYTES: Final = 2**20
"""Most that is read of one file at a time."""


class _Seen(Struct, frozen=True, omit_defaults=True):
    """A line of seen.jsonl: a report, and how many bytes of both sources had been read up to it."""

    what: Literal["started", "ready", "unready", "checkpoint", "gone"]
    reports_bytes: int
    progress_bytes: int
    outcome: Literal["", "succeeded", "failed", "stopped", "start_failed"] = ""
    exit_code: int = 0
    step: int = 0
    detail: str = ""


class _ProgressLine(Struct, frozen=True):
    """What of a line of progress.jsonl matters here; other fields are the trainer's."""

    step: int | None = None
    checkpoint: int | None = None


class Follower:
    """The reports of one launched work, in order. `gone` is True once the last one was handed out."""

    def __init__(self, folder: WorkFolder, launch: LaunchFile) -> None:
        self.folder = folder
        self.launch = launch
        self.gone = False
        self.started = False
        self.ready = False
        self._log = LineLog(folder.seen_path)
        self._num_reports = 0
        self._reports_tail = _Tail(folder.reports_path)
        self._progress_tail = _Tail(folder.progress_path)
        self._keeper: KeeperFile | None = None
        self._gone_line: KeeperLine | None = None
        self._starter: subprocess.Popen[bytes] | None = None
        self._starter_since_s = 0.0
        self.start_trouble = ""
        """Why no keeper could be started; the work then ends as `start_failed`."""

    def replay(self) -> list[Report]:
        """The reports handed out so far, from the first; the follower goes on behind them."""
        seen = [msgspec.json.decode(line, type=_Seen) for line in self._log.lines()]
        reports = [self._note(line, position) for position, line in enumerate(seen, start=1)]
        if seen:
            self._reports_tail.offset = seen[-1].reports_bytes
            self._progress_tail.offset = seen[-1].progress_bytes
        self._num_reports = len(seen)
        return reports

    def watch_start(self, starter: subprocess.Popen[bytes]) -> None:
        """Takes over the process that starts the keeper."""
        self._starter = starter
        self._starter_since_s = time.monotonic()

    @property
    def never_started(self) -> bool:
        """No keeper has come so far and none is on its way."""
        return self._starter is None and self.keeper() is None and not self.folder.reports_path.exists()

    def keeper(self) -> KeeperFile | None:
        """Who keeps the work."""
        if self._keeper is None:
            self._keeper = self.folder.keeper()
        return self._keeper

    def keeper_alive(self) -> bool:
        """Whether the keeper that wrote keeper.json lives."""
        keeper = self.keeper()
        return (
            keeper is not None
            and keeper.boot_id == processes.boot_id()
            and processes.is_alive(keeper.pid, keeper.start_ticks)
        )

    def advance(self) -> Iterator[Report]:
        """What is new since the last call. Notices a lost keeper, ends what it left, and says so.

        Each report is in seen.jsonl before it is yielded, and none is lost when a later one fails.

        Raises:
            OSError: a file cannot be read or written now; the next call goes on from the same place.
        """
        if self.gone:
            return
        yield from self._read_keeper_lines()
        if self.started or self._gone_line is not None:
            yield from self._read_progress()
        if self._gone_line is not None:
            # The keeper ends right after its last line; until then a process of the work is left.
            if not self.keeper_alive():
                yield from self._read_progress()
                line = self._gone_line
                yield self._add("gone", outcome=line.outcome, exit_code=line.exit_code, detail=line.detail)
        elif not self.keeper_alive():
            self._look_after_keeper()

    def note_ready(self, ready: bool) -> list[Report]:
        """Records that a replica began or ceased to answer; nothing new gives no report."""
        if self.gone or not self.started or ready == self.ready:
            return []
        return [self._add("ready" if ready else "unready")]

    # Reading -------------------------------------------------------------------------------------------

    def _read_keeper_lines(self) -> Iterator[Report]:
        if self._gone_line is not None:
            return
        for content, end in self._reports_tail.new_lines():
            line = msgspec.json.decode(content, type=KeeperLine)
            if line.what == "started" and not self.started:
                yield self._add("started")
            elif line.what == "gone":
                self._gone_line = line
            self._reports_tail.offset = end

    def _read_progress(self) -> Iterator[Report]:
        while lines := self._progress_tail.new_lines():
            for content, end in lines:
                line = _progress_line(content)
                # Read again after a crash, a step gives no second `ready`; a checkpoint would be told twice,
                # were the line not counted as read with it.
                if line.step is not None and self.launch.kind == "attempt" and not self.ready:
                    yield self._add("ready")
                if line.checkpoint is not None:
                    yield self._add("checkpoint", step=line.checkpoint, progress_bytes=end)
                self._progress_tail.offset = end

    def _add(
        self,
        what: Literal["started", "ready", "unready", "checkpoint", "gone"],
        *,
        outcome: Literal["", "succeeded", "failed", "stopped", "start_failed"] = "",
        exit_code: int = 0,
        step: int = 0,
        detail: str = "",
        progress_bytes: int | None = None,
    ) -> Report:
        read_bytes = self._progress_tail.offset if progress_bytes is None else progress_bytes
        seen = _Seen(what, self._reports_tail.offset, read_bytes, outcome, exit_code, step, detail)
        self._log.append(msgspec.json.encode(seen))
        self._num_reports += 1
        return self._note(seen, self._num_reports)

    def _note(self, seen: _Seen, position: int) -> Report:
        self.started = self.started or seen.what == "started"
        self.gone = self.gone or seen.what == "gone"
        if seen.what in {"ready", "unready"}:
            self.ready = seen.what == "ready"
        return Report(
            self.launch.work_id,
            self.launch.fence,
            position,
            seen.what,
            seen.outcome,
            seen.exit_code,
            seen.step,
            seen.detail,
        )

    # The keeper ------------------------------------------------------------------------------------------

    def _look_after_keeper(self) -> None:
        """A keeper that does not live is on its way, could not come, or was lost; the last two end it."""
        if self._starter is not None:
            self._starter.poll()
            waited_s = time.monotonic() - self._starter_since_s
            if (
                self._starter.returncode in {None, 0}
                and self.keeper() is None
                and waited_s < KEEPER_START_LIMIT_S
            ):
                return  # on its way; with 0 another keeper has come and is about to say so
            if self.keeper() is None:
                words = last_lines(self.folder.keeper_log_path)
                self.start_trouble = "its keeper did not start" + (f":\n{words}" if words else "")
        ordered = self.folder.stop(self.launch.fence) is not None
        if self.keeper() is None and not self.start_trouble and not ordered:
            return  # launched, never started: waits for a start or a stop
        close_without_keeper(self.folder, self.launch, self.start_trouble)


def _progress_line(content: bytes) -> _ProgressLine:
    """A line in the rank's own words: what cannot be understood says nothing."""
    try:
        return msgspec.json.decode(content, type=_ProgressLine)
    except msgspec.DecodeError:
        return _ProgressLine()


class _Tail:
    """Reads a growing file line by line from an offset that the caller moves."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0

    def new_lines(self) -> list[tuple[bytes, int]]:
        """Complete lines behind the offset, each with the offset of its end; at most READ_BYTES of them.

        A single line longer than READ_BYTES is passed over in pieces, which no reader understands.
        """
        try:
            if os.stat(self._path).st_size <= self.offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self.offset)
                content = file.read(READ_BYTES)
        except FileNotFoundError:
            return []
        if len(content) == READ_BYTES and b"\n" not in content:
            return [(content, self.offset + READ_BYTES)]
        lines = []
        end = self.offset
        for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
            end += len(line)
            lines.append((line, end))
        return lines
