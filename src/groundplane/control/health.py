"""Health of nodes: drains, quarantine of those on which works fail again and again, and spares.

A drain empties a node without haste; a quarantine closes one to new work and leaves what runs; spares are
nodes kept back until one of their kind is lost, and then go into service for it. All of it follows from
events, so it is journalled, replayed and simulated like everything else. Nothing here takes a lease away:
works are asked to go, and their devices come back on proof.
"""

from __future__ import annotations

from groundplane.control.context import Context
from groundplane.control.events import HealthSet, NodeDrainRequested
from groundplane.control.recovery import Recovery
from groundplane.control.state import Closed, Node, NodeFailure, Timer, Work

MAX_FAILURES_KEPT = 64
"""Failures that are remembered of one node, the newest."""


class Health:
    """Decides about nodes that are to be emptied, distrusted or kept back."""

    def __init__(self, context: Context, recovery: Recovery) -> None:
        self._context = context
        self._recovery = recovery
        self._num_spares: dict[str, int] = {}
        for node in context.state.nodes.values():
            if node.closed_for == "spare":
                self._count_spare(node, 1)

    # Rules -----------------------------------------------------------------------------------------------

    def set_rules(self, event: HealthSet) -> None:
        """Other rules from now on; nodes in quarantine stay there, spares become more or fewer."""
        state = self._context.state
        state.health = event
        for kind in dict.fromkeys(node.device_kind for node in state.nodes.values()):
            nodes = [node for node in state.nodes.values() if node.device_kind == kind]
            for node in reversed(nodes):
                if self._spares_wanted(kind) > 0:
                    self._make_spare(node)
                elif self._spares_wanted(kind) < 0 and node.closed_for == "spare":
                    self._open(node)

    # Drains ----------------------------------------------------------------------------------------------

    def drain(self, event: NodeDrainRequested) -> None:
        """Closes a node and asks what is there to go; asked again, only the time that is left changes."""
        context = self._context
        node = context.state.nodes.get(event.node_id)
        if node is None:
            context.ignore("drain of a node that is not there")
            return
        if not node.is_cordoned or not node.is_draining:
            context.ledger.settle_node(node, context.now_ns)
            node.is_cordoned = node.is_draining = True
            context.node_changed(node)
            context.queue.capacity_changed()
            self._recovery.leave_node(node, at_once=event.wait_ns == 0)
            self._replace_with_spare(node, "")
        if event.wait_ns >= 0:
            at_ns = context.now_ns + event.wait_ns
            context.set_timer(drain_timer(node), Timer(at_ns, "node_drain", node.node_id))

    def drain_over(self, node_id: str) -> None:
        """The time for going by themselves is over."""
        self._recovery.leave_node(self._context.state.nodes[node_id], at_once=True)

    def drain_ended(self, node: Node) -> None:
        """An operator opens the node again: who has not gone yet may stay."""
        self._context.drop_timer(drain_timer(node))
        if node.is_draining:
            node.is_draining = False
            self._recovery.may_stay(node)

    # Quarantine ------------------------------------------------------------------------------------------

    def work_failed(self, work: Work, node_id: str) -> None:
        """A work ended by a failure of its own, and on this node, if it is known: else on its only one."""
        places = dict.fromkeys(rank.node_id for rank in work.placement)
        if not node_id and len(places) == 1:
            node_id = work.placement[0].node_id
        rules, node = self._context.state.health, self._context.state.nodes.get(node_id)
        if rules is None or rules.max_failures == 0 or node is None or node_id not in places:
            return
        now_ns = self._context.now_ns
        node.failures.append(NodeFailure(now_ns, work.owner_id))
        node.failures = [
            failure
            for failure in node.failures[-MAX_FAILURES_KEPT:]
            if failure.at_ns > now_ns - rules.window_ns
        ]
        num_owners = len({failure.owner_id for failure in node.failures})
        if len(node.failures) >= rules.max_failures and num_owners >= rules.min_owners:
            window_s = rules.window_ns // 10**9
            self._quarantine(
                node, f"{len(node.failures)} failures of {num_owners} jobs and services within {window_s} s"
            )

    def work_slowed(self, work: Work, node_id: str, detail: str) -> None:
        """A node slows its gang down: it is closed, and the gang leaves it at its next checkpoint."""
        rules, node = self._context.state.health, self._context.state.nodes.get(node_id)
        on_it = any(rank.node_id == node_id for rank in work.placement)
        if rules is None or not rules.replaces_stragglers or node is None or not on_it:
            self._context.ignore("straggler that no rule replaces")
        elif self._quarantine(node, f"slowed {work.work_id} down" + (f": {detail}" if detail else "")):
            self._recovery.leave(work, f"node {node_id} is slow", rules.straggler_wait_ns)

    def quarantine_over(self, node_id: str) -> None:
        """The time in quarantine is over."""
        node = self._context.state.nodes[node_id]
        if node.closed_for == "quarantine":
            self.open_node(node)

    def _quarantine(self, node: Node, note: str) -> bool:
        """Closes a distrusted node, unless too many of its kind are closed so already."""
        state, rules = self._context.state, self._context.state.health
        if rules is None or node.closed_for == "quarantine":
            return False
        of_kind = [each for each in state.nodes.values() if each.device_kind == node.device_kind]
        num_closed = sum(each.closed_for == "quarantine" for each in of_kind)
        most = max(1, len(of_kind) * rules.most_per_mille // 1000)
        if len(of_kind) < 2 or num_closed >= most:
            self._context.ignore("quarantine beyond what the rules allow")
            return False
        self._close(node, "quarantine", note)
        if rules.quarantine_ns:
            at_ns = self._context.now_ns + rules.quarantine_ns
            self._context.set_timer(quarantine_timer(node), Timer(at_ns, "node_quarantine", node.node_id))
        self._replace_with_spare(node, "")
        return True

    # Spares ----------------------------------------------------------------------------------------------

    def node_is_back(self, node: Node) -> None:
        """A node has joined, new or again, and is empty: it becomes a spare where one is wanted."""
        if self._spares_wanted(node.device_kind) > 0:
            self._make_spare(node)

    def node_lost(self, node: Node, owner_id: str) -> None:
        """A node was fenced. A spare takes its place, kept for the owner of what ran there, if any."""
        self._context.drop_timer(drain_timer(node))
        if not node.closed_for and not node.is_cordoned:
            self._replace_with_spare(node, owner_id)

    def open_node(self, node: Node) -> None:
        """Ends a quarantine; the node's failures are forgiven, and it becomes a spare where one is wanted."""
        self._context.drop_timer(quarantine_timer(node))
        node.failures = []
        self._open(node)
        if not node.holders():
            self.node_is_back(node)

    def _replace_with_spare(self, lost: Node, owner_id: str) -> None:
        spares = (
            node
            for node in self._context.state.nodes.values()
            if node.closed_for == "spare" and node.device_kind == lost.device_kind and node.state == "up"
        )
        spare = next(spares, None)
        if spare is None or spare.is_cordoned:
            return
        self._open(spare)
        if owner_id:
            self._close(spare, "kept", owner_id)
            self._context.state.kept.setdefault(owner_id, []).append(spare.node_id)

    def _spares_wanted(self, kind: str) -> int:
        """How many spares of a kind are missing; less than 0 for too many."""
        rules = self._context.state.health
        wanted = 0 if rules is None else sum(r.num_nodes for r in rules.spares if r.device_kind == kind)
        return wanted - self._num_spares.get(kind, 0)

    def _make_spare(self, node: Node) -> None:
        if node.is_open and not node.holders():
            self._close(node, "spare", "")

    def _count_spare(self, node: Node, sign: int) -> None:
        self._num_spares[node.device_kind] = self._num_spares.get(node.device_kind, 0) + sign

    def _close(self, node: Node, why: Closed, note: str) -> None:
        if node.closed_for == "spare":
            self._count_spare(node, -1)
        self._context.close_node(node, why, note)
        if why == "spare":
            self._count_spare(node, 1)

    def _open(self, node: Node) -> None:
        if node.closed_for == "spare":
            self._count_spare(node, -1)
        self._context.close_node(node, "", "")


def drain_timer(node: Node) -> str:
    """Id of the timer at which a drain no longer waits."""
    return f"{node.node_id}.node-drain"


def quarantine_timer(node: Node) -> str:
    """Id of the timer at which a quarantine is over."""
    return f"{node.node_id}.node-quarantine"
