"""Whose turn it is: the waiting entries of all queues, one after the other, as shares and lines stand.

Within a queue the order is that of its entries; among queues that of `shares.py`, which changes with every
start. Made for one pass and thrown away.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import NamedTuple

from groundplane.control.events import Gang
from groundplane.control.queue import Entry, Line
from groundplane.control.shares import ROOT, Shares


class Turn(NamedTuple):
    """The next entry of one line."""

    entry: Entry
    gang: Gang
    leaf: str
    line: Line


class Turns:
    """Serves the lines of all queues.

    Args:
        lines: what waits in each queue, by gang; no line is empty.
        is_wanted: leaves out the rest of a queue whose next entry is not; all are, if not given.
    """

    def __init__(
        self,
        shares: Shares,
        lines: Mapping[str, Mapping[Gang, Line]],
        is_wanted: Callable[[str, Entry], bool] | None = None,
    ) -> None:
        self._shares = shares
        self._lines = lines
        self._is_wanted = is_wanted
        self._heaps: dict[str, list[tuple[Entry, Gang, Line]]] = {}  # made when a queue is first served
        self._below: dict[str, dict[str, None]] = {}  # queues with a turn, by parent
        self._leaves: dict[str, None] = {}
        for leaf in lines:
            self._open(leaf)

    def next(self) -> Turn | None:
        """The entry whose turn it is; its line waits until `go_on` or is done."""
        while self._leaves:
            leaf = ROOT
            while leaf not in self._leaves:
                below = self._below[leaf]
                leaf = next(iter(below)) if len(below) == 1 else min(below, key=self._shares.level_key)
            heap = self._heaps.get(leaf)
            if heap is None:
                heap = self._heaps[leaf] = self._heap_of(leaf)
            if heap:
                entry, gang, line = heapq.heappop(heap)
                if self._is_wanted is None or self._is_wanted(leaf, entry):
                    return Turn(entry, gang, leaf, line)
            self._close(leaf)
        return None

    def go_on(self, turn: Turn, entry: Entry) -> None:
        """The line of the newest turn goes on with this entry."""
        heapq.heappush(self._heaps[turn.leaf], (entry, turn.gang, turn.line))

    def skip_queue(self, leaf: str) -> None:
        """Nothing more of this queue in this pass."""
        self._heaps[leaf].clear()

    def _heap_of(self, leaf: str) -> list[tuple[Entry, Gang, Line]]:
        lines = self._lines[leaf]
        if self._is_wanted is not None:
            firsts = [line.first for line in lines.values() if line.first is not None]
            if not firsts or not self._is_wanted(leaf, min(firsts)):
                return []
        heap = [(line.first, gang, line) for gang, line in lines.items() if line.first is not None]
        heapq.heapify(heap)
        return heap

    def _open(self, leaf: str) -> None:
        self._leaves[leaf] = None
        for name in self._shares.path(leaf):
            below = self._below.setdefault(self._shares.parent_of(name), {})
            if name in below:
                return
            below[name] = None

    def _close(self, leaf: str) -> None:
        """The queue has no turn any more, and neither have those above it that had none but through it."""
        del self._leaves[leaf]
        for name in self._shares.path(leaf):
            if name in self._leaves or self._below.get(name):
                return
            del self._below[self._shares.parent_of(name)][name]
