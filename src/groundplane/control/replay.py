"""Replay: a journal's events through a core, every action compared with the recorded one."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from groundplane import __version__
from groundplane.control.actions import AnyAction
from groundplane.control.core import ControlCore
from groundplane.control.journal import JournalRecord, Record, SnapshotRecord
from groundplane.spec.errors import InputError


class Divergence(Struct, frozen=True):
    """The first place where journal and core disagree; "" stands for no action."""

    seq: int
    event: str
    recorded: str
    recomputed: str


class ReplayReport(Struct, frozen=True):
    """What a replay found. `digest` is that of the state at its end."""

    num_events: int
    num_actions: int
    num_snapshots: int
    digest: str
    divergence: Divergence | None


class Replay:
    """Takes records one by one; notes the first divergence, and goes on handling.

    A snapshot at the beginning is what the core starts from. One in the middle is checked against the state
    and, if other code wrote it, taken over: upgrades start from a snapshot.
    """

    def __init__(self) -> None:
        self.core = ControlCore()
        self.last_seq: int | None = None
        self.divergence: Divergence | None = None
        self._num_events = self._num_actions = self._num_snapshots = 0

    def take(self, record: Record) -> None:
        """Takes the next record.

        Raises:
            InputError: a record is missing or out of order, or a snapshot's schema is not read by this
                version.
        """
        if isinstance(record, SnapshotRecord):
            self._take_snapshot(record)
        else:
            self._take_event(record)
        self.last_seq = record.seq

    def report(self) -> ReplayReport:
        """What was found up to here."""
        return ReplayReport(
            num_events=self._num_events,
            num_actions=self._num_actions,
            num_snapshots=self._num_snapshots,
            digest=self.core.digest(),
            divergence=self.divergence,
        )

    def _take_event(self, record: JournalRecord) -> None:
        if self.last_seq is not None and record.seq != self.last_seq + 1:
            raise InputError(
                f"journal records must follow each other, after {self.last_seq}",
                field="seq",
                value=record.seq,
            )
        if record.now_ns < self.core.state.now_ns:
            raise InputError("time must not run backwards", field=f"record {record.seq}", value=record.now_ns)
        self._num_events += 1
        self._num_actions += len(record.actions)
        recomputed = self.core.handle(record.now_ns, record.event)
        if tuple(recomputed) != record.actions and self.divergence is None:
            self.divergence = _first_difference(record, recomputed)

    def _take_snapshot(self, record: SnapshotRecord) -> None:
        self._num_snapshots += 1
        core = ControlCore.restore(record.payload)
        if self.last_seq is None or record.code_version != __version__:
            self.core = core
        elif core.digest() != self.core.digest() and self.divergence is None:
            self.divergence = Divergence(
                record.seq, "snapshot", f"digest {core.digest()}", f"digest {self.core.digest()}"
            )


def replay(records: Iterable[Record]) -> ReplayReport:
    """Replays a whole journal, from its beginning or from a leading snapshot.

    Raises:
        InputError: as `Replay.take`.
    """
    run = Replay()
    for record in records:
        run.take(record)
    return run.report()


def _first_difference(record: JournalRecord, recomputed: list[AnyAction]) -> Divergence:
    for index in range(max(len(record.actions), len(recomputed))):
        mine = repr(recomputed[index]) if index < len(recomputed) else ""
        theirs = repr(record.actions[index]) if index < len(record.actions) else ""
        if mine != theirs:
            break
    return Divergence(record.seq, type(record.event).__name__, theirs, mine)
