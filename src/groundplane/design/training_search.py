"""Prices of layouts for a search: the step model of `perfmodel`, its memory, and a bound below its time."""

from __future__ import annotations

from typing import Final

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.memory import rough_rank_bytes
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.strategy import Layouts
from groundplane.perfmodel.training import TrainingJob, price_training
from groundplane.spec.cluster import ClusterSpec

USABLE_MEMORY: Final = 0.95
"""Share of a chip's memory that a rank may fill."""

_BOUND_STAGES: Final = (
    "matmul",
    "attention",
    "memory_bound",
    "launch",
    "tensor_communication",
    "expert_communication",
    "context_communication",
)
"""Stages that the schedule, its chunks and the sharding of weights do not change. The others are never
negative, so these alone bound the step of every layout of a group from below."""


class TrainingPricer:
    """Prices layouts of one job on one cluster under one software stack (see `LayoutPricer`)."""

    def __init__(self, job: TrainingJob, cluster: ClusterSpec, profile: StackProfile) -> None:
        self.job, self.cluster, self.profile = job, cluster, profile

    @property
    def memory_limit_bytes(self) -> float:
        return USABLE_MEMORY * self.cluster.chip.memory_bytes

    def memory_bytes(self, layouts: Layouts) -> FloatArray:
        return rough_rank_bytes(self.job.model, self.job.seq, layouts)

    def step_s(self, layouts: Layouts) -> FloatArray:
        return price_training(self.job, self.cluster, layouts, self.profile).step_s

    def lower_bound_s(self, groups: Layouts) -> FloatArray:
        stages = price_training(self.job, self.cluster, groups, self.profile).stages_s
        bound = np.sum([stages[name] for name in _BOUND_STAGES], axis=0)
        # Rounding in the sum of all stages may fall below the sum of some by a few units in the last place.
        return np.asarray(bound * (1.0 - 1e-12))
