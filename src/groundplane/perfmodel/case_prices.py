"""Prices of published cases: cases that share model, cluster and formats are priced in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.memory_profile import memory_profile
from groundplane.perfmodel.memory_training import training_memory, usable_bytes
from groundplane.perfmodel.profiles import FACTS, StackProfile
from groundplane.perfmodel.published import Case
from groundplane.perfmodel.strategy import Layouts
from groundplane.perfmodel.training import StepModel, TrainingJob

LAYOUT_FIELDS = (
    "tp", "cp", "pp", "vpp", "ep", "dp", "micro_batch", "num_micro", "zero", "sequence_parallel", "recompute",
    "recompute_share",
)  # fmt: skip


class CasePricer:
    """Cases in groups that one call prices; where a case leaves something open, the fastest that fits counts.

    Args:
        cases: what to price; results keep their order.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self.num_cases = len(cases)
        groups: dict[tuple[object, ...], list[int]] = {}
        for index, case in enumerate(cases):
            precision = (case.precision.linear, case.precision.other)
            key = (case.stack, id(case.model), case.model.name, case.model.num_layers, case.model.hidden,
            case.seq,
                   id(case.cluster), precision)  # fmt: skip
            groups.setdefault(key, []).append(index)
        self._groups = [_Group([cases[index] for index in indices], indices) for indices in groups.values()]

    def step_s(self, profiles: Mapping[str, StackProfile]) -> FloatArray:
        """Seconds of a step of each case under its stack's profile."""
        result = np.zeros(self.num_cases)
        for group in self._groups:
            result[group.indices] = group.step_s(profiles)
        return result


class _Group:
    def __init__(self, cases: list[Case], indices: list[int]) -> None:
        self.indices = np.array(indices)
        self.cases = cases
        first = cases[0]
        self.job = TrainingJob(first.model, first.seq, first.precision)
        self.owner = np.array([position for position, case in enumerate(cases) for _ in case.layouts])
        candidates = [layout for case in cases for layout in case.layouts]
        columns = {
            name: np.array([layout.get(name, 0.0 if name in _ZEROS else 1.0) for layout in candidates])
            for name in LAYOUT_FIELDS
        }
        replicas = columns["cp"] * columns["dp"]
        columns["shard"] = np.array(
            [layout.get("shard", ranks) for layout, ranks in zip(candidates, replicas, strict=True)]
        )
        self.layouts = Layouts.of(**columns)
        # What does not fit is never the fastest that does.
        fitting = np.flatnonzero(self._fitting())
        self.layouts, self.owner = self.layouts.take(fitting), self.owner[fitting]
        self._model: StepModel | None = None
        self._facts: tuple[object, ...] = ()

    def step_s(self, profiles: Mapping[str, StackProfile]) -> FloatArray:
        profile = profiles[self.cases[0].stack]
        facts = tuple(getattr(profile, name) for name in FACTS)
        if self._model is None or facts != self._facts:
            self._model = StepModel(self.job, self.cases[0].cluster, self.layouts, profile)
            self._facts = facts
        prices = self._model.prices(profile).step_s
        best = np.full(len(self.cases), np.inf)
        np.minimum.at(best, self.owner, prices)
        return best

    def _fitting(self) -> np.ndarray:
        """Candidates that fit in memory.

        A published run did run: where by our count nothing fits, its states were kept otherwise than counted
        (fewer trained, in fewer bytes, or offloaded), and memory decides nothing.
        """
        profile = memory_profile(self.cases[0].stack)
        needed = training_memory(self.job.model, self.job.seq, self.layouts, profile).needed_bytes
        allowed = needed <= usable_bytes(self.cases[0].cluster.chip.memory_bytes, profile)
        for position in range(len(self.cases)):
            mine = self.owner == position
            if not allowed[mine].any():
                allowed[mine] = True
        return np.asarray(allowed)


_ZEROS = ("zero", "sequence_parallel", "recompute", "recompute_share")
