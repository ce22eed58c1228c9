"""Maintenance windows and reservations: nodes set aside from a time to another, for nobody or for one queue.

Before a window begins its nodes take only what is predicted to end in time. When it begins, whoever is left
has to go: for maintenance the node is closed, for a reservation it takes works of its queue and of those
below. When it is over the nodes are as they were before, and what runs there runs on.
"""

from __future__ import annotations

from groundplane.control.context import Context
from groundplane.control.events import WindowSet
from groundplane.control.jobs import Jobs
from groundplane.control.services import Services
from groundplane.control.state import Node, Timer, Window


class Windows:
    """Decides about windows; called by the core for each event that concerns one."""

    def __init__(self, context: Context, jobs: Jobs, services: Services) -> None:
        self._context = context
        self._jobs = jobs
        self._services = services

    def set(self, event: WindowSet) -> None:
        """A window is announced. It may begin at once; it may not overlap another on any node."""
        context, windows = self._context, self._context.state.windows
        if event.end_ns <= context.now_ns or event.window_id in windows:
            context.ignore("window that is over or known already")
            return
        if any(context.calendar.window_of(node_id) is not None for node_id in event.node_ids):
            context.ignore("window on a node that has one")
            return
        window = Window(event.node_ids, event.begin_ns, event.end_ns, event.queue)
        windows[event.window_id] = window
        self._refill(window)
        context.set_timer(end_timer(event.window_id), Timer(event.end_ns, "window_end", event.window_id))
        if event.begin_ns <= context.now_ns:
            self.begins(event.window_id)
        else:
            begin = Timer(event.begin_ns, "window_begin", event.window_id)
            context.set_timer(begin_timer(event.window_id), begin)

    def begins(self, window_id: str) -> None:
        """It is time: who is still there and has no right to be has to go."""
        window = self._context.state.windows[window_id]
        window.has_begun = True
        for node in self._nodes(window):
            if not window.queue and not node.is_cordoned:
                window.closed.append(node.node_id)
                self._set_cordon(node, True)
            self._clear(node, window, window_id)

    def ends(self, window_id: str) -> None:
        """The window is over, or was taken back."""
        context = self._context
        window = context.state.windows.pop(window_id, None)
        if window is None:
            context.ignore("window that is not there")
            return
        context.drop_timer(begin_timer(window_id))
        context.drop_timer(end_timer(window_id))
        for node_id in window.closed:
            node = context.state.nodes[node_id]
            if node.is_cordoned:
                self._set_cordon(node, False)
        self._refill(window)

    def _clear(self, node: Node, window: Window, window_id: str) -> None:
        state, shares = self._context.state, self._context.shares
        for work_id in node.holders():
            work = state.works[work_id]
            if window.queue and window.queue in shares.path(work.queue):
                continue
            reason = f"window {window_id} has begun on node {node.node_id}"
            if work.kind == "attempt":
                self._jobs.evict(work, reason)
            else:
                self._services.move(work, reason)
                self._services.review(work.owner_id)

    def _set_cordon(self, node: Node, is_cordoned: bool) -> None:
        self._context.ledger.settle_node(node, self._context.now_ns)
        node.is_cordoned = is_cordoned
        self._context.node_changed(node)
        self._context.queue.capacity_changed()

    def _refill(self, window: Window) -> None:
        """Tells every pool of the window's nodes."""
        self._context.calendar.refill()
        for node in self._nodes(window):
            self._context.node_changed(node)
        self._context.queue.capacity_changed()

    def _nodes(self, window: Window) -> list[Node]:
        nodes = self._context.state.nodes
        return [nodes[node_id] for node_id in window.node_ids if node_id in nodes]


def begin_timer(window_id: str) -> str:
    """Id of the timer that begins a window."""
    return f"window.{window_id}.begin"


def end_timer(window_id: str) -> str:
    """Id of the timer that ends a window."""
    return f"window.{window_id}.end"
