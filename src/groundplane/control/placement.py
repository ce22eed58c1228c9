"""Which nodes a gang gets: an index of open nodes by their number of free devices, and the search over it.

Placement is all or nothing, on devices of one kind, each rank on one node. A gang that fits one node takes
the one that it leaves fullest (best fit). A larger one is kept in the narrowest topology domain with room for
all of it, of several the one that it leaves fullest; within a domain it takes as few narrower domains and as
few nodes as it can, emptiest first, and best fit for its rest. Topology is a preference: what fits nowhere
near fits anywhere. Ties go to the node that joined first. Derived from `CoreState.nodes`; knows nothing of
queues.

Nodes of one kind with the same number of free devices are one bit mask, a bit a node, so that finding and
moving one costs the same at ten nodes and at ten thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from groundplane.control.actions import RankPlacement
from groundplane.control.domains import Domain, Domains
from groundplane.control.events import Gang
from groundplane.control.state import Node

PACKING_CANDIDATES = 32
"""How many nodes are compared where a gang is placed by its end."""


class Parts(Protocol):
    """Who knows where parts of devices go (`sharing.py`)."""

    def place(self, gang: Gang, pools: Pools) -> tuple[RankPlacement, ...] | None:
        """A part for the gang's one rank, or None; `pools` says which fresh devices may be opened."""


class Pools:
    """One `Pool` a device kind, tried in the order of the gang's `kinds`, else of their names.

    Args:
        count: how many devices of an open node count; those that nobody holds, if not given.
        kept_bytes: how much of a node's free memory does not count; none, if not given.
        parts: places gangs that want a part of a device; they find none, if not given.
        empty_ns: when an open node is expected to be empty; needed to place by ends.
    """

    def __init__(
        self,
        count: Callable[[Node], int] | None = None,
        kept_bytes: Callable[[Node], int] | None = None,
        parts: Parts | None = None,
        empty_ns: Callable[[Node], int] | None = None,
    ) -> None:
        self._parts = parts
        self._empty_ns = empty_ns
        self._count = count or num_free_on
        self._kept_bytes = kept_bytes
        self._pools: dict[str, Pool] = {}

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def update(self, node: Node) -> None:
        """Takes note of a node that is new or changed."""
        if node.device_kind not in self._pools:
            self._pools[node.device_kind] = Pool(
                node.device_kind, self._count, self._kept_bytes, self._empty_ns
            )
            self._pools = dict(sorted(self._pools.items()))
        self._pools[node.device_kind].update(node)

    def place(self, gang: Gang, end_ns: int = -1) -> tuple[RankPlacement, ...] | None:
        """Devices for every rank of `gang`, or None.

        Args:
            end_ns: when the gang is expected to end, to be placed by that; -1 to be placed by fullness alone.
        """
        if gang.part is not None:
            return None if self._parts is None else self._parts.place(gang, self)
        for pool in self.pools_for(gang):
            placement = pool.place(gang, end_ns)
            if placement is not None:
                return placement
        return None

    def have_room(self, gang: Gang) -> bool:
        """Whether `place` would find devices; cheaper where memory does not count."""
        if gang.part is not None:
            return self.place(gang) is not None
        return self.have_slots(gang) and (gang.memory_bytes_per_rank == 0 or self.place(gang) is not None)

    def have_slots(self, gang: Gang) -> bool:
        """Whether the devices of any kind would allow all ranks of `gang`, memory aside."""
        if gang.part is not None:
            return self.place(gang) is not None
        for pool in self.pools_for(gang) if gang.kinds else self._pools.values():
            if pool.num_slots(gang) >= gang.num_ranks:
                return True
        return False

    def pools_for(self, gang: Gang) -> Iterable[Pool]:
        """The pools whose devices will do for the gang, the best first."""
        if not gang.kinds:
            return self._pools.values()
        return [self._pools[kind] for kind in gang.kinds if kind in self._pools]

    def rooms(self, kind: str, gang: Gang) -> Iterator[tuple[int, Node]]:
        """Of each number of free devices the first node of a kind with room for one rank of `gang`."""
        pool = self._pools.get(kind)
        return iter(()) if pool is None else pool.rooms(gang)

    def num_free(self) -> int:
        """Free devices of all kinds."""
        return sum(pool.num_free for pool in self._pools.values())


class Pool:
    """The open nodes of one device kind."""

    def __init__(
        self,
        device_kind: str,
        count: Callable[[Node], int],
        kept_bytes: Callable[[Node], int] | None = None,
        empty_ns: Callable[[Node], int] | None = None,
    ) -> None:
        self._empty_ns = empty_ns
        self._count = count
        self._kept_bytes = kept_bytes
        self.device_kind = device_kind
        self.num_free = 0
        self.nodes: list[Node] = []
        self._domains = Domains()
        self._domain_of: list[Domain] = []
        self._position: dict[str, int] = {}
        self._num_free_of: list[int] = []
        self._masks: list[int] = [0]

    def update(self, node: Node) -> None:
        """Puts the node where its free devices say; a closed node is nowhere."""
        position = self._position.get(node.node_id)
        if position is None:
            position = self._add(node)
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
        self._domains.move(self._domain_of[position], before, after)
        self._num_free_of[position] = after

    def position_of(self, node_id: str) -> int:
        """The place of a node in `nodes`."""
        return self._position[node_id]

    def open_nodes(self) -> Iterator[Node]:
        """Every open node, in the order of joining."""
        return (node for node, num in zip(self.nodes, self._num_free_of, strict=True) if num >= 0)

    def rooms(self, gang: Gang) -> Iterator[tuple[int, Node]]:
        """Of each number of free devices the first node with room for one rank of `gang`, fullest first."""
        for num_free in range(gang.devices_per_rank, len(self._masks)):
            for node in self._nodes_with(num_free, self._domains.root.mask):
                if self._slots(node, num_free, gang):
                    yield num_free, node
                    break

    def num_slots(self, gang: Gang) -> int:
        """How many ranks of `gang` its devices would allow now, memory aside: an upper bound, cheap."""
        return self._domains.root.num_slots(gang.devices_per_rank)

    def place(self, gang: Gang, end_ns: int = -1) -> tuple[RankPlacement, ...] | None:
        """As `Pools.place`, on this kind only."""
        if self.num_slots(gang) < gang.num_ranks:
            return None
        if end_ns >= 0 and self._empty_ns is not None:
            single = self._by_end(gang, end_ns, self._empty_ns)
        else:
            single = self._best_fit(gang, gang.num_ranks, {}, self._domains.root.mask)
        if single is not None:
            return _ranks(gang, {single.node_id: (single, gang.num_ranks)})
        if gang.num_ranks == 1:
            return None
        for domain in self._domains.narrowest_first(gang.devices_per_rank, gang.num_ranks):
            chosen: dict[str, tuple[Node, int]] = {}
            if self._fill(domain, gang, gang.num_ranks, chosen) == 0:
                return _ranks(gang, chosen)
        return None

    def _fill(self, domain: Domain, gang: Gang, left: int, chosen: dict[str, tuple[Node, int]]) -> int:
        """Takes room in a domain until `left` ranks have some; the answer is how many are left over."""
        if not domain.children:
            return self._fill_nodes(domain, gang, left, chosen)
        rest = [(-child.num_slots(gang.devices_per_rank), child.order, child) for child in domain.children]
        rest.sort(key=lambda each: each[:2])
        while left and rest:
            enough = [index for index, (minus_slots, _, _) in enumerate(rest) if -minus_slots >= left]
            _, _, child = rest.pop(enough[-1] if enough else 0)
            left = self._fill(child, gang, left, chosen)
        return left

    def _fill_nodes(self, domain: Domain, gang: Gang, left: int, chosen: dict[str, tuple[Node, int]]) -> int:
        for num_free in range(len(self._masks) - 1, gang.devices_per_rank - 1, -1):
            for node in self._nodes_with(num_free, domain.mask):
                slots = self._slots(node, num_free, gang)
                if slots == 0:
                    continue
                if slots >= left:
                    best = self._best_fit(gang, left, chosen, domain.mask) or node
                    chosen[best.node_id] = (best, left)
                    return 0
                chosen[node.node_id] = (node, slots)
                left -= slots
        return left

    def _best_fit(
        self,
        gang: Gang,
        num_ranks: int,
        taken: Mapping[str, tuple[Node, int]],
        within: int,
    ) -> Node | None:
        for num_free in range(num_ranks * gang.devices_per_rank, len(self._masks)):
            for node in self._nodes_with(num_free, within):
                if node.node_id not in taken and self._slots(node, num_free, gang) >= num_ranks:
                    return node
        return None

    def _by_end(self, gang: Gang, end_ns: int, empty_ns: Callable[[Node], int]) -> Node | None:
        """Of the fullest nodes with room for all of `gang` the one that it keeps from being empty least."""
        best: tuple[int, Node] | None = None
        num_seen = 0
        for num_free in range(gang.num_ranks * gang.devices_per_rank, len(self._masks)):
            for node in self._nodes_with(num_free, self._domains.root.mask):
                if self._slots(node, num_free, gang) < gang.num_ranks:
                    continue
                later_ns = max(0, end_ns - empty_ns(node))
                if best is None or later_ns < best[0]:
                    best = (later_ns, node)
                num_seen += 1
                if later_ns == 0 or num_seen >= PACKING_CANDIDATES:
                    return best[1]
        return None if best is None else best[1]

    def _slots(self, node: Node, num_free: int, gang: Gang) -> int:
        memory_bytes = node.free_memory_bytes
        if self._kept_bytes is not None and gang.memory_bytes_per_rank:
            memory_bytes -= self._kept_bytes(node)
        return num_slots(num_free, memory_bytes, gang)

    def _nodes_with(self, num_free: int, within: int) -> Iterator[Node]:
        mask = self._masks[num_free] & within
        while mask:
            lowest = mask & -mask
            yield self.nodes[lowest.bit_length() - 1]
            mask ^= lowest

    def _add(self, node: Node) -> int:
        position = self._position[node.node_id] = len(self.nodes)
        self.nodes.append(node)
        self._num_free_of.append(-1)
        self._masks += [0] * (node.num_devices + 1 - len(self._masks))
        self._domain_of.append(self._domains.add(position, node.topology, node.num_devices))
        return position


def num_free_on(node: Node) -> int:
    """Devices of a node that nobody holds."""
    return len(node.free)


def num_slots(num_devices: int, memory_bytes: int, gang: Gang) -> int:
    """How many ranks of `gang` fit in so many devices and so much memory."""
    slots = num_devices // gang.devices_per_rank
    if gang.memory_bytes_per_rank:
        return max(0, min(slots, memory_bytes // gang.memory_bytes_per_rank))
    return slots


def _ranks(gang: Gang, chosen: Mapping[str, tuple[Node, int]]) -> tuple[RankPlacement, ...]:
    ranks = []
    for node, num_ranks in chosen.values():
        free = node.free
        for first in range(0, num_ranks * gang.devices_per_rank, gang.devices_per_rank):
            ranks.append(RankPlacement(node.node_id, free[first : first + gang.devices_per_rank]))
    return tuple(ranks)
