"""Nodes: joining, silence, cordon, fencing. Only fencing takes leases away, since only it is proof."""

from __future__ import annotations

from groundplane.control.context import Context
from groundplane.control.devices import overlaps
from groundplane.control.events import KindDescribed, NodeFenced, NodeJoined
from groundplane.control.health import Health
from groundplane.control.lifecycle.node import NODE
from groundplane.control.state import Node, Work


class Nodes:
    """Decides about nodes; called by the core for each event that concerns one."""

    def __init__(self, context: Context, health: Health) -> None:
        self._context = context
        self._health = health

    def kind_described(self, event: KindDescribed) -> None:
        """What devices of a kind are. A description that parts which are held contradict is ignored."""
        state = self._context.state
        nodes = [node for node in state.nodes.values() if node.device_kind == event.device_kind]
        if state.kinds.get(event.device_kind) == event or any(
            overlaps(each.parts.values(), event) for node in nodes for each in node.shared
        ):
            self._context.ignore("description of a kind that changes nothing or contradicts what is held")
            return
        for node in nodes:
            self._context.ledger.settle_node(node, self._context.now_ns)
        state.kinds[event.device_kind] = event
        for node in nodes:
            self._context.node_changed(node)
        self._context.queue.capacity_changed()

    def joined(self, event: NodeJoined) -> list[Work]:
        """A node offers its devices; the answer is the works that its new life proves to be gone from it."""
        state = self._context.state
        node = state.nodes.get(event.node_id)
        if node is None:
            self._add(event)
            self._health.node_is_back(self._context.state.nodes[event.node_id])
            return []
        offer = (node.device_kind, node.num_devices, node.memory_bytes)
        if offer != (event.device_kind, event.num_devices, event.memory_bytes):
            self._context.ignore("node came again with another offer")
            return []
        if event.boot <= node.boot:
            self._context.ignore("old news of a node")
            return []
        lost = [] if node.state == "fenced" else self._fence(node)
        self._change(node, "joined")
        node.boot = event.boot
        self._health.node_is_back(node)
        return lost

    def silent(self, node_id: str) -> None:
        """Nothing is heard of the node: it takes no new work, and keeps what it has."""
        self._take(node_id, "silent")

    def back(self, node_id: str) -> None:
        """The node is heard again."""
        self._take(node_id, "back")

    def fenced(self, event: NodeFenced) -> list[Work]:
        """The node can run nothing any more; the answer is the works that had a part on it."""
        node = self._context.state.nodes.get(event.node_id)
        if node is None or event.boot != node.boot or not NODE.allows(node.state, "fenced"):
            self._context.ignore("old news of a node")
            return []
        return self._fence(node)

    def cordon(self, node_id: str, is_cordoned: bool) -> None:
        """An operator closes or opens the node for placement; opening ends a drain and a quarantine too."""
        node = self._context.state.nodes.get(node_id)
        is_quarantined = node is not None and node.closed_for == "quarantine"
        if node is None or (node.is_cordoned == is_cordoned and (is_cordoned or not is_quarantined)):
            self._context.ignore("cordon that changes nothing")
            return
        if not is_cordoned:
            self._health.drain_ended(node)
            if is_quarantined:
                self._health.open_node(node)
        self._context.ledger.settle_node(node, self._context.now_ns)
        node.is_cordoned = is_cordoned
        self._changed(node)

    def _add(self, event: NodeJoined) -> None:
        context = self._context
        node = Node(
            node_id=event.node_id,
            index=len(context.state.nodes),
            device_kind=event.device_kind,
            num_devices=event.num_devices,
            memory_bytes=event.memory_bytes,
            free_memory_bytes=event.memory_bytes,
            joined_ns=context.now_ns,
            boot=event.boot,
            since_ns=context.now_ns,
            since_fragmented_ns=context.ledger.fragmented_ns(event.device_kind, context.now_ns),
            free=tuple(range(event.num_devices)),
            topology=event.topology,
        )
        context.state.nodes[node.node_id] = node
        context.shares.node_joined(node.device_kind, node.num_devices, node.memory_bytes)
        self._changed(node)

    def _fence(self, node: Node) -> list[Work]:
        """Closes the node, then takes back every lease on it."""
        works = self._context.state.works
        self._change(node, "fenced")
        lost = [works[holder] for holder in sorted(node.holders(), key=lambda holder: works[holder].fence)]
        for work in lost:
            self._context.ledger.release_node(work, node.node_id, self._context.now_ns)
        self._health.node_lost(node, lost[0].owner_id if lost else "")
        return lost

    def _take(self, node_id: str, trigger: str) -> None:
        node = self._context.state.nodes.get(node_id)
        if node is None or not NODE.allows(node.state, trigger):
            self._context.ignore("old news of a node")
        else:
            self._change(node, trigger)

    def _change(self, node: Node, trigger: str) -> None:
        self._context.ledger.settle_node(node, self._context.now_ns)
        node.state = NODE.after(node.state, trigger)
        self._changed(node)

    def _changed(self, node: Node) -> None:
        self._context.node_changed(node)
        self._context.queue.capacity_changed()
