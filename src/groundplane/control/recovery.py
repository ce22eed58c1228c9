"""How works leave before their end: at a checkpoint, at a deadline, or because they hang. Pure policy.

What follows when such a work is gone is decided where its kind is (`jobs.py`, `services.py`): who was asked
to go is queued again at no cost of its own, who hung has failed. What a failure costs, budget and back-off,
is there too.
"""

from __future__ import annotations

from groundplane.control.context import Context, evict_timer
from groundplane.control.jobs import Jobs
from groundplane.control.services import Services
from groundplane.control.state import Node, Timer, Work


class Recovery:
    """Decides about works that have to go."""

    def __init__(self, context: Context, jobs: Jobs, services: Services) -> None:
        self._context = context
        self._jobs = jobs
        self._services = services

    def leave(self, work: Work, reason: str, wait_ns: int) -> None:
        """Asks a work to go to other nodes: an attempt at its next checkpoint, after `wait_ns` at the latest.

        Args:
            wait_ns: -1 for no limit; 0 for at once.
        """
        if work.kind == "replica":
            self._services.move(work, reason)
        elif work.stop_intent or work.work_id in self._context.state.evicting:
            return
        elif wait_ns == 0 or work.state == "starting":
            self._jobs.evict(work, reason)
        else:
            self._context.state.evicting[work.work_id] = reason
            if wait_ns > 0:
                at_ns = self._context.now_ns + wait_ns
                self._context.set_timer(evict_timer(work), Timer(at_ns, "evict", work.work_id))

    def may_stop(self, work: Work) -> None:
        """The work has made a checkpoint, or the time for it is over: one that was asked to go stops now."""
        reason = self._context.state.evicting.get(work.work_id)
        if reason is not None:
            self._jobs.evict(work, reason)

    def leave_node(self, node: Node, *, at_once: bool) -> None:
        """Asks what has a part on the node to go, or, at once, stops whoever is left."""
        reason = drained(node)
        state = self._context.state
        works = [state.works[work_id] for work_id in node.holders()]
        for work in works:
            if work.kind == "attempt" and (at_once or state.jobs[work.owner_id].stops_at_checkpoint):
                if at_once:
                    self._jobs.evict(work, reason)
                else:
                    self.leave(work, reason, -1)
            elif work.kind == "replica" and at_once:
                self._services.move(work, reason)
        for owner_id in dict.fromkeys(work.owner_id for work in works if work.kind == "replica"):
            self._services.review(owner_id)

    def may_stay(self, node: Node) -> None:
        """The node is no longer to be emptied: attempts that wait for a checkpoint to leave it stay."""
        state = self._context.state
        for work_id, reason in list(state.evicting.items()):
            if reason == drained(node):
                self._context.end_eviction(state.works[work_id])

    def stalled(self, work: Work, detail: str) -> None:
        """The work hangs: it has failed, and is replaced once it is gone."""
        reason = "no progress" + (f": {detail}" if detail else "")
        if work.stop_intent or work.state in {"draining", "stopping"}:
            self._context.ignore("report that changes nothing")
        elif work.kind == "attempt":
            self._jobs.give_up(work, reason)
        else:
            self._services.give_up(work, reason)


def drained(node: Node) -> str:
    """Why works have to leave a node that is to be emptied."""
    return f"node {node.node_id} is drained"
