"""What happens when on simulated time: a queue with a total order, (time, priority, sequence).

At one time the lower priority number goes first, and among equals what was added first. So a run is the same
on every machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from groundplane.spec.errors import InvariantError

Deed = Callable[[], None]

FIRST = 0
"""Priority of what the world does by itself (ends, faults)."""
NORMAL = 1
"""Priority of messages between engine and driver."""
LAST = 2
"""Priority of timers and sweeps: they see all else of their moment."""


class Agenda:
    """Deeds to be done, and the time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.num_done = 0
        self._sequence = 0
        self._heap: list[tuple[int, int, int, Deed]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time_ns: int, deed: Deed, priority: int = NORMAL) -> None:
        """Plans a deed.

        Raises:
            InvariantError: the time is past.
        """
        if time_ns < self.now_ns:
            raise InvariantError(f"a deed for {time_ns} ns, but it is {self.now_ns} ns already")
        heapq.heappush(self._heap, (time_ns, priority, self._sequence, deed))
        self._sequence += 1

    def after(self, delay_ns: int, deed: Deed, priority: int = NORMAL) -> None:
        """Plans a deed relative to now."""
        self.at(self.now_ns + delay_ns, deed, priority)

    def step(self) -> bool:
        """Does the next deed; False when there is none."""
        if not self._heap:
            return False
        self.now_ns, _, _, deed = heapq.heappop(self._heap)
        self.num_done += 1
        deed()
        return True

    def run(self, until_ns: int) -> None:
        """Does all deeds up to and including `until_ns`; then it is that time."""
        while self._heap and self._heap[0][0] <= until_ns:
            self.step()
        self.now_ns = max(self.now_ns, until_ns)
