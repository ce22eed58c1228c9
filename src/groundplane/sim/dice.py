"""Randomness of a rough world by what it is for, so that leaving one thing out leaves the rest as it was."""

from __future__ import annotations

import random
from collections.abc import Collection


class Dice:
    """The throws of one seed, and which of its faults happen.

    Args:
        seed: picks everything.
        kept: the only faults and plans that happen; all, if not given. What happens is in `items`, in order.
    """

    def __init__(self, seed: int, kept: Collection[str] | None = None) -> None:
        self.seed = seed
        self.items: dict[str, None] = {}
        self.num_faults = 0
        self._kept = None if kept is None else frozenset(kept)
        self._counts: dict[str, int] = {}

    def of(self, *purpose: object) -> random.Random:
        """A generator for one purpose, the same whenever it is asked for."""
        return random.Random(f"{self.seed}/{'/'.join(map(str, purpose))}")

    def next_of(self, *purpose: object) -> random.Random:
        """A generator for the next of many of one purpose."""
        return self.of(self.name_of_next(*purpose))

    def name_of_next(self, *purpose: object) -> str:
        """A name for the next of many of one purpose."""
        name = "/".join(map(str, purpose))
        self._counts[name] = self._counts.get(name, 0) + 1
        return f"{name}/{self._counts[name]}"

    def plans(self, item: str) -> bool:
        """Whether something that is planned shall be."""
        if self._kept is not None and item not in self._kept:
            return False
        self.items[item] = None
        return True

    def strikes(self, item: str) -> bool:
        """Whether a fault that is due shall happen; it is counted."""
        is_kept = self.plans(item)
        self.num_faults += is_kept
        return is_kept
