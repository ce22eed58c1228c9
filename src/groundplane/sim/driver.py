"""The loop around the control core on simulated time: the small brother of the platform's driver.

Stamps events, lets the core decide, journals, carries out. It can be killed at any point between these and
comes back by replay of its journal from the newest snapshot, then carries out again what may have been lost.
The same core and the same journal as on real time; only clock, disk and engine are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from groundplane import __version__
from groundplane.control.actions import AnyAction, DrainWork, JobEnded, SetTimer, StartWork, StopWork
from groundplane.control.core import ControlCore
from groundplane.control.events import AnyEvent, TimerFired
from groundplane.control.journal import JournalRecord, SnapshotRecord, decode_record, encode_record
from groundplane.sim.agenda import LAST, Agenda
from groundplane.sim.engine import SimEngine, nodes_of
from groundplane.spec.errors import InputError, InvariantError

Send = Callable[[str, tuple[str, ...], Callable[[], None]], None]
"""Takes a name, the nodes that a message is for, and the message."""
Watch = Callable[[int, AnyEvent, list[AnyAction]], None]


class SimDriver:
    """One control plane over one simulated engine.

    Args:
        agenda: simulated time.
        engine: where starts, drains and stops go.
        new_core: makes an empty core; tests give one with a fault planted in it.
        restore_core: makes a core of a snapshot's bytes.
        watch: told of every event that is durable, with its actions.
        send: hands a message to the engine, now or later.
        keep_journal: whether records are kept, which a restart needs.
    """

    def __init__(
        self,
        agenda: Agenda,
        engine: SimEngine,
        *,
        new_core: Callable[[], ControlCore] = ControlCore,
        restore_core: Callable[[bytes], ControlCore] = ControlCore.restore,
        watch: Watch | None = None,
        send: Send | None = None,
        keep_journal: bool = True,
    ) -> None:
        self.core = new_core()
        self.is_up = True
        self.clock_offset_ns = 0
        self.timer_sink: Callable[[AnyEvent], None] = self.take
        self.journal: list[bytes] = []
        self.snapshot: SnapshotRecord | None = None
        self.ended: dict[str, JobEnded] = {}
        self._agenda = agenda
        self._engine = engine
        self._new_core = new_core
        self._restore_core = restore_core
        self._watch = watch
        self._send = send
        self._keep_journal = keep_journal
        self._num_records = 0
        self._timers: dict[str, int] = {}
        self._boots: dict[str, dict[str, int]] = {}

    def now_ns(self) -> int:
        """The driver's clock, which may be ahead of simulated time; it never goes back."""
        return max(self.core.state.now_ns, self._agenda.now_ns + self.clock_offset_ns)

    def take(self, event: AnyEvent) -> None:
        """Handles an event to its end; it is lost if the control plane is down."""
        if self.is_up:
            self.carry_out(self.decide(event))

    def decide(self, event: AnyEvent) -> list[AnyAction]:
        """Handles an event and makes it durable; nothing is carried out yet."""
        now_ns = self.now_ns()
        actions = self.core.handle(now_ns, event)
        if self._send is not None:  # else nothing comes between deciding and carrying out
            for action in actions:
                if isinstance(action, StartWork):
                    self._boots[action.work_id] = self._boots_of(action)
        self._num_records += 1
        if self._keep_journal:
            self.journal.append(
                encode_record(JournalRecord(self._num_records, now_ns, event, tuple(actions)))
            )
        if self._watch is not None:
            self._watch(now_ns, event, actions)
        return actions

    def carry_out(self, actions: list[AnyAction]) -> None:
        """Does what was decided; may be repeated."""
        for action in actions:
            match action:
                case SetTimer():
                    self._set_timer(action)
                case JobEnded():
                    self.ended[action.job_id] = action
                case StartWork():
                    boots = self._boots.pop(action.work_id, None) or self._boots_of(action)
                    self._to_engine(action, tuple(boots), partial(self._engine.start, action, boots))
                case StopWork():
                    self._to_engine(action, self._nodes_of(action), partial(self._engine.stop, action))
                case DrainWork():
                    self._to_engine(action, self._nodes_of(action), partial(self._engine.drain, action))

    def take_snapshot(self) -> None:
        """Keeps a snapshot, from which the next restart begins."""
        self.snapshot = SnapshotRecord(self._num_records, self.now_ns(), __version__, self.core.snapshot())

    def kill(self) -> None:
        """The process is gone, with all that was not durable."""
        self.is_up = False
        self._timers.clear()
        self._boots.clear()

    def restart(self, core: ControlCore | None = None) -> None:
        """A new process: replay, then what may have been lost is carried out again and engines are asked.

        Args:
            core: what `recovered` gave since the death, if it was asked for.

        Raises:
            InvariantError: the replay gives other actions than were recorded.
        """
        self.core = self.recovered() if core is None else core
        self.is_up = True
        # A clock that was set back stands at the last record, and goes on from there.
        self.clock_offset_ns = max(self.clock_offset_ns, self.core.state.now_ns - self._agenda.now_ns)
        self.ended |= {
            job.job_id: JobEnded(job.job_id, job.state, job.reason)  # type: ignore[arg-type]
            for job in self.core.state.jobs.values()
            if job.ended_ns >= 0
        }
        self.carry_out(self.core.pending_actions())
        self.ask_engine()

    def tear_journal(self, event: AnyEvent) -> None:
        """The write of a record was cut short: half of it is there, behind what is durable."""
        record = encode_record(JournalRecord(self._num_records + 1, self.now_ns(), event, ()))
        self.journal.append(record[: len(record) // 2])

    def recovered(self) -> ControlCore:
        """The core as a new process would find it: from the newest snapshot, or from nothing.

        A last record that is torn was never acknowledged and is dropped.

        Raises:
            InvariantError: the replay gives other actions than were recorded.
            InputError: a record that is not the last is torn.
        """
        if self.journal and _is_torn(self.journal[-1]):
            self.journal.pop()
        if self.snapshot is None:
            core, first = self._new_core(), 0
        else:
            core, first = self._restore_core(self.snapshot.payload), self.snapshot.seq
        for payload in self.journal[first:]:
            record = decode_record(payload)
            if tuple(core.handle(record.now_ns, record.event)) != record.actions:
                raise InvariantError(f"journal record {record.seq} replays to other actions")
        return core

    def ask_engine(self) -> None:
        """Lets the engine report again on every work that is not known to be gone."""
        for work_id in list(self.core.state.works):
            self._engine.reattach(work_id)

    def _to_engine(
        self, action: StartWork | StopWork | DrainWork, nodes: tuple[str, ...], message: Callable[[], None]
    ) -> None:
        if self._send is None:
            message()
        else:
            self._send(f"{type(action).__name__}/{action.work_id}", nodes, message)

    def _boots_of(self, action: StartWork) -> dict[str, int]:
        """The lives of the nodes that a start is decided for; they may have passed when it is carried out."""
        nodes = self.core.state.nodes
        return {node_id: nodes[node_id].boot for node_id in nodes_of(action.placement)}

    def _nodes_of(self, action: StopWork | DrainWork) -> tuple[str, ...]:
        """The nodes that a work is still on; a command to one that is lost goes nowhere."""
        work = self.core.state.works.get(action.work_id)
        lost = () if work is None else work.lost_nodes
        placement = () if work is None else work.placement
        return tuple(node_id for node_id in nodes_of(placement) if node_id not in lost)

    def _set_timer(self, action: SetTimer) -> None:
        self._timers[action.timer_id] = action.at_ns
        self._wake_for(action.timer_id, action.at_ns)

    def _wake_for(self, timer_id: str, at_ns: int) -> None:
        delay_ns = max(0, at_ns - self.now_ns())
        self._agenda.after(delay_ns, lambda: self._timer_due(timer_id, at_ns), LAST)

    def _timer_due(self, timer_id: str, at_ns: int) -> None:
        if self._timers.get(timer_id) != at_ns:
            return
        if self.now_ns() < at_ns:
            self._wake_for(timer_id, at_ns)
            return
        del self._timers[timer_id]
        self.timer_sink(TimerFired(timer_id))


def _is_torn(payload: bytes) -> bool:
    try:
        decode_record(payload)
    except InputError:
        return True
    return False
