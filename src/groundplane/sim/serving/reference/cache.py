"""The key-value cache of one replica: blocks, prefix units with reference counts, lower tiers.

A prefix unit is one hash block: `unit_blocks` blocks under one chained hash. Units that none uses stay,
least recently used first to go, and can be taken back. Knows nothing of time or scheduling.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from groundplane.sim.serving.deployment import CacheSpec
from groundplane.spec.errors import InvariantError


class Cache:
    """Blocks are free, held privately by a sequence, or part of a unit; `free_blocks` counts the first."""

    def __init__(self, spec: CacheSpec, unit_blocks: int) -> None:
        self.num_blocks = spec.num_blocks
        self.block_tokens = spec.block_tokens
        self.unit_blocks = unit_blocks
        self.unit_tokens = unit_blocks * spec.block_tokens
        self.free_blocks = spec.num_blocks
        self.evicted_blocks = 0
        self.users: dict[int, int] = {}
        """Sequences that use a unit, by its hash."""
        self.idle: OrderedDict[int, None] = OrderedDict()
        """Units that none uses, least recently used first."""
        self.tiers = (OrderedDict[int, None](), OrderedDict[int, None]())
        self._tier_units = (spec.host_blocks // unit_blocks, spec.disk_blocks // unit_blocks)

    @property
    def used_blocks(self) -> int:
        """Blocks that sequences hold."""
        return self.num_blocks - self.free_blocks - self.idle_blocks

    @property
    def idle_blocks(self) -> int:
        """Blocks of units that none uses."""
        return len(self.idle) * self.unit_blocks

    @property
    def available_blocks(self) -> int:
        """Blocks to be had, if need be by eviction."""
        return self.free_blocks + self.idle_blocks

    def blocks(self, tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-tokens // self.block_tokens)

    def hits(self, hashes: Sequence[int], limit: int) -> int:
        """Units at the beginning of `hashes`, at most `limit`, that are here."""
        found = 0
        while found < limit and hashes[found] in self.users:
            found += 1
        return found

    def tier_hits(self, hashes: Sequence[int], begin: int, limit: int) -> tuple[int, int]:
        """Units from `begin` on that a lower tier holds: those in host memory, and those on disk."""
        host = disk = 0
        for name in hashes[begin:limit]:
            if name in self.tiers[0]:
                host += 1
            elif name in self.tiers[1]:
                disk += 1
            else:
                break
        return host, disk

    def idle_among(self, hashes: Sequence[int], count: int) -> int:
        """How many of the first `count` units none uses now."""
        return sum(name in self.idle for name in hashes[:count])

    def use(self, name: int) -> None:
        """One more sequence uses a unit that is here."""
        self.idle.pop(name, None)
        self.users[name] += 1

    def allocate(self, count: int) -> int:
        """Takes blocks from the free ones, after evicting what must go; returns the units evicted."""
        evicted = 0
        while self.free_blocks < count:
            if not self.idle:
                raise InvariantError("blocks were allocated that are not to be had")
            name, _ = self.idle.popitem(last=False)
            del self.users[name]
            self.free_blocks += self.unit_blocks
            evicted += 1
            self._demote(name, 0)
        self.evicted_blocks += evicted * self.unit_blocks
        self.free_blocks -= count
        return evicted

    def enter(self, name: int) -> None:
        """A sequence's private blocks become a unit it uses; if the unit is here already, they are freed."""
        if name in self.users:
            self.use(name)
            self.free_blocks += self.unit_blocks
        else:
            self.users[name] = 1

    def leave_tiers(self, name: int) -> None:
        """A unit is about to be loaded from a lower tier."""
        for tier in self.tiers:
            tier.pop(name, None)

    def leave(self, hashes: Sequence[int], count: int, private_blocks: int) -> None:
        """A sequence gives back its first `count` units, the last first, and its private blocks."""
        for place in range(count - 1, -1, -1):
            name = hashes[place]
            self.users[name] -= 1
            if self.users[name] == 0:
                self.idle[name] = None
        self.free_blocks += private_blocks

    def _demote(self, name: int, level: int) -> None:
        """Puts an evicted unit into a tier; what that pushes out goes one further down."""
        if level == len(self.tiers):
            return
        if self._tier_units[level] == 0:
            self._demote(name, level + 1)
            return
        tier = self.tiers[level]
        tier.pop(name, None)
        if len(tier) == self._tier_units[level]:
            oldest, _ = tier.popitem(last=False)
            self._demote(oldest, level + 1)
        tier[name] = None
