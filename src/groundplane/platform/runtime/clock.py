"""Real time for the driver: a clock that never goes back, and the timers that the core set."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable


class Clock:
    """Integer nanoseconds since 1970 that never decrease, whatever happens to the machine's clock.

    Args:
        not_before_ns: the last time that was journalled.
    """

    def __init__(self, not_before_ns: int) -> None:
        self._base_ns = max(time.time_ns(), not_before_ns) - time.monotonic_ns()

    def now_ns(self) -> int:
        """The time, by the monotonic clock from the later of wall clock and last journalled time."""
        return self._base_ns + time.monotonic_ns()


class Timers:
    """Timers by id; setting one again moves it. Calls `fire(timer_id)` once at or soon after its time.

    Args:
        now_ns: reads the clock.
        fire: called from the running loop.
    """

    def __init__(self, now_ns: Callable[[], int], fire: Callable[[str], None]) -> None:
        self._now_ns = now_ns
        self._fire = fire
        self._at_ns: dict[str, int] = {}
        self._due: list[tuple[int, str]] = []
        self._alarm: asyncio.TimerHandle | None = None

    def set(self, timer_id: str, at_ns: int) -> None:
        """Sets or moves a timer; a time in the past is due at once."""
        self._at_ns[timer_id] = at_ns
        # A moved timer leaves its old entry behind, which `_ring` passes over.
        heapq.heappush(self._due, (at_ns, timer_id))
        self._arm()

    def close(self) -> None:
        """Fires nothing any more."""
        self._at_ns.clear()
        self._due.clear()
        self._arm()

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._due:
            wait_s = max(0.0, (self._due[0][0] - self._now_ns()) / 1e9)
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._ring)

    def _ring(self) -> None:
        now_ns = self._now_ns()
        while self._due and self._due[0][0] <= now_ns:
            at_ns, timer_id = heapq.heappop(self._due)
            if self._at_ns.get(timer_id) == at_ns:
                del self._at_ns[timer_id]
                self._fire(timer_id)
        self._arm()
