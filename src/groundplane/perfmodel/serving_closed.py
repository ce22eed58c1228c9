"""Requests under a closed load, simulated: one engine that does both, or prefill and decode apart.

The means over a run as load generators do it: every client sends its first request at once, then the next
when one has ended, ten requests a client. The rush at the start is part of what they report. Knows no
tables of measurements.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.serving_layout import CacheCapacity
from groundplane.perfmodel.serving_loop import LoopLimits, at_plane, at_row, closed_loop, queued_s
from groundplane.perfmodel.serving_profiles import EngineProfile
from groundplane.perfmodel.serving_tables import EngineSeconds

ROUNDS: Final = 10
"""Requests that a client sends in a run (InferenceMAX: `num_prompts = 10 x concurrency`)."""

MOST_REQUESTS: Final = 5_000
_LEAST_ROUNDS: Final = 2
_ROUNDS_OF_BALANCE: Final = 6
_MOST_ENGINES: Final = 16


@dataclass(frozen=True)
class ClosedLoad:
    """A closed load on one engine: mean tokens in and out, clients, and by how much lengths differ.

    Lengths are drawn evenly within `spread` of their means (0: all alike).
    """

    prompt: float
    output: float
    clients: float
    spread: float = 0.0


@dataclass(frozen=True)
class ClosedTimes:
    """Means over the requests of a run, seconds, and output tokens a second of the engine (Little 1961)."""

    ttft_s: float
    tpot_s: float
    output_tokens_per_s: float


def closed_times(
    seconds: EngineSeconds, profile: EngineProfile, capacity: CacheCapacity, load: ClosedLoad
) -> ClosedTimes:
    """The run on one engine that takes prompts and decodes; `seconds` are its under the profile."""
    clients = max(round(load.clients), 1)
    prompt, output = _lengths(load, clients)
    limits = LoopLimits(
        chunk_tokens=int(profile.chunk_tokens),
        max_sequences=int(profile.max_sequences),
        cache_tokens=held_tokens(capacity, load),
        ranks=seconds.ranks,
        prompts_first=profile.prompts_first,
    )
    times = closed_loop(seconds, limits, prompt, output, clients, profile.request_s)
    tpot_s = float(np.mean(times.decode_s / np.maximum(output - 1.0, 1.0)))
    ttft_s = float(np.mean(times.ttft_s))
    if output.size > clients:
        first_s, later_s = float(np.mean(times.ttft_s[:clients])), float(np.mean(times.ttft_s[clients:]))
        ttft_s = profile.rush * first_s + (1.0 - profile.rush) * later_s
    ttft_s += outside_s(profile, load.prompt, prompt_alone_s(seconds, load.prompt), tpot_s)
    rate = load.clients * load.output / (ttft_s + load.output * tpot_s)
    return ClosedTimes(ttft_s, tpot_s, rate)


def split_times(
    prefill: EngineSeconds, decode: EngineSeconds, profile: EngineProfile, load: ClosedLoad,
    prefill_engines: int, decode_engines: int,
) -> ClosedTimes:  # fmt: skip
    """The run where some engines take prompts and others decode.

    Prompts queue at their engines in order of arrival, as many at a time as fit an iteration; decoding is
    never stretched by them. Clients between the two are found by balance (Little 1961).
    """
    servers = prefill_engines * prefill.ranks
    clients = max(round(load.clients), 1)
    service_s = prompt_alone_s(prefill, load.prompt)
    decoding = float(clients)
    tpot_s, ttft_s = 0.0, 0.0
    for _ in range(_ROUNDS_OF_BALANCE):
        each = max(decoding / (decode_engines * decode.ranks), 1.0)
        tpot_s = _decode_s(decode, each, load.prompt + 0.5 * load.output) / decode.tokens
        ttft_s = queued_s(clients, ROUNDS * clients, servers, service_s, load.output * tpot_s) + tpot_s
        share = load.output * tpot_s / (load.output * tpot_s + ttft_s)
        decoding = 0.5 * decoding + 0.5 * clients * share
    ttft_s += outside_s(profile, load.prompt, service_s, tpot_s) + profile.handover_s
    rate = clients * load.output / (ttft_s + load.output * tpot_s)
    return ClosedTimes(ttft_s, tpot_s, rate)


def prompt_engines(
    prefill: EngineSeconds, decode: EngineSeconds, load: ClosedLoad, decode_engines: int
) -> int:
    """The fewest engines for prompts that keep up with those that decode, as who tunes a deployment takes."""
    each = max(load.clients / (decode_engines * decode.ranks), 1.0)
    tpot_s = _decode_s(decode, each, load.prompt + 0.5 * load.output) / decode.tokens
    prompts_per_s = load.clients / (load.output * tpot_s)
    busy = prompts_per_s * prompt_alone_s(prefill, load.prompt) / prefill.ranks
    return int(np.clip(np.ceil(busy), 1, _MOST_ENGINES))


def outside_s(profile: EngineProfile, prompt: float, alone_s: float, tpot_s: float) -> float:
    """What a request waits beyond the engine's iterations: handling it, and tokens that are sent together."""
    handled_s = profile.request_s + profile.request_token_s * prompt
    return handled_s + profile.echo * alone_s + profile.first_tokens * tpot_s


def held_tokens(capacity: CacheCapacity, load: ClosedLoad) -> float:
    """Tokens of such requests that the cache holds, windows and all, in the middle of their lives."""
    tokens = load.prompt + 0.5 * load.output
    return max(capacity.num_sequences(tokens), 1.0) * tokens


@functools.lru_cache(maxsize=4096)
def _lengths(load: ClosedLoad, clients: int) -> tuple[FloatArray, FloatArray]:
    number = max(min(ROUNDS * clients, MOST_REQUESTS), _LEAST_ROUNDS * clients)
    drawn = np.random.default_rng(clients).uniform(-load.spread, load.spread, (2, number))
    return (
        np.maximum(np.round(load.prompt * (1.0 + drawn[0])), 1.0),
        np.maximum(np.round(load.output * (1.0 + drawn[1])), 1.0),
    )


def prompt_alone_s(seconds: EngineSeconds, prompt: float) -> float:
    """One prompt in an iteration of its own."""
    work_s = at_row(seconds.dense_s, prompt) + at_row(seconds.expert_s, prompt) + at_row(seconds.head_s, 1.0)
    work_s += at_plane(seconds.prompt_s, prompt, 0.0, shift=1)
    return seconds.host_s + seconds.prompt_host_s + seconds.prompts * work_s


def _decode_s(seconds: EngineSeconds, sequences: float, context: float) -> float:
    rows = sequences * seconds.tokens
    work = at_row(seconds.dense_s, rows) + at_row(seconds.expert_s, rows) + at_row(seconds.head_s, rows)
    read = at_plane(seconds.reading_s, sequences, context, shift=0)
    return seconds.host_s + seconds.host_sequence_s * sequences + work + read
