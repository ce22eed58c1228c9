"""Topology domains of one device kind: which nodes are near each other, and how much is free in each domain.

A domain is a zone, a spine, a rack: whatever the nodes named when they joined, the widest first. The root
holds all nodes of the kind. Each domain counts its open nodes by their number of free devices, so that asking
how many ranks it could take costs the same at ten nodes and at ten thousand. Derived state.
"""

from __future__ import annotations


class Domain:
    """One domain. `mask` has a bit for each node in it; `counts[f]` open nodes have f free devices.

    `_slots` keeps the numbers of ranks that were asked for, by devices a rank; `move` keeps them true.
    """

    __slots__ = ("_slots", "children", "counts", "mask", "order", "parent")

    def __init__(self, parent: Domain | None, order: int) -> None:
        self.parent = parent
        self.order = order
        self.children: list[Domain] = []
        self.counts: list[int] = [0]
        self.mask = 0
        self._slots: dict[int, int] = {}

    def num_slots(self, devices_per_rank: int) -> int:
        """How many ranks its free devices would allow now, memory aside: an upper bound, cheap."""
        slots = self._slots.get(devices_per_rank)
        if slots is None:
            slots = 0
            for num_free in range(devices_per_rank, len(self.counts)):
                slots += self.counts[num_free] * (num_free // devices_per_rank)
            self._slots[devices_per_rank] = slots
        return slots

    def move(self, before: int, after: int) -> None:
        """A node has another number of free devices; -1 stands for closed."""
        if before >= 0:
            self.counts[before] -= 1
        if after >= 0:
            self.counts[after] += 1
        lost, gained = 0 if before < 0 else before, 0 if after < 0 else after
        for devices_per_rank in self._slots:
            self._slots[devices_per_rank] += gained // devices_per_rank - lost // devices_per_rank


class Domains:
    """The tree of domains of one kind. All paths are brought to the length of the first node's."""

    def __init__(self) -> None:
        self.root = Domain(None, 0)
        self._levels: list[list[Domain]] = []
        self._of_path: dict[tuple[str, ...], Domain] = {(): self.root}
        self._num_levels = -1

    def add(self, position: int, topology: tuple[str, ...], num_devices: int) -> Domain:
        """Takes a new node into the domains that it names; the answer is the narrowest of them."""
        if self._num_levels < 0:
            self._num_levels = len(topology)
            self._levels = [[] for _ in topology]
        path = (topology + ("",) * self._num_levels)[: self._num_levels]
        bit = 1 << position
        domain = self.root
        _widen(domain, bit, num_devices)
        for depth in range(1, self._num_levels + 1):
            found = self._of_path.get(path[:depth])
            if found is None:
                found = self._of_path[path[:depth]] = Domain(domain, len(self._levels[depth - 1]))
                domain.children.append(found)
                self._levels[depth - 1].append(found)
            domain = found
            _widen(domain, bit, num_devices)
        return domain

    def move(self, domain: Domain | None, before: int, after: int) -> None:
        """A node in `domain` has another number of free devices; -1 stands for closed."""
        while domain is not None:
            domain.move(before, after)
            domain = domain.parent

    def narrowest_first(self, devices_per_rank: int, num_ranks: int) -> list[Domain]:
        """Of each level the domain with room that is left fullest, narrow levels first; last the root."""
        found = []
        for level in reversed(self._levels):
            best: tuple[int, int] | None = None
            for domain in level:
                slots = domain.num_slots(devices_per_rank)
                if slots >= num_ranks and (best is None or slots < best[0]):
                    best = (slots, domain.order)
            if best is not None:
                found.append(level[best[1]])
        return [*found, self.root]


def _widen(domain: Domain, bit: int, num_devices: int) -> None:
    domain.mask |= bit
    domain.counts += [0] * (num_devices + 1 - len(domain.counts))
