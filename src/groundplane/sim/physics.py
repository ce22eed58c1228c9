"""How long things take in a simulated cluster. The seam where a performance model is set in.

Whatever is asked here is asked once a start; what the control core decides never depends on the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from groundplane.control.actions import RankPlacement


class Physics(Protocol):
    """Durations in nanoseconds."""

    def start_ns(self, placement: tuple[RankPlacement, ...]) -> int:
        """From the order to start until every rank runs."""

    def stop_ns(self, placement: tuple[RankPlacement, ...]) -> int:
        """From the order to stop until nothing is left."""

    def run_ns(self, ideal_run_ns: int, placement: tuple[RankPlacement, ...]) -> int:
        """Time that work which takes `ideal_run_ns` where it is placed best takes on this placement."""


@dataclass(frozen=True)
class UniformPhysics:
    """Every placement runs equally fast; starting and stopping take the same time always."""

    start_delay_ns: int = 30_000_000_000
    stop_delay_ns: int = 5_000_000_000

    def start_ns(self, placement: tuple[RankPlacement, ...]) -> int:  # noqa: ARG002
        """The start delay."""
        return self.start_delay_ns

    def stop_ns(self, placement: tuple[RankPlacement, ...]) -> int:  # noqa: ARG002
        """The stop delay."""
        return self.stop_delay_ns

    def run_ns(self, ideal_run_ns: int, placement: tuple[RankPlacement, ...]) -> int:  # noqa: ARG002
        """The ideal time."""
        return ideal_run_ns
