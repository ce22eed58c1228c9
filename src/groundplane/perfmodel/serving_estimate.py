"""What one engine will do under a steady load: times with intervals, where they go, what the cache holds."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel.evidence import Evidence
from groundplane.perfmodel.serving import IterationPricer
from groundplane.perfmodel.serving_closed import ClosedLoad, ClosedTimes, closed_times, prompt_alone_s
from groundplane.perfmodel.serving_layout import (
    CacheCapacity,
    ServingFormats,
    ServingLayout,
    cache_capacity,
    formats_of,
)
from groundplane.perfmodel.serving_links import serving_links
from groundplane.perfmodel.serving_profiles import EngineProfile, serving_calibration
from groundplane.perfmodel.serving_tables import engine_grids, engine_seconds
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.errors import InputError
from groundplane.spec.llm import LlmSpec

_SPREAD: Final = 0.1
"""By how much lengths of requests differ from their means: alike, all clients would wait in step for ever."""


class ServingLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A closed load: `concurrency` requests of `prompt` tokens in and `output` out are always under way."""

    prompt: float
    output: float
    concurrency: float


class ServingEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Means over a run on one engine. `_low_s` and `_high_s` bound 8 of 10 cases.

    `iteration_s` holds the parts of one iteration without the stretch by other requests' prompts, which
    `prompts_of_others` is. `queue_s` is what a first token waits beyond its own prompt's work and the way to
    the engine, `capacity_wait_s` the same where it is the cache that is full.
    """

    model: str
    engine: str
    layout: ServingLayout
    formats: ServingFormats
    ttft_s: float
    ttft_low_s: float
    ttft_high_s: float
    tpot_s: float
    tpot_low_s: float
    tpot_high_s: float
    output_tokens_per_s: float
    output_tokens_per_s_per_chip: float
    running: float
    queue_s: float
    capacity_wait_s: float
    prompt_s: float
    iteration_s: dict[str, float]
    bottleneck: str
    capacity: CacheCapacity
    evidence: Evidence
    assumptions: list[str]


def serving_estimate(
    model: LlmSpec,
    cluster: ClusterSpec,
    layout: ServingLayout,
    load: ServingLoad,
    *,
    engine: str = "vllm",
    weights: str = "bf16",
    cache: str = "bf16",
    drafts: float = 0.0,
) -> ServingEstimate:
    """The steady state of one engine.

    Args:
        model, cluster, layout, load: what is served, on what, how, and to whom.
        engine: of the calibration.
        weights, cache: number formats of checkpoint and key-value cache.
        drafts: tokens proposed by speculative decoding for each it checks.

    Raises:
        InputError: unknown engine or format, a layout that does not fit model or cluster, a load that is
            not positive, or weights that leave no room for one request.
    """
    calibration = serving_calibration()
    profile = calibration.profile(engine, cluster.chip.name)
    for name in load.__struct_fields__:
        if getattr(load, name) < 1:
            raise InputError("must be at least 1", field=name, value=getattr(load, name))
    layout = layout.checked(model)
    chips = cluster.num_nodes * cluster.server.num_chips
    if layout.num_chips > chips:
        raise InputError(
            f"is more than the {chips} chips of the cluster", field="chips", value=layout.num_chips
        )
    formats = formats_of(model, weights, cache)
    capacity = cache_capacity(cluster.chip, model, layout, formats)
    if capacity.num_sequences(load.prompt + load.output) < 1:
        raise InputError(
            f"leaves {capacity.cache_bytes / 1e9:.1f} GB for the cache of a chip, too little for one "
            f"request of {load.prompt + load.output:.0f} tokens: raise tp",
            field="tp",
            value=layout.tp,
        )
    pricer = IterationPricer(cluster.chip, serving_links(cluster), model, layout, formats, engine=engine)
    seconds = engine_seconds(engine_grids(pricer, drafts), profile)
    closed = ClosedLoad(load.prompt, load.output, load.concurrency, _SPREAD)
    kind = (model.name, cluster.chip.name, formats.experts if model.is_moe else formats.linear)
    factor = calibration.correction(engine, *kind)
    times = closed_times(seconds, profile, capacity, closed)
    ttft_s, tpot_s = times.ttft_s * factor.ttft, times.tpot_s * factor.tpot
    rate = load.concurrency * load.output / (ttft_s + load.output * tpot_s)
    held = capacity.num_sequences(load.prompt + load.output / 2.0) * layout.attention_dp
    running = min(load.concurrency, held, profile.max_sequences * layout.attention_dp)
    stages = _stages(pricer, profile, load, running / layout.attention_dp, times, seconds.tokens)
    prompt_s = prompt_alone_s(seconds, load.prompt)
    outside_s = profile.request_s + profile.request_token_s * load.prompt + profile.first_tokens * tpot_s
    queue_s = max(ttft_s - outside_s - (1.0 + profile.echo) * prompt_s, 0.0)
    first, each = calibration.spread("ttft", engine, *kind), calibration.spread("tpot", engine, *kind)
    capacity_wait_s = queue_s if load.concurrency > held else 0.0
    return ServingEstimate(
        model=model.name,
        engine=engine,
        layout=layout,
        formats=formats,
        ttft_s=ttft_s,
        ttft_low_s=ttft_s * first.ratio_p10,
        ttft_high_s=ttft_s * first.ratio_p90,
        tpot_s=tpot_s,
        tpot_low_s=tpot_s * each.ratio_p10,
        tpot_high_s=tpot_s * each.ratio_p90,
        output_tokens_per_s=rate,
        output_tokens_per_s_per_chip=rate / layout.num_chips,
        running=running,
        queue_s=queue_s,
        capacity_wait_s=capacity_wait_s,
        prompt_s=prompt_s,
        iteration_s=stages,
        bottleneck=_bottleneck(stages, capacity_wait_s, ttft_s),
        capacity=capacity,
        evidence=each,
        assumptions=_assumptions(model, profile.chunk_tokens, drafts, profile.acceptance),
    )


def _stages(
    pricer: IterationPricer, profile: EngineProfile, load: ServingLoad, running: float, times: ClosedTimes,
    tokens: float,
) -> dict[str, float]:  # fmt: skip
    """Seconds of an iteration by stage, and what the run's mean time of a token says beyond them."""
    work = profile.work_s(pricer.price(running, load.prompt + load.output / 2.0))
    stages = {name: float(np.asarray(value).ravel()[0]) for name, value in work.items()}
    stages["host"] = profile.host_s + profile.host_sequence_s * running
    stages["prompts_of_others"] = max(times.tpot_s * tokens - sum(stages.values()), 0.0)
    return stages


def smallest_layout(
    model: LlmSpec, cluster: ClusterSpec, load: ServingLoad, weights: str, cache: str
) -> ServingLayout:
    """The fewest chips of a scale-up domain, a power of two, whose cache holds the whole load.

    Raises:
        InputError: not even all chips of a domain hold one request.
    """
    formats = formats_of(model, weights, cache)
    best: ServingLayout | None = None
    degree = 1
    while degree <= min(cluster.scaleup_size, cluster.num_nodes * cluster.server.num_chips, 8):
        layout = ServingLayout(tp=degree, expert_tp=degree if model.is_moe else 1)
        held = cache_capacity(cluster.chip, model, layout, formats).num_sequences(load.prompt + load.output)
        if held >= 1 and best is None:
            best = layout
        if held >= load.concurrency:
            return layout
        if held >= 1:
            best = layout
        degree *= 2
    if best is None:
        raise InputError(
            f"does not fit into {degree // 2} x {cluster.chip.name} with {weights} weights",
            field="MODEL",
            value=model.name,
        )
    return best


def _bottleneck(stages: dict[str, float], waits_s: float, ttft_s: float) -> str:
    if waits_s > 0.5 * ttft_s:
        return "cache_capacity"
    return max(stages, key=lambda name: stages[name])


def _assumptions(model: LlmSpec, chunk_tokens: float, drafts: float, acceptance: float) -> list[str]:
    assumed = [
        "closed load: each request is followed by the next at once; lengths within 10 % of their means",
        f"chunks of at most {chunk_tokens:.0f} prompt tokens; CUDA graphs; no prefix is found in the cache",
        "90 % of a chip's memory is the engine's, 3 GB of it not for weights or cache",
    ]
    if model.is_moe:
        assumed.append("experts drawn evenly; the busiest expert rank gets up to 20 % more than the mean")
    if drafts:
        assumed.append(f"{drafts:.0f} drafts, each accepted with {acceptance:.0%}")
    assumed += [f"not priced: {part}" for part in model.left_out]
    return assumed
