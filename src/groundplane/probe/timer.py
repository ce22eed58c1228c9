"""How one operation is timed: processor seconds, so that other work on the machine counts as little as can
be.

On a quiet machine processor time of a one-threaded process equals wall time; on a loaded one wall time
measures the neighbours. What the neighbours took is kept too, so that the probe can say it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MIN_REPEATS = 3
MAX_REPEATS = 2000


class Stopwatch:
    """Times operations of this process, and sums wall and processor time over all of them."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.wall_s = 0.0
        self.processor_s = 0.0

    def time_s(self, operation: Callable[[], object]) -> float:
        """Median processor seconds of one call.

        One call warms up, then at least `MIN_REPEATS` are timed until the budget is spent. Calls shorter than
        20 us are timed in blocks, so that reading the clock does not count.
        """
        operation()
        began = time.process_time()
        operation()
        block = max(1, min(100, int(20e-6 / max(time.process_time() - began, 1e-7))))
        samples: list[float] = []
        wall_start, spent_start = time.perf_counter(), time.process_time()
        while len(samples) < MAX_REPEATS:
            start = time.process_time()
            for _ in range(block):
                operation()
            now = time.process_time()
            samples.append((now - start) / block)
            over = time.perf_counter() - wall_start > self.budget_s
            if over and len(samples) >= MIN_REPEATS:
                break
        self.wall_s += time.perf_counter() - wall_start
        self.processor_s += time.process_time() - spent_start
        return sorted(samples)[len(samples) // 2]
