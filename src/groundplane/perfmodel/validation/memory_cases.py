"""Prices cases of memory, those of one model and stack in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.memory_training import training_memory, usable_bytes
from groundplane.perfmodel.strategy import RECOMPUTE, Layouts
from groundplane.perfmodel.validation.memory_rows import MemoryCase

_ZEROS = ("zero", "sequence_parallel", "recompute", "recompute_share", "schedule")


class CaseMemory:
    """Memory of some cases under any profiles of the same facts; results keep the order of the cases."""

    def __init__(self, cases: Sequence[MemoryCase], profiles: Mapping[str, MemoryProfile]) -> None:
        self.cases = [_settled(case, profiles[case.stack]) for case in cases]
        groups: dict[tuple[object, ...], list[int]] = {}
        for index, case in enumerate(self.cases):
            groups.setdefault((case.stack, id(case.model), case.seq), []).append(index)
        self._groups = [
            (self.cases[indices[0]], _layouts([self.cases[index] for index in indices]), np.array(indices))
            for indices in groups.values()
        ]

    def reported_bytes(self, profiles: Mapping[str, MemoryProfile]) -> FloatArray:
        """What the stack's tools report of each run: of the rank that it reports, and no more than a chip
        has."""
        result = np.zeros(len(self.cases))
        for case, layouts, indices in self._groups:
            profile = profiles[case.stack]
            first = profile.reports == "first"
            found = training_memory(case.model, case.seq, layouts, profile, first_stage=first)
            chips = np.array([self.cases[index].chip_bytes or np.inf for index in indices])
            result[indices] = np.minimum(found.held_bytes, chips - profile.outside_bytes)
        return result

    def needed_bytes(self, profiles: Mapping[str, MemoryProfile]) -> FloatArray:
        """What the fullest rank of each run needs."""
        result = np.zeros(len(self.cases))
        for case, layouts, indices in self._groups:
            found = training_memory(case.model, case.seq, layouts, profiles[case.stack])
            result[indices] = found.needed_bytes
        return result


def _layouts(cases: Sequence[MemoryCase]) -> Layouts:
    names = sorted({name for case in cases for name, _ in case.layout})
    rows = [dict(case.layout) for case in cases]
    return Layouts.of(
        **{name: [row.get(name, 0.0 if name in _ZEROS else 1.0) for row in rows] for name in names}
    )


def _settled(case: MemoryCase, profile: MemoryProfile) -> MemoryCase:
    """The case with recompute settled where the run leaves it open: what the stack does unless told
    otherwise, else as little as fits, since that is fastest."""
    if not case.open_recompute:
        return case
    plain = dict(case.layout)
    names = (profile.usual_recompute,) if profile.usual_recompute else ("none", "selective", "full")
    ways = [float(RECOMPUTE.index(name)) for name in names]
    layouts = Layouts.of(
        **{name: value for name, value in plain.items() if name != "recompute"}, recompute=ways
    )
    needed = training_memory(case.model, case.seq, layouts, profile).needed_bytes
    limit = usable_bytes(case.chip_bytes or np.inf, profile)
    chosen = next((way for way, size in zip(ways, needed, strict=True) if size <= limit), ways[-1])
    return case.with_layout(plain | {"recompute": chosen})
