"""Prices of layouts for a search: the step model of `perfmodel`, its memory, and a bound below its time."""

from __future__ import annotations

import dataclasses
from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel.evidence import Evidence, FloatArray
from groundplane.perfmodel.intervals import StepTimes, step_spread
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.memory_training import training_memory, usable_bytes
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.strategy import SCHEDULES, Layouts
from groundplane.perfmodel.training import TrainingJob, price_training
from groundplane.spec.cluster import ClusterSpec

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


JUDGED: Final = Evidence("family", 0.85, 1.0, 1.18, 0, "judgement: no runs of this stack were compared")
"""Residuals of a stack that nobody measured."""


class TrainingPricer:
    """Prices layouts of one job on one cluster under one software stack (see `LayoutPricer`).

    Args:
        job: what is trained.
        cluster: where.
        profile: how the stack spends time.
        memory: how it spends memory.
        residuals: of the stack's whole steps.
    """

    def __init__(
        self,
        job: TrainingJob,
        cluster: ClusterSpec,
        profile: StackProfile,
        memory: MemoryProfile,
        residuals: Evidence = JUDGED,
    ) -> None:
        self.job, self.cluster, self.profile, self.memory = job, cluster, profile, memory
        self.spread = step_spread(cluster, job.precision, residuals)

    @property
    def memory_limit_bytes(self) -> float:
        return usable_bytes(self.cluster.chip.memory_bytes, self.memory)

    def memory_bytes(self, layouts: Layouts) -> FloatArray:
        element = self.job.precision.activation_bytes
        found = training_memory(self.job.model, self.job.seq, layouts, self.memory, activation_bytes=element)
        server = self.cluster.server
        # Where the host cannot keep what it is given, no memory of the chip is enough.
        crowded = found.host_bytes * server.num_chips > (server.host_memory_bytes or np.inf)
        return np.where(crowded, np.inf, found.needed_bytes)

    def step_times(self, layouts: Layouts) -> StepTimes:
        return self.spread.times(price_training(self.job, self.cluster, layouts, self.profile))

    def least_step_s(self, groups: Layouts) -> FloatArray:
        # A rank that holds a stage and its mirror works the mean of both, which is least of all schedules.
        mirrored = np.where(groups.pp % 2 == 0, float(SCHEDULES.index("dualpipe")), 0.0)
        least = dataclasses.replace(groups, schedule=mirrored)
        stages = price_training(self.job, self.cluster, least, self.profile).stages_s
        bound = np.sum([stages[name] for name in _BOUND_STAGES], axis=0)
        # Rounding in the sum of all stages may fall below the sum of some by a few units in the last place.
        return np.asarray(bound * (1.0 - 1e-12))

    def least_memory_bytes(self, groups: Layouts) -> FloatArray:
        # States fully sharded, no buffers to gather or reduce them in, and 1F1B, which holds least in flight.
        lean = msgspec.structs.replace(
            self.memory,
            gathered_bytes=0.0,
            pipeline_keeps_gathered=False,
            bucket_bytes=0.0,
            step_gather_bytes=0.0,
        )
        sharded = dataclasses.replace(
            groups,
            zero=np.full(len(groups), 3.0),
            shard=groups.cp * groups.dp,
            schedule=np.zeros(len(groups)),
        )
        element = self.job.precision.activation_bytes
        found = training_memory(self.job.model, self.job.seq, sharded, lean, activation_bytes=element)
        return np.asarray(found.needed_bytes * (1.0 - 1e-12))
