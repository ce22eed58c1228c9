"""What operators set, as the checker sees it: rules of queues and windows of nodes. It reads no core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from groundplane.control.actions import StartWork
from groundplane.control.events import (
    UNITS_PER_DEVICE,
    PolicySet,
    QueueRule,
    TimerFired,
    WindowRemoved,
    WindowSet,
)
from groundplane.control.state import QueueUsage
from groundplane.sim.promises import ViolationError


class Closable(Protocol):
    """A node that a window closes."""

    is_cordoned: bool


@dataclass
class KeptRules:
    """Queues and windows, and what no start may do against them.

    Attributes:
        nodes: those that joined.
        queue_of: the queue of each job and service.
    """

    nodes: Mapping[str, Closable]
    queue_of: dict[str, str] = field(default_factory=dict)
    _rules: dict[str, QueueRule] = field(default_factory=dict)
    _windows: dict[str, WindowSet] = field(default_factory=dict)
    _closed_for: dict[str, list[str]] = field(default_factory=dict)

    def note_policy(self, event: PolicySet) -> None:
        """All rules are new."""
        self._rules = {rule.queue_id: rule for rule in event.queues}

    def note_window(self, now_ns: int, event: WindowSet | WindowRemoved | TimerFired) -> None:
        """A window is set, taken back, begins or ends."""
        match event:
            case WindowSet():
                taken = {node_id for window in self._windows.values() for node_id in window.node_ids}
                is_new = event.end_ns > now_ns and event.window_id not in self._windows
                if is_new and not taken & set(event.node_ids):
                    self._windows[event.window_id] = event
                    if event.begin_ns <= now_ns:
                        self._close_for(event)
            case WindowRemoved(window_id):
                self._end_window(window_id)
            case TimerFired(timer_id):
                for window_id, window in list(self._windows.items()):
                    if timer_id == f"window.{window_id}.begin" and now_ns >= window.begin_ns:
                        self._close_for(window)
                    elif timer_id == f"window.{window_id}.end" and now_ns >= window.end_ns:
                        self._end_window(window_id)

    def check_start(self, now_ns: int, action: StartWork, held: Iterable[tuple[str, int]]) -> None:
        """Holds a start against limits and windows.

        Args:
            held: owner and units of device of each work that holds some, this one included.

        Raises:
            ViolationError: it takes a queue, or one above it, beyond its limit, or is in another's window.
        """
        held = list(held)
        name = self.queue_of.get(action.owner_id, "")
        while name in self._rules:
            units = sum(units for owner, units in held if self._is_below(self.queue_of.get(owner, ""), name))
            if 0 <= self._rules[name].limit_devices * UNITS_PER_DEVICE < units:
                devices = units / UNITS_PER_DEVICE
                raise ViolationError(
                    f"{action.work_id} takes queue {name} to {devices:g} devices, over its limit"
                )
            name = self._rules[name].parent
        self._check_windows(now_ns, action)

    def check_usage(self, usage: Mapping[str, QueueUsage], held: Iterable[tuple[str, int]]) -> None:
        """Holds what the core charges each queue against what the works below it hold.

        Raises:
            ViolationError: it charges more or less.
        """
        if not self._rules:
            return
        units_of: dict[str, int] = {}
        for owner, units in held:
            name = self.queue_of.get(owner, "")
            while name:
                units_of[name] = units_of.get(name, 0) + units
                name = self._rules[name].parent if name in self._rules else ""
        for name in {**usage, **units_of}:
            charged = usage.get(name)
            units = 0
            if charged is not None:
                units = charged.num_devices * UNITS_PER_DEVICE + sum(charged.units.values())
            if units != units_of.get(name, 0):
                raise ViolationError(
                    f"queue {name} is charged {units} units, it holds {units_of.get(name, 0)}"
                )

    def _check_windows(self, now_ns: int, action: StartWork) -> None:
        """Once a window has begun nothing starts on its nodes but works of its queue."""
        queue = self.queue_of.get(action.owner_id, "")
        for window in self._windows.values():
            is_inside = any(rank.node_id in window.node_ids for rank in action.placement)
            is_free = window.queue and self._is_below(queue, window.queue)
            if is_inside and now_ns >= window.begin_ns and not is_free:
                raise ViolationError(f"{action.work_id} starts in the window {window.window_id}")

    def _close_for(self, window: WindowSet) -> None:
        """Maintenance begins; a timer that comes twice closes nothing twice."""
        if window.queue or window.window_id in self._closed_for:
            return
        known = [node_id for node_id in window.node_ids if node_id in self.nodes]
        closed = [node_id for node_id in known if not self.nodes[node_id].is_cordoned]
        self._closed_for[window.window_id] = closed
        for node_id in closed:
            self.nodes[node_id].is_cordoned = True

    def _end_window(self, window_id: str) -> None:
        self._windows.pop(window_id, None)
        for node_id in self._closed_for.pop(window_id, []):
            self.nodes[node_id].is_cordoned = False

    def _is_below(self, queue: str, above: str) -> bool:
        while queue != above and queue in self._rules:
            queue = self._rules[queue].parent
        return queue == above
