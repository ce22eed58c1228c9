"""Which nodes are set aside for when: maintenance windows and reservations. Derived from `state.windows`.

Nodes of a window are in no ordinary pool from the moment that it is known until it is over. Before it begins
they take what is predicted to end in time, after that, if the window is a reservation, works of its queue. So
each window has a pool of its own. Decides nothing.
"""

from __future__ import annotations

from groundplane.control.placement import Pools
from groundplane.control.sharing import PartPlacer, Sharing
from groundplane.control.state import CoreState, Node, Window


class Calendar:
    """Windows by node, and their pools."""

    def __init__(self, state: CoreState, sharing: Sharing) -> None:
        self._state = state
        self._sharing = sharing
        self._of_node: dict[str, str] = {}
        self.pools: dict[str, Pools] = {}
        self.refill()

    def __bool__(self) -> bool:
        return bool(self._of_node)

    def refill(self) -> None:
        """The windows are others than before; nodes have to be told to every pool again."""
        self._of_node.clear()
        self.pools = {window_id: self._pools_of(window_id) for window_id in self._state.windows}
        for window_id, window in self._state.windows.items():
            self._of_node |= dict.fromkeys(window.node_ids, window_id)
        for node in self._state.nodes.values():  # in the order of joining, also after a restart
            self.node_changed(node)

    def _pools_of(self, window_id: str) -> Pools:
        def is_elsewhere(node: Node) -> bool:
            return self._of_node.get(node.node_id) != window_id

        return Pools(parts=PartPlacer(self._sharing, is_elsewhere))

    def node_changed(self, node: Node) -> None:
        """The node is new or changed."""
        window_id = self._of_node.get(node.node_id)
        if window_id is not None:
            self.pools[window_id].update(node)

    def window_of(self, node_id: str) -> Window | None:
        """The window that the node is set aside for."""
        window_id = self._of_node.get(node_id)
        return None if window_id is None else self._state.windows[window_id]

    def is_set_aside(self, node: Node) -> bool:
        """Whether the node is in a window."""
        return node.node_id in self._of_node

    def opens_ns(self, node: Node) -> int:
        """When the node takes any work again: 0 for one that does already."""
        window = self.window_of(node.node_id)
        return 0 if window is None else window.end_ns
