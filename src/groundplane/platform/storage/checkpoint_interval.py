"""How often to save: from what a save costs and how often the run fails, measured as it goes.

Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006), equation
37; its first term is Young's (CACM 17, 1974). It assumes failures that are independent and equally likely at
any moment, and a cost that is lost whenever nothing fails. With saves beside training the cost is what
training waits; how long a save runs on in the background only bounds the interval from below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_WEIGHT: Final = 0.3
"""Share of the newest save in the running average of costs."""


def daly_interval_s(cost_s: float, mtbf_s: float) -> float:
    """Seconds of work between the ends of two saves that lose the least time.

    Args:
        cost_s: what training waits for a save.
        mtbf_s: mean time between failures of the whole gang.
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


@dataclass
class CheckpointInterval:
    """The interval of one run, adapted after each save and each failure.

    Attributes:
        assumed_mtbf_s: mean time between failures before any was seen; it counts as one failure, so that the
            first ones move the estimate and many decide it.
        least_s: never more often than this.
        most_s: never less often than this.
    """

    assumed_mtbf_s: float
    least_s: float = 1.0
    most_s: float = 6 * 3600.0
    cost_s: float = 0.0
    background_s: float = 0.0
    run_s: float = 0.0
    num_failures: int = 0

    def saved(self, blocked_s: float, whole_s: float) -> None:
        """Counts a save: what training waited, and how long it took until it was complete."""
        first = self.cost_s == 0.0
        self.cost_s += (blocked_s - self.cost_s) * (1.0 if first else _WEIGHT)
        self.background_s += (whole_s - self.background_s) * (1.0 if first else _WEIGHT)

    def ran(self, seconds: float, *, failed: bool) -> None:
        """Counts time that the gang ran, and whether it ended in a failure of a machine or a process."""
        self.run_s += seconds
        self.num_failures += failed

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures, from what was assumed and what was seen."""
        return (self.assumed_mtbf_s + self.run_s) / (1 + self.num_failures)

    @property
    def interval_s(self) -> float:
        """Seconds from the end of one save to the begin of the next."""
        wanted = daly_interval_s(self.cost_s, self.mtbf_s)
        return min(max(wanted, self.background_s, self.least_s), self.most_s)

    def explain(self) -> dict[str, float | str]:
        """The interval, what it was computed from and what was assumed."""
        return {
            "interval_s": self.interval_s,
            "cost_s": self.cost_s,
            "background_s": self.background_s,
            "mtbf_s": self.mtbf_s,
            "failures_seen": float(self.num_failures),
            "assumed_mtbf_s": self.assumed_mtbf_s,
            "assumed": "failures independent and equally likely at any moment (Daly 2006)",
        }
