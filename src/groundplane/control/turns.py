"""Whose turn it is: the waiting entries of all queues, one after the other, as shares and lines stand.

Within a queue the order is that of its entries; among queues that of `shares.py`, which changes with every
start. Made for one pass and thrown away.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from groundplane.control.events import Gang
from groundplane.control.queue import Entry, Line
from groundplane.control.shares import Key, Shares


class Turn(NamedTuple):
    """The next entry of one line."""

    entry: Entry
    gang: Gang
    leaf: str
    line: Line


class Turns:
    """Serves the lines of a queue.

    Args:
        lines: (queue, gang, line); none of them empty.
        ahead_of: only entries that are served before this one of that queue; all, if not given.
    """

    def __init__(
        self,
        shares: Shares,
        lines: Iterable[tuple[str, Gang, Line]],
        ahead_of: tuple[str, Entry] | None = None,
    ) -> None:
        self._shares = shares
        self._ahead_of = ahead_of
        self._heaps: dict[str, list[tuple[Entry, int, Gang, Line]]] = {}
        for number, (leaf, gang, line) in enumerate(lines):
            self._push(leaf, (line.first(), number, gang, line))
        self._last_number = 0
        self._keys: dict[str, Key] = {}
        self._num_changes = -1

    def next(self) -> Turn | None:
        """The entry whose turn it is; its line waits until `go_on` or is done."""
        if not self._heaps:
            return None
        leaf = next(iter(self._heaps)) if len(self._heaps) == 1 else self._first_leaf()
        heap = self._heaps[leaf]
        entry, self._last_number, gang, line = heapq.heappop(heap)
        if not heap:
            del self._heaps[leaf]
        return Turn(entry, gang, leaf, line)

    def go_on(self, turn: Turn, entry: Entry) -> None:
        """The line of the newest turn goes on with this entry."""
        self._push(turn.leaf, (entry, self._last_number, turn.gang, turn.line))

    def skip_queue(self, leaf: str) -> None:
        """Nothing more of this queue in this pass."""
        self._heaps.pop(leaf, None)

    def _first_leaf(self) -> str:
        """The queue that is served next; keys are made anew only after a start has changed what is held."""
        if self._num_changes != self._shares.num_changes:
            self._num_changes = self._shares.num_changes
            self._keys = {leaf: self._shares.key(leaf) for leaf in self._heaps}
        return min(self._heaps, key=self._keys.__getitem__)

    def _push(self, leaf: str, first: tuple[Entry, int, Gang, Line]) -> None:
        if self._ahead_of is None or is_ahead(leaf, first[0], *self._ahead_of):
            heapq.heappush(self._heaps.setdefault(leaf, []), first)


def is_ahead(leaf: str, entry: Entry, head_leaf: str, head: Entry) -> bool:
    """Whether an entry may delay the head: before it in its own queue, of higher priority in another."""
    return entry < head if leaf == head_leaf else entry.minus_priority < head.minus_priority
