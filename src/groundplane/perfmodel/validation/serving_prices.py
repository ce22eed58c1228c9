"""Prices many runs at once: runs of one model, layout and chip share the grids of one engine.

What a fit and a validation share: iterations are priced once, profiles are tried on them as often as wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from groundplane.catalog.resolve import resolve_cluster
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.serving import IterationPricer
from groundplane.perfmodel.serving_closed import ClosedLoad, closed_times, prompt_engines, split_times
from groundplane.perfmodel.serving_layout import CacheCapacity, cache_capacity
from groundplane.perfmodel.serving_links import serving_links
from groundplane.perfmodel.serving_profiles import EngineProfile
from groundplane.perfmodel.serving_tables import EngineGrids, EngineSeconds, engine_grids, engine_seconds
from groundplane.perfmodel.validation.serving_rows import ServingCase, Stage


@dataclass(frozen=True)
class _Priced:
    grids: EngineGrids
    capacity: CacheCapacity


class ServingPricer:
    """Engines of some cases, priced once; profiles are then tried on them.

    Args:
        cases: N of them; results have shape (N,).
    """

    def __init__(self, cases: Sequence[ServingCase]) -> None:
        self.cases = list(cases)
        known: dict[object, _Priced] = {}
        self._decode = [_engine(case, case.decode, case.drafts, known) for case in self.cases]
        self._prefill = [
            None if case.prefill is None else _engine(case, case.prefill, 0.0, known) for case in self.cases
        ]

    def part(self, chosen: np.ndarray) -> ServingPricer:
        """The pricer of some of the cases, whose iterations are not priced again."""
        other = object.__new__(ServingPricer)
        kept = np.flatnonzero(chosen).tolist()
        other.cases = [self.cases[i] for i in kept]
        other._decode = [self._decode[i] for i in kept]
        other._prefill = [self._prefill[i] for i in kept]
        return other

    def times(self, profiles: Mapping[str, EngineProfile]) -> tuple[FloatArray, FloatArray]:
        """Time to first token and per token, seconds, under each case's engine's profile."""
        seconds: dict[int, EngineSeconds] = {}
        for one, case in zip([*self._decode, *self._prefill], [*self.cases, *self.cases], strict=True):
            if one is not None and id(one) not in seconds:
                seconds[id(one)] = engine_seconds(one.grids, profiles[case.engine])
        found = [self._times(i, profiles[case.engine], seconds) for i, case in enumerate(self.cases)]
        both = np.array(found, dtype=np.float64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def _times(
        self, index: int, profile: EngineProfile, seconds: Mapping[int, EngineSeconds]
    ) -> tuple[float, float]:
        case, decode, prefill = self.cases[index], self._decode[index], self._prefill[index]
        load = ClosedLoad(case.prompt, case.output, case.concurrency, case.spread)
        if case.prefill is not None and prefill is not None:
            workers = case.prefill.num_workers
            if "prefill_num_workers" in case.inferred:
                workers = prompt_engines(
                    seconds[id(prefill)], seconds[id(decode)], load, case.decode.num_workers
                )
            times = split_times(
                seconds[id(prefill)], seconds[id(decode)], profile, load, workers,
                case.decode.num_workers,
            )  # fmt: skip
        else:
            each = ClosedLoad(
                case.prompt, case.output, case.concurrency / case.decode.num_workers, case.spread
            )
            times = closed_times(seconds[id(decode)], profile, decode.capacity, each)
        return times.ttft_s, times.tpot_s


def _engine(case: ServingCase, stage: Stage, drafts: float, known: dict[object, _Priced]) -> _Priced:
    key = (case.model_name, case.system, case.engine, case.formats, stage.layout, drafts)
    if key not in known:
        cluster = resolve_cluster(case.system)
        pricer = IterationPricer(
            cluster.chip, serving_links(cluster), case.model, stage.layout, case.formats, engine=case.engine
        )
        capacity = cache_capacity(cluster.chip, case.model, stage.layout, case.formats)
        known[key] = _Priced(engine_grids(pricer, drafts), capacity)
    return known[key]
