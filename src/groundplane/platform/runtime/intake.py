"""What the driver takes in and keeps in mind: queued events, live works, and engines' reports as events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from groundplane.control import actions as act
from groundplane.control import events as ev
from groundplane.control.events import AnyEvent
from groundplane.control.journal import JournalRecord
from groundplane.platform.engines.contract import Report
from groundplane.platform.runtime.store import Also, Prepared
from groundplane.spec.errors import GroundplaneError


class Launcher(Protocol):
    """How a lease becomes something to run."""

    def prepare(self, action: act.StartWork) -> Prepared:
        """What to run for a lease; blocks, and is called beside the loop.

        Raises:
            InputError: it cannot be run, for a reason that a person can mend.
            OSError: its files cannot be written.
        """


class Item:
    """One event in the queue; `position` and `report` are set for what an engine said."""

    __slots__ = ("also", "done", "event", "position")

    def __init__(
        self,
        event: AnyEvent,
        also: Also | None = None,
        done: asyncio.Future[JournalRecord] | None = None,
        position: int | None = None,
    ) -> None:
        self.event = event
        self.also = also
        self.done = done
        self.position = position


class Work:
    """What the driver remembers of a live work."""

    __slots__ = ("action", "draining_since_ns", "position", "prepared")

    def __init__(self, action: act.StartWork, prepared: Prepared | None = None, position: int = -1) -> None:
        self.action = action
        self.prepared = prepared
        self.position = position
        self.draining_since_ns: int | None = None


def refuse(items: Iterable[Item], error: GroundplaneError) -> None:
    """Tells those who still wait for one of these that it was not taken."""
    for item in items:
        if item.done is not None and not item.done.done():
            item.done.set_exception(error)


def event_of(report: Report) -> AnyEvent:
    """The event that an engine's report is."""
    match report.what:
        case "started":
            return ev.WorkStarted(work_id=report.work_id, fence=report.fence)
        case "ready":
            return ev.WorkReady(work_id=report.work_id, fence=report.fence)
        case "unready":
            return ev.WorkUnready(work_id=report.work_id, fence=report.fence)
        case "checkpoint":
            return ev.CheckpointCommitted(work_id=report.work_id, fence=report.fence, step=report.step)
        case "gone":
            return ev.WorkGone(
                work_id=report.work_id,
                fence=report.fence,
                outcome=report.outcome or "failed",
                exit_code=report.exit_code,
                detail=report.detail,
            )


def never_started(action: act.StartWork, detail: str) -> ev.WorkGone:
    return ev.WorkGone(
        work_id=action.work_id, fence=action.fence, outcome="start_failed", exit_code=0, detail=detail
    )
