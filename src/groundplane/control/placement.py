"""Which nodes a gang gets: an index of open nodes by their number of free devices, and the search over it.

Placement is all or nothing, on devices of one kind, each rank on one node. A gang that fits one node takes
the one that it leaves fullest (best fit); a larger one takes as few nodes as it can, emptiest first, and
best fit for its rest. Ties go to the node that joined first. Derived from `CoreState.nodes`; knows nothing
of queues.

Nodes of one kind with the same number of free devices are one bit mask, a bit a node, so that finding and
moving one costs the same at ten nodes and at ten thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from groundplane.control.actions import RankPlacement
from groundplane.control.events import Gang
from groundplane.control.state import Hold, Node

Holds = Mapping[str, Hold]
NO_HOLDS: Holds = {}


class Pools:
    """One `Pool` a device kind, tried in the order of their names.

    Args:
        count: how many devices of an open node count; those that nobody holds, if not given.
    """

    def __init__(self, count: Callable[[Node], int] | None = None) -> None:
        self._count = count or num_free_on
        self._pools: dict[str, Pool] = {}

    def __iter__(self) -> Iterator[Pool]:
        return (self._pools[kind] for kind in sorted(self._pools))

    def update(self, node: Node) -> None:
        """Takes note of a node that is new or changed."""
        if node.device_kind not in self._pools:
            self._pools[node.device_kind] = Pool(node.device_kind, self._count)
        self._pools[node.device_kind].update(node)

    def place(self, gang: Gang, holds: Holds = NO_HOLDS) -> tuple[RankPlacement, ...] | None:
        """Devices for every rank of `gang`, or None. What `holds` keeps on a node stays free."""
        for pool in self:
            placement = pool.place(gang, holds)
            if placement is not None:
                return placement
        return None

    def have_slots(self, gang: Gang) -> bool:
        """Whether the devices of any kind would allow all ranks of `gang`, memory aside."""
        return any(pool.num_slots(gang) >= gang.num_ranks for pool in self)


class Pool:
    """The open nodes of one device kind."""

    def __init__(self, device_kind: str, count: Callable[[Node], int]) -> None:
        self._count = count
        self.device_kind = device_kind
        self.num_free = 0
        self._nodes: list[Node] = []
        self._position: dict[str, int] = {}
        self._num_free_of: list[int] = []
        self._masks: list[int] = [0]

    def update(self, node: Node) -> None:
        """Puts the node where its free devices say; a closed node is nowhere."""
        position = self._position.get(node.node_id)
        if position is None:
            position = self._position[node.node_id] = len(self._nodes)
            self._nodes.append(node)
            self._num_free_of.append(-1)
            self._masks += [0] * (len(node.devices) + 1 - len(self._masks))
        before = self._num_free_of[position]
        after = self._count(node) if node.is_open else -1
        if before == after:
            return
        self.num_free += max(after, 0) - max(before, 0)
        bit = 1 << position
        if before >= 0:
            self._masks[before] ^= bit
        if after >= 0:
            self._masks[after] |= bit
        self._num_free_of[position] = after

    def open_nodes(self) -> Iterator[Node]:
        """Every open node, in the order of joining."""
        return (node for node, num in zip(self._nodes, self._num_free_of, strict=True) if num >= 0)

    def emptiest_first(self) -> Iterator[Node]:
        """Open nodes with free devices, most first, then in the order of joining."""
        for num_free in range(len(self._masks) - 1, 0, -1):
            yield from self._nodes_with(num_free)

    def num_slots(self, gang: Gang) -> int:
        """How many ranks of `gang` its devices would allow now, memory aside: an upper bound, cheap."""
        per_rank = gang.devices_per_rank
        return sum(
            mask.bit_count() * (num // per_rank) for num, mask in enumerate(self._masks) if num >= per_rank
        )

    def place(self, gang: Gang, holds: Holds) -> tuple[RankPlacement, ...] | None:
        """As `Pools.place`, on this kind only."""
        if self.num_slots(gang) < gang.num_ranks:
            return None
        single = self._best_fit(gang, gang.num_ranks, holds, {})
        if single is not None:
            return _ranks(gang, {single.node_id: (single, gang.num_ranks)})
        chosen: dict[str, tuple[Node, int]] = {}
        left = gang.num_ranks
        for num_free in range(len(self._masks) - 1, gang.devices_per_rank - 1, -1):
            for node in self._nodes_with(num_free):
                slots = slots_on(node, num_free, gang, holds.get(node.node_id))
                if slots == 0:
                    continue
                if slots >= left:
                    rest = self._best_fit(gang, left, holds, chosen) or node
                    chosen[rest.node_id] = (rest, left)
                    return _ranks(gang, chosen)
                chosen[node.node_id] = (node, slots)
                left -= slots
        return None

    def _best_fit(
        self, gang: Gang, num_ranks: int, holds: Holds, taken: Mapping[str, tuple[Node, int]]
    ) -> Node | None:
        for num_free in range(num_ranks * gang.devices_per_rank, len(self._masks)):
            for node in self._nodes_with(num_free):
                if (
                    node.node_id not in taken
                    and slots_on(node, num_free, gang, holds.get(node.node_id)) >= num_ranks
                ):
                    return node
        return None

    def _nodes_with(self, num_free: int) -> Iterator[Node]:
        mask = self._masks[num_free]
        while mask:
            lowest = mask & -mask
            yield self._nodes[lowest.bit_length() - 1]
            mask ^= lowest


def num_free_on(node: Node) -> int:
    """Devices of a node that nobody holds."""
    return sum(not device.holder for device in node.devices)


def slots_on(node: Node, num_free: int, gang: Gang, hold: Hold | None) -> int:
    """How many ranks of `gang` fit on a node with `num_free` free devices beside what `hold` keeps."""
    memory_bytes = node.free_memory_bytes
    if hold is not None:
        num_free -= hold.num_devices
        memory_bytes -= hold.memory_bytes
    return num_slots(num_free, memory_bytes, gang)


def num_slots(num_devices: int, memory_bytes: int, gang: Gang) -> int:
    """How many ranks of `gang` fit in so many devices and so much memory."""
    slots = num_devices // gang.devices_per_rank
    if gang.memory_bytes_per_rank:
        slots = min(slots, memory_bytes // gang.memory_bytes_per_rank)
    return max(slots, 0)


def _ranks(gang: Gang, chosen: Mapping[str, tuple[Node, int]]) -> tuple[RankPlacement, ...]:
    ranks = []
    for node, num_ranks in chosen.values():
        free = [index for index, device in enumerate(node.devices) if not device.holder]
        for first in range(0, num_ranks * gang.devices_per_rank, gang.devices_per_rank):
            ranks.append(RankPlacement(node.node_id, tuple(free[first : first + gang.devices_per_rank])))
    return tuple(ranks)
