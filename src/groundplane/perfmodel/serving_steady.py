"""Steady state of one engine under closed load: so many requests under way, each followed by the next.

Continuous batching with chunked prompts: every iteration decodes a token of each running sequence; prompts
join iterations as requests arrive, one for every `output` tokens decoded, and stretch them for all.
Requests beyond what the cache holds wait until another ends (Little 1961). Arrays of loads broadcast.
Knows nothing of other arrival processes; traces are simulated in `sim`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from groundplane.perfmodel.evidence import FloatArray, Numbers
from groundplane.perfmodel.serving import Iteration, IterationPricer
from groundplane.perfmodel.serving_layout import CacheCapacity
from groundplane.perfmodel.serving_profiles import EngineProfile, total_s

MOST_SEQUENCES = 2048.0
"""Sequences that an engine runs at most, over all data-parallel ranks of one chip each: engines' own limits
are 256 to 2,048."""


@dataclass(frozen=True)
class PricedLoad:
    """Loads with their iterations priced: without a prompt, and with the share of one that one takes.

    `running` sequences on one data-parallel rank, `waiting` requests for each of them; `chunks` iterations a
    prompt takes.
    """

    prompt: FloatArray
    output: FloatArray
    running: FloatArray
    waiting: FloatArray
    chunks: FloatArray
    ranks: FloatArray
    quiet: Iteration
    mixed: Iteration
    drafts: FloatArray


@dataclass(frozen=True)
class SteadyState:
    """Times of a request and where they go, seconds; `output_tokens_per_s` of the whole engine."""

    ttft_s: FloatArray
    tpot_s: FloatArray
    output_tokens_per_s: FloatArray
    iteration_s: FloatArray
    prompt_s: FloatArray
    stall_s: FloatArray
    queue_s: FloatArray
    capacity_wait_s: FloatArray
    running: FloatArray
    stages_s: dict[str, FloatArray]


def priced_load(
    pricer: IterationPricer,
    capacity: CacheCapacity,
    prompt: Numbers,
    output: Numbers,
    concurrency: Numbers,
    chunk_tokens: float,
    drafts: float = 0.0,
) -> PricedLoad:
    """Prices the two iterations of each load.

    Args:
        pricer: of model, layout and chip.
        capacity: what the cache holds.
        prompt, output: mean tokens in and out of a request.
        concurrency: requests under way on the whole engine.
        chunk_tokens: most prompt tokens in an iteration, on one data-parallel rank.
        drafts: tokens that speculative decoding proposes for each it checks.
    """
    given = (np.asarray(value, dtype=np.float64) for value in (prompt, output, concurrency))
    tokens_in, tokens_out, load = np.broadcast_arrays(*given)
    ranks = np.asarray(float(pricer.layout.attention_dp))
    each = np.maximum(load / ranks, 1.0)
    room = np.array([capacity.num_sequences(float(t)) for t in (tokens_in + tokens_out / 2.0).ravel()])
    running = np.maximum(np.minimum(each, np.minimum(room.reshape(each.shape), MOST_SEQUENCES)), 1.0)
    chunks = np.ceil(tokens_in / chunk_tokens)
    context = tokens_in + tokens_out / 2.0
    part = tokens_in / chunks
    queries = 1.0 + drafts
    quiet = pricer.price(running, context, queries=queries)
    mixed = pricer.price(running, context, part, (chunks - 1.0) * part / 2.0, queries=queries)
    return PricedLoad(
        tokens_in,
        tokens_out,
        running,
        each / running - 1.0,
        chunks,
        ranks,
        quiet,
        mixed,
        np.full(running.shape, float(drafts)),
    )


def steady_state(load: PricedLoad, profile: EngineProfile) -> SteadyState:
    """Times under a profile."""
    stages = profile.work_s(load.quiet)
    stages["host"] = profile.host_s + profile.host_sequence_s * load.running
    quiet_s = total_s(stages)
    alone_s = total_s(profile.work_s(load.quiet))
    prompt_s = profile.prompts * load.chunks * np.maximum(total_s(profile.work_s(load.mixed)) - alone_s, 0.0)
    tokens = tokens_per_iteration(load.drafts, profile.acceptance)
    each = load.running / load.output * tokens
    # Ranks in lock step wait for whichever of them takes a prompt.
    any_rank = 1.0 - (1.0 - np.minimum(each, 1.0)) ** load.ranks
    stall_s = profile.stall * np.maximum(each, any_rank) * prompt_s
    tpot_s = (quiet_s + stall_s) / tokens
    busy = np.minimum(stall_s / (quiet_s + stall_s), 0.95)
    queue_s = profile.line * (load.running - 1.0) * prompt_s / 2.0 + 0.5 * busy * prompt_s
    own_s = load.chunks * quiet_s + prompt_s
    outside_s = profile.request_s + profile.request_token_s * load.prompt
    served_s = outside_s + own_s + 0.5 * quiet_s + queue_s + profile.first_tokens * tpot_s
    wait_s = load.waiting * (served_s + load.output * tpot_s)
    whole_s = served_s + wait_s + load.output * tpot_s
    concurrency = load.running * (1.0 + load.waiting) * load.ranks
    return SteadyState(
        ttft_s=served_s + wait_s,
        tpot_s=tpot_s,
        output_tokens_per_s=concurrency * load.output / whole_s,
        iteration_s=quiet_s,
        prompt_s=prompt_s,
        stall_s=stall_s,
        queue_s=queue_s,
        capacity_wait_s=wait_s,
        running=load.running * load.ranks,
        stages_s=stages | {"prompts_of_others": stall_s},
    )


def tokens_per_iteration(drafts: FloatArray, acceptance: float) -> FloatArray:
    """Tokens that a sequence gains in an iteration: 1 + a + a^2 + ... up to the drafts (Leviathan 2023)."""
    return np.asarray((1.0 - acceptance ** (drafts + 1.0)) / (1.0 - acceptance), dtype=np.float64)
