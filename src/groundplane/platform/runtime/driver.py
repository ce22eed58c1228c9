"""The loop around the control core on real time: stamps, handles, journals, acknowledges, carries out.

Events queue up and are taken in batches. Each batch is stamped and handled, then written with its actions in
one transaction, and only then acknowledged and carried out; while one batch is being written the next one
gathers (group commit). A batch that cannot be written ends the process (`failure`): nothing goes on as if it
had been. Knows neither HTTP nor what a work runs; SQL goes to one writer thread, to keep the loop responsive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from groundplane import __version__
from groundplane.control import actions as act
from groundplane.control import events as ev
from groundplane.control.actions import AnyAction
from groundplane.control.core import ControlCore
from groundplane.control.events import AnyEvent
from groundplane.control.journal import JournalRecord, SnapshotRecord
from groundplane.platform.engines.contract import Engine, NodeOffer, Report
from groundplane.platform.runtime import store
from groundplane.platform.runtime.clock import Clock, Timers
from groundplane.platform.runtime.database import Database
from groundplane.platform.runtime.device_kinds import describe_kind
from groundplane.platform.runtime.intake import Item, Launcher, Work, event_of, never_started, refuse
from groundplane.platform.runtime.store import Also, Entry, LiveWork
from groundplane.spec.errors import GroundplaneError, InputError, InvariantError

MAX_QUEUED_EVENTS: Final = 10_000
"""Requests that may wait to be handled; more are refused as `Busy`. Reports of engines always find room."""
MAX_BATCH: Final = 256
SNAPSHOT_EVERY: Final = 1000
"""Journal records between two snapshots: what a restart replays at most."""

STOPPING: Final = "the control plane is stopping; try again"

T = TypeVar("T")
log = logging.getLogger("groundplane.driver")


class Busy(GroundplaneError):
    """The queue of events is full; the same request may be made again."""


class Driver:
    """Owns the clock, the queue and the core. Used from one asyncio loop; `core` is for reading only.

    Args:
        database: journal and tables, its schema current.
        engine: where works run; opened by `open`.
        launcher: makes launches of leases.
        snapshot_every: journal records between two snapshots.
    """

    def __init__(
        self,
        database: Database,
        engine: Engine,
        launcher: Launcher,
        *,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        self.core = ControlCore()
        self.clock = Clock(0)
        self.seq = 0
        self._database = database
        self._engine = engine
        self._launcher = launcher
        self._snapshot_every = snapshot_every
        self._snapshot_seq = 0
        self._queue: deque[Item] = deque()
        self._wake = asyncio.Event()
        self._is_closing = False
        self._durable = asyncio.Event()
        self._durable.set()
        self._works: dict[str, Work] = {}
        self._timers = Timers(self.now_ns, self._fire)
        self._to_carry_out: asyncio.Queue[AnyAction | LiveWork] = asyncio.Queue()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._tasks: list[asyncio.Task[None]] = []
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done, with an exception, when the driver can not go on."""

    async def open(self) -> None:
        """Replays the journal, opens the engine, finds the works that live on, and begins to handle events.

        Raises:
            InputError: the engine's nodes do not offer what they offered before.
            StorageError: the journal cannot be read.
        """
        live = await self.sql(self._restore)
        for work in live:
            known = self._works[work.action.work_id] = Work(work.action, work.prepared, work.position)
            known.draining_since_ns = work.draining_ns
        offers = await self._engine.open(self._take_report)
        self._tasks = [
            self._guarded(self._handle_events(), "events"),
            self._guarded(self._carry_out(), "actions"),
        ]
        # First what lives, so that its reports are under way, then the nodes, whose joining places new work.
        for work in live:
            self._to_carry_out.put_nowait(work)
        for offer in offers:
            await self._join(offer)
        for timer_id, at_ns in (await self.sql(lambda: store.pending_timers(self._database))).items():
            self._timers.set(timer_id, at_ns)

    async def handle(self, event: AnyEvent, also: Also | None = None) -> JournalRecord:
        """Hands an event to the core and waits until it is durable.

        Args:
            event: what happened or is asked for.
            also: further rows for the same transaction.

        Raises:
            Busy: too many events wait.
            InputError: the core refuses the event.
            StorageError: it could not be made durable; the process ends.
        """
        if self.failure.done():
            self.failure.result()
        if self._is_closing:
            raise Busy(STOPPING)
        if len(self._queue) >= MAX_QUEUED_EVENTS:
            raise Busy(f"{MAX_QUEUED_EVENTS} events wait to be handled; try again")
        done: asyncio.Future[JournalRecord] = asyncio.get_running_loop().create_future()
        self._put(Item(event, also, done))
        return await done

    async def settled(self) -> None:
        """Waits until all that the core knows is durable; what is read then, before the next wait, stays.

        Raises:
            StorageError: it could not be made durable.
        """
        await self._durable.wait()
        if self.failure.done():
            self.failure.result()

    def draining(self) -> list[tuple[str, int, int]]:
        """Works that get no new requests: id, fence, and since when in nanoseconds."""
        return [
            (work_id, work.action.fence, work.draining_since_ns)
            for work_id, work in self._works.items()
            if work.draining_since_ns is not None
        ]

    async def sql(self, work: Callable[[], T]) -> T:
        """Runs blocking SQL on the writer thread, in turn with the journal."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)

    def now_ns(self) -> int:
        """The driver's time."""
        return self.clock.now_ns()

    async def close(self) -> None:
        """Stops handling, keeps a snapshot, and lets go of the engine. Works go on."""
        self._timers.close()
        self._is_closing = True
        self._wake.set()
        for task in self._tasks[1:]:
            task.cancel()
        # The first task ends by itself: a batch that was handled is written, so that the snapshot is true.
        await asyncio.gather(*self._tasks, return_exceptions=True)
        refuse(self._queue, Busy(STOPPING))
        await self._engine.close()
        if self._tasks and not self.failure.done() and self.seq > self._snapshot_seq:
            await self._snapshot()
        self._writer.shutdown()

    # From the journal -----------------------------------------------------------------------------------

    def _restore(self) -> list[LiveWork]:
        last_ns = 0
        snapshot = store.newest_snapshot(self._database)
        if snapshot is not None:
            self.core = ControlCore.restore(snapshot.payload)
            self.seq = self._snapshot_seq = snapshot.seq
            last_ns = snapshot.now_ns
        for record in store.records(self._database, self.seq):
            recomputed = self.core.handle(record.now_ns, record.event)
            if tuple(recomputed) != record.actions:
                # What was recorded was carried out and stays true; the difference is a bug worth a report.
                log.error("journal record %d replays to other actions than were recorded", record.seq)
            self.seq, last_ns = record.seq, record.now_ns
        self.clock = Clock(last_ns)
        leased = {work.work_id: work.fence for work in self.core.state.works.values() if work.fence}
        live = [
            work
            for work in store.live_works(self._database)
            if leased.pop(work.action.work_id, None) == work.action.fence
        ]
        if leased:
            raise InvariantError(f"the journal leases to works that no table names: {sorted(leased)}")
        return live

    async def _join(self, offer: NodeOffer) -> None:
        kind = describe_kind(offer.device_kind)
        if self.core.state.kinds.get(offer.device_kind) != kind:
            await self.handle(kind)
        known = self.core.state.nodes.get(offer.node_id)
        if known is None:
            await self.handle(
                ev.NodeJoined(
                    node_id=offer.node_id,
                    device_kind=offer.device_kind,
                    num_devices=offer.num_devices,
                    memory_bytes=offer.memory_bytes,
                )
            )
        elif (known.device_kind, known.num_devices) != (offer.device_kind, offer.num_devices):
            before = f"{known.num_devices} of kind {known.device_kind}"
            raise InputError(
                f"must stay as it was when the state folder was made ({before})",
                field="devices",
                value=offer.num_devices,
            )
        elif known.state == "silent":
            await self.handle(ev.NodeBack(node_id=offer.node_id))

    # Events ---------------------------------------------------------------------------------------------

    def _put(self, item: Item) -> None:
        self._queue.append(item)
        self._wake.set()

    async def _handle_events(self) -> None:
        while not self._is_closing:
            await self._wake.wait()
            self._wake.clear()
            while self._queue and not self._is_closing:
                batch = [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]
                self._durable.clear()
                await self._handle_batch(batch)
                self._durable.set()
                # Those who waited read now, before the core is ahead of the journal again.
                await asyncio.sleep(0)
                if self.seq - self._snapshot_seq >= self._snapshot_every:
                    await self._snapshot()

    async def _handle_batch(self, batch: list[Item]) -> None:
        failure: GroundplaneError | None = Busy(STOPPING)
        entries: list[Entry] = []
        waiting: list[tuple[asyncio.Future[JournalRecord], JournalRecord]] = []
        try:
            for item in batch:
                record = self._decide(item)
                if record is None:
                    continue
                entries.append(Entry(record=record, position=item.position, also=item.also))
                if item.done is not None:
                    waiting.append((item.done, record))
            if entries:
                await self.sql(lambda: store.append(self._database, entries))
            failure = None
        except GroundplaneError as error:
            failure = error
            raise
        finally:
            # Also after a fault of our own: nobody waits for an answer that cannot come any more.
            if failure is not None:
                refuse(batch, failure)
        for done, record in waiting:
            if not done.done():
                done.set_result(record)
        for entry in entries:
            for action in entry.record.actions:
                self._dispatch(action)

    def _decide(self, item: Item) -> JournalRecord | None:
        """The core's answer to one event; None when it is old news or refused."""
        event = item.event
        if isinstance(
            event,
            ev.WorkStarted
            | ev.WorkReady
            | ev.WorkUnready
            | ev.WorkStalled
            | ev.WorkSlowed
            | ev.CheckpointCommitted
            | ev.WorkGone,
        ):
            work = self._works.get(event.work_id)
            if work is None or work.action.fence != event.fence:
                return None
            if item.position is not None:
                if item.position <= work.position:
                    return None
                work.position = item.position
            if isinstance(event, ev.WorkGone):
                del self._works[event.work_id]
        now_ns = self.clock.now_ns()
        try:
            actions = tuple(self.core.handle(now_ns, event))
        except InputError as error:
            if item.done is None:
                raise InvariantError(f"the core refuses {event}: {error}") from error
            item.done.set_exception(error)
            return None
        if isinstance(event, ev.WorkReady):
            self._add_endpoint(item, event.work_id, now_ns)
        for action in actions:
            # Known at once, so that a report in the same batch finds it.
            if isinstance(action, act.StartWork):
                self._works[action.work_id] = Work(action)
            elif isinstance(action, act.DrainWork) and action.work_id in self._works:
                self._works[action.work_id].draining_since_ns = now_ns
        record = JournalRecord(seq=self.seq + 1, now_ns=now_ns, event=event, actions=actions)
        self.seq = record.seq
        return record

    def _add_endpoint(self, item: Item, work_id: str, now_ns: int) -> None:
        work = self._works[work_id]
        if work.prepared is None or work.prepared.endpoint is None or work.draining_since_ns is not None:
            return
        endpoint, fence = work.prepared.endpoint, work.action.fence
        item.also = lambda connection: store.add_endpoint(connection, work_id, fence, endpoint, now_ns)

    def _take_report(self, report: Report) -> None:
        self._put(Item(event_of(report), position=report.position))

    def _fire(self, timer_id: str) -> None:
        self._put(Item(ev.TimerFired(timer_id=timer_id)))

    async def _snapshot(self) -> None:
        snapshot = SnapshotRecord(self.seq, self.core.state.now_ns, __version__, self.core.snapshot())
        await self.sql(lambda: store.write_snapshot(self._database, snapshot))
        self._snapshot_seq = snapshot.seq

    # Actions --------------------------------------------------------------------------------------------

    def _dispatch(self, action: AnyAction) -> None:
        if isinstance(action, act.SetTimer):
            self._timers.set(action.timer_id, action.at_ns)
        elif isinstance(action, act.StartWork | act.StopWork):
            self._to_carry_out.put_nowait(action)

    async def _carry_out(self) -> None:
        while True:
            action = await self._to_carry_out.get()
            match action:
                case LiveWork():
                    await self._resume(action)
                case act.StartWork():
                    await self._start(action)
                case act.StopWork():
                    await self._engine.stop(action.work_id, action.fence, action.grace_ns)
                case _:
                    raise InvariantError(f"{action} is not carried out by an engine")

    async def _resume(self, live: LiveWork) -> None:
        """Takes up a work of an earlier control plane, wherever that one was killed."""
        action = live.action
        if live.prepared is None and live.stop is None:
            await self._start(action)
            return
        await self._engine.reattach(action.work_id, action.fence)
        if live.prepared is not None and live.stop is None:
            await self._engine.start(live.prepared.launch)
        if live.stop is not None:
            await self._engine.stop(action.work_id, action.fence, live.stop.grace_ns)

    async def _start(self, action: act.StartWork) -> None:
        work = self._works.get(action.work_id)
        if work is None:
            return
        try:
            prepared = await asyncio.to_thread(self._launcher.prepare, action)
        except (InputError, OSError) as error:
            log.warning("%s cannot be started: %s", action.work_id, error)
            self._put(Item(never_started(action, str(error))))
            return
        await self.sql(lambda: store.keep_prepared(self._database, prepared))
        work.prepared = prepared
        try:
            await self._engine.start(prepared.launch)
        except OSError as error:
            # Whether something was started is not known here: the engine proves that nothing is left.
            log.warning("%s cannot be started: %s", action.work_id, error)
            await self._engine.stop(action.work_id, action.fence, 0)

    def _guarded(self, work: Any, name: str) -> asyncio.Task[None]:
        """A task whose end by an exception is the driver's end."""
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self.failure.done():
            return
        error = task.exception()
        if error is not None:
            self.failure.set_exception(error)
            self._durable.set()
            refuse(self._queue, Busy(STOPPING))
