"""Replay: a journal's events through a core, every action compared with the recorded one.

Also how a control plane comes back after a crash: `Replay.core` is then the core to go on with, and
`Replay.unrecorded` the actions of the last event that were decided and not written any more.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from groundplane import __version__
from groundplane.control.actions import AnyAction
from groundplane.control.core import ControlCore
from groundplane.control.journal import ActionRecord, CoreSnapshot, EventRecord, Record, SnapshotRecord
from groundplane.spec.errors import InputError


class Divergence(Struct, frozen=True):
    """The first place where journal and core disagree. `recorded` or `recomputed` is "" where there is none."""

    seq: int
    event: str
    recorded: str
    recomputed: str


class ReplayReport(Struct, frozen=True):
    """What a replay found. `digest` is that of the state at its end."""

    num_events: int
    num_actions: int
    num_snapshots: int
    num_unrecorded: int
    digest: str
    divergence: Divergence | None


class Replay:
    """Takes records one by one; stops comparing at the first divergence, and goes on handling.

    A snapshot in the middle is checked against the state and, if other code wrote it, taken over: upgrades
    start from a snapshot.
    """

    def __init__(self) -> None:
        self.core = ControlCore()
        self.unrecorded: list[AnyAction] = []
        self.next_seq = 0
        self.divergence: Divergence | None = None
        self._num_events = self._num_actions = self._num_snapshots = 0
        self._event = ""

    def take(self, record: Record) -> None:
        """Takes the next record.

        Raises:
            InputError: records out of order, or a snapshot of a schema that this version does not read.
        """
        if record.seq < self.next_seq:
            raise InputError("journal records must be in the order of seq", field="seq", value=record.seq)
        match record:
            case EventRecord():
                self._take_event(record)
            case ActionRecord():
                self._take_action(record)
            case SnapshotRecord():
                self._finish_event(record.seq)
                self._take_snapshot(record.seq, record.snapshot)
        self.next_seq = record.seq + 1

    def report(self) -> ReplayReport:
        """What was found up to here. Actions missing at the very end were cut off by a crash."""
        return ReplayReport(
            num_events=self._num_events,
            num_actions=self._num_actions,
            num_snapshots=self._num_snapshots,
            num_unrecorded=len(self.unrecorded),
            digest=self.core.digest(),
            divergence=self.divergence,
        )

    def _take_event(self, record: EventRecord) -> None:
        self._finish_event(record.seq)
        self._num_events += 1
        self._event = type(record.event).__name__
        self.unrecorded = self.core.handle(record.now_ns, record.event)

    def _take_action(self, record: ActionRecord) -> None:
        self._num_actions += 1
        recomputed = self.unrecorded.pop(0) if self.unrecorded else None
        if recomputed != record.action:
            self._diverged(record.seq, repr(record.action), "" if recomputed is None else repr(recomputed))

    def _take_snapshot(self, seq: int, snapshot: CoreSnapshot) -> None:
        self._num_snapshots += 1
        if self._num_events == 0 or snapshot.code_version != __version__:
            self.core = ControlCore.restore(snapshot.data)
        if self.core.digest() != snapshot.digest:
            self._event = "snapshot"
            self._diverged(seq, f"digest {snapshot.digest}", f"digest {self.core.digest()}")

    def _finish_event(self, seq: int) -> None:
        if self.unrecorded:
            self._diverged(seq, "", repr(self.unrecorded[0]))
            self.unrecorded = []

    def _diverged(self, seq: int, recorded: str, recomputed: str) -> None:
        if self.divergence is None:
            self.divergence = Divergence(seq, self._event, recorded, recomputed)


def replay(records: Iterable[Record]) -> ReplayReport:
    """Replays a whole journal, from its beginning or from a leading snapshot."""
    run = Replay()
    for record in records:
        run.take(record)
    return run.report()
