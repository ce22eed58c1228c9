"""How long things take in a simulated cluster. The seam where a performance model is set in.

Whatever is asked here is asked once a start; what the control core decides never depends on the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from groundplane.control.actions import RankPlacement
from groundplane.sim.site import Site, SiteNode
from groundplane.sim.workload import SimJob

S = 1_000_000_000
SLOWDOWN_BY_LEVEL = (1.0, 1.05, 1.10, 1.15)
"""Time of a gang over its time where it is placed best, by how many levels of domains it spreads over more
than its size makes it: none, leaves, spine blocks, zones. Assumed, for jobs of which no model is known."""


class Physics(Protocol):
    """Durations in nanoseconds."""

    def start_ns(self, placement: tuple[RankPlacement, ...]) -> int:
        """From the order to start until every rank runs."""

    def stop_ns(self, placement: tuple[RankPlacement, ...]) -> int:
        """From the order to stop until nothing is left."""

    def ideal_run_ns(self, job: SimJob) -> int:
        """The job's work, in time where it is placed best."""

    def run_ns(self, ideal_run_ns: int, job: SimJob, placement: tuple[RankPlacement, ...]) -> int:
        """Time that work which takes `ideal_run_ns` where it is placed best takes on this placement."""

    def checkpoint_ns(self, job: SimJob) -> int:
        """How long the job stands still for one checkpoint."""


@dataclass(frozen=True)
class UniformPhysics:
    """Every placement runs equally fast; starting, stopping and a checkpoint take the same time always."""

    start_delay_ns: int = 30 * S
    stop_delay_ns: int = 5 * S
    checkpoint_delay_ns: int = 0

    def start_ns(self, placement: tuple[RankPlacement, ...]) -> int:  # noqa: ARG002
        """The start delay."""
        return self.start_delay_ns

    def stop_ns(self, placement: tuple[RankPlacement, ...]) -> int:  # noqa: ARG002
        """The stop delay."""
        return self.stop_delay_ns

    def ideal_run_ns(self, job: SimJob) -> int:
        """The run time that the job states."""
        return job.run_ns

    def run_ns(self, ideal_run_ns: int, job: SimJob, placement: tuple[RankPlacement, ...]) -> int:  # noqa: ARG002
        """The ideal time."""
        return ideal_run_ns

    def checkpoint_ns(self, job: SimJob) -> int:  # noqa: ARG002
        """The checkpoint delay."""
        return self.checkpoint_delay_ns


class Speeds(Protocol):
    """What a performance model says of training jobs; `training_speed.py` has the real one."""

    def step_s(self, job: SimJob, num_nodes: int, num_domains: tuple[int, ...]) -> float:
        """Seconds of a step on so many nodes that spread over so many domains of each level, widest first."""

    def checkpoint_s(self, job: SimJob) -> float:
        """Seconds that writing one checkpoint holds the job up."""


@dataclass(frozen=True)
class PlacedPhysics:
    """Speed by placement: jobs with a known model as the performance model says, others by a stated factor.

    Args:
        site: the nodes with their domains.
        speeds: of jobs with a known model; without it they are as others.
        start_delay_ns, stop_delay_ns: the same for all.
        checkpoint_delay_ns: of jobs without a known model.
        slowdowns: by the number of levels that a gang spreads over, as in `SLOWDOWN_BY_LEVEL`.
    """

    site: Site
    speeds: Speeds | None = None
    start_delay_ns: int = 30 * S
    stop_delay_ns: int = 5 * S
    checkpoint_delay_ns: int = 30 * S
    slowdowns: Sequence[float] = SLOWDOWN_BY_LEVEL
    _nodes: dict[str, SiteNode] = field(default_factory=dict)
    _steps_s: dict[tuple[object, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._nodes.update({node.node_id: node for node in self.site})

    def start_ns(self, placement: tuple[RankPlacement, ...]) -> int:  # noqa: ARG002
        """The start delay."""
        return self.start_delay_ns

    def stop_ns(self, placement: tuple[RankPlacement, ...]) -> int:  # noqa: ARG002
        """The stop delay."""
        return self.stop_delay_ns

    def ideal_run_ns(self, job: SimJob) -> int:
        """The stated run time, or the steps at the speed of the best placement."""
        if job.training is None or not job.training.steps:
            return job.run_ns
        if self.speeds is None:
            return job.run_ns
        return max(S, int(job.training.steps * self._step_s(job, *self._best(job)) * S))

    def run_ns(self, ideal_run_ns: int, job: SimJob, placement: tuple[RankPlacement, ...]) -> int:
        """The ideal time by the factor of this placement."""
        return int(ideal_run_ns * self.slowdown(job, placement))

    def checkpoint_ns(self, job: SimJob) -> int:
        """As the model says, or the stated delay."""
        if job.training is None or self.speeds is None:
            return self.checkpoint_delay_ns
        return int(self.speeds.checkpoint_s(job) * S)

    def slowdown(self, job: SimJob, placement: tuple[RankPlacement, ...]) -> float:
        """Time on this placement over time on the best one, at least 1."""
        if len(placement) == 1:
            return 1.0
        nodes = [self._nodes[name] for name in dict.fromkeys(rank.node_id for rank in placement)]
        domains = tuple(
            len({node.topology[: level + 1] for node in nodes}) for level in range(len(nodes[0].topology))
        )
        if job.training is not None and self.speeds is not None:
            best_nodes, best_domains = self._best(job)
            ideal_s = self._step_s(job, best_nodes, best_domains)
            return max(1.0, self._step_s(job, len(nodes), domains) / ideal_s)
        _, fewest = self._best(job)
        # What cannot be placed nearer by its size alone is not slowed by its placement.
        spread = sum(have > need for have, need in zip(domains, fewest, strict=True))
        return self.slowdowns[min(spread, len(self.slowdowns) - 1)]

    def _best(self, job: SimJob) -> tuple[int, tuple[int, ...]]:
        """The fewest nodes, and of each level the fewest domains, that the gang could be placed in."""
        per_node = max(node.num_devices for node in self.site)
        num_nodes = -(-job.num_devices // per_node)
        levels = len(self.site[0].topology)
        return num_nodes, tuple(-(-num_nodes // self._largest(level)) for level in range(levels))

    def _largest(self, level: int) -> int:
        """Nodes of the largest domain of a level."""
        key = ("largest", level)
        if key not in self._steps_s:
            sizes: dict[tuple[str, ...], int] = {}
            for node in self.site:
                path = node.topology[: level + 1]
                sizes[path] = sizes.get(path, 0) + 1
            self._steps_s[key] = max(sizes.values())
        return int(self._steps_s[key])

    def _step_s(self, job: SimJob, num_nodes: int, domains: tuple[int, ...]) -> float:
        if self.speeds is None:
            return 1.0
        key = (job.training, job.num_devices, num_nodes, domains)
        if key not in self._steps_s:
            self._steps_s[key] = self.speeds.step_s(job, num_nodes, domains)
        return self._steps_s[key]
