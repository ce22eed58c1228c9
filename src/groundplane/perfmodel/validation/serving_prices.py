"""Prices many runs at once: runs of one model, layout and chip share a pricer, and iterations are kept.

What a fit and a validation share: iterations are priced once, profiles are tried on them as often as wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np

from groundplane.catalog.resolve import resolve_cluster
from groundplane.perfmodel.collectives import cluster_links
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.serving import Iteration, IterationPricer
from groundplane.perfmodel.serving_layout import cache_capacity
from groundplane.perfmodel.serving_profiles import EngineProfile
from groundplane.perfmodel.serving_steady import PricedLoad, SteadyState, priced_load, steady_state
from groundplane.perfmodel.validation.serving_rows import ServingCase, Stage


class ServingPricer:
    """Iterations of some cases, priced once; profiles are then tried on them.

    Args:
        cases: N of them; results have shape (N,).
        chunk_tokens: most prompt tokens in an iteration, by engine.
    """

    def __init__(self, cases: Sequence[ServingCase], chunk_tokens: Mapping[str, float]) -> None:
        self.cases = list(cases)
        self.decode = self._priced(chunk_tokens, prefill=False)
        self.prefill = (
            self._priced(chunk_tokens, prefill=True) if any(case.prefill for case in self.cases) else None
        )
        self.is_split = np.array([case.prefill is not None for case in self.cases], dtype=bool)

    def part(self, chosen: np.ndarray) -> ServingPricer:
        """The pricer of some of the cases, whose iterations are not priced again."""
        other = object.__new__(ServingPricer)
        other.cases = [case for case, mine in zip(self.cases, chosen, strict=True) if mine]
        other.decode = _take(self.decode, chosen)
        other.prefill = None if self.prefill is None else _take(self.prefill, chosen)
        other.is_split = self.is_split[chosen]
        return other

    def times(self, profiles: Mapping[str, EngineProfile]) -> tuple[FloatArray, FloatArray]:
        """Time to first token and per token, seconds, under each case's engine's profile."""
        ttft, tpot = np.zeros(len(self.cases)), np.zeros(len(self.cases))
        for engine in dict.fromkeys(case.engine for case in self.cases):
            mine = np.array([case.engine == engine for case in self.cases])
            state = steady_state(_take(self.decode, mine), profiles[engine])
            ttft[mine], tpot[mine] = state.ttft_s, state.tpot_s
            split = mine & self.is_split
            if self.prefill is not None and split.any():
                first = steady_state(_take(self.prefill, split), profiles[engine])
                second = steady_state(_take(self.decode, split), profiles[engine])
                workers = np.array(
                    [
                        float(c.prefill.num_workers * c.prefill.layout.attention_dp)
                        for c in self.cases
                        if c.prefill
                    ]
                )
                workers = workers[split[self.is_split]]
                load = np.array([case.concurrency for case in self.cases])[split]
                ttft[split], tpot[split] = _split_times(first, second, profiles[engine], workers, load,
                                                        _take(self.decode, split).output)  # fmt: skip
        return ttft, tpot

    def _priced(self, chunk_tokens: Mapping[str, float], *, prefill: bool) -> PricedLoad:
        groups: dict[object, list[int]] = {}
        for index, case in enumerate(self.cases):
            stage = _stage(case, prefill=prefill)
            key = (case.model_name, case.system, case.engine, case.formats, stage.layout, case.drafts)
            groups.setdefault(key, []).append(index)
        parts = [
            self._group([self.cases[i] for i in members], chunk_tokens, prefill=prefill)
            for members in groups.values()
        ]
        order = np.argsort(np.concatenate([np.array(members) for members in groups.values()]))
        return _join(parts, order, np.array([len(members) for members in groups.values()]))

    def _group(
        self, cases: list[ServingCase], chunk_tokens: Mapping[str, float], *, prefill: bool
    ) -> PricedLoad:
        case = cases[0]
        layout = _stage(case, prefill=prefill).layout
        cluster = resolve_cluster(case.system)
        pricer = IterationPricer(cluster.chip, cluster_links(cluster), case.model, layout, case.formats)
        capacity = cache_capacity(cluster.chip, case.model, layout, case.formats)
        workers = np.array([_stage(one, prefill=prefill).num_workers for one in cases], dtype=np.float64)
        load = np.array([one.concurrency for one in cases]) / workers
        if prefill:
            load = np.ones_like(load) * layout.attention_dp
        return priced_load(
            pricer,
            capacity,
            np.array([one.prompt for one in cases]),
            np.array([one.output for one in cases]),
            load,
            chunk_tokens.get(case.engine, 8192.0),
            0.0 if prefill else case.drafts,
        )


def _split_times(
    first: SteadyState, second: SteadyState, profile: EngineProfile, workers: FloatArray, load: FloatArray,
    output: FloatArray,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Prefill and decode on engines of their own: prompts queue at theirs, decoding is never stretched.

    In a closed loop requests beyond what prefill keeps up with wait there: each round takes at least
    load / workers prompts, one after the other.
    """
    tpot = second.iteration_s
    alone = first.iteration_s + first.prompt_s
    outside = first.ttft_s - first.queue_s
    round_s = outside + output * tpot
    need = load / workers * alone
    crowded = np.maximum(need - round_s, 0.0)
    busy = np.minimum(need / np.maximum(round_s, need), 0.9)
    queue = profile.line * (load / workers - 1.0).clip(0.0) * alone / 2.0 + 0.5 * busy * alone
    return outside + queue + crowded, tpot


def _stage(case: ServingCase, *, prefill: bool) -> Stage:
    return case.prefill if prefill and case.prefill is not None else case.decode


def _take(load: PricedLoad, index: np.ndarray) -> PricedLoad:
    def part(value: FloatArray) -> FloatArray:
        return np.asarray(value[index], dtype=np.float64)

    quiet, mixed = (
        Iteration(*(part(getattr(one, f.name)) for f in fields(Iteration)))
        for one in (load.quiet, load.mixed)
    )
    return PricedLoad(
        part(load.prompt), part(load.output), part(load.running), part(load.waiting), part(load.chunks),
        part(load.ranks), quiet, mixed, part(load.drafts),
    )  # fmt: skip


def _join(parts: list[PricedLoad], order: np.ndarray, sizes: np.ndarray) -> PricedLoad:
    def whole(name: str) -> FloatArray:
        joined = np.concatenate([getattr(part, name) for part in parts])
        return np.asarray(joined[order], dtype=np.float64)

    quiet, mixed = (
        Iteration(*(np.concatenate([getattr(getattr(p, one), f.name) for p in parts])[order]
                    for f in fields(Iteration)))
        for one in ("quiet", "mixed")
    )  # fmt: skip
    ranks = np.repeat(np.array([float(np.asarray(part.ranks)) for part in parts]), sizes)[order]
    return PricedLoad(
        whole("prompt"), whole("output"), whole("running"), whole("waiting"), whole("chunks"), ranks, quiet,
        mixed, whole("drafts"),
    )  # fmt: skip
