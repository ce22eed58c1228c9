"""One engine run through a list of requests: continuous batching, iteration by iteration.

Requests arrive at given times, or in a closed loop: so many clients, each sending its next request when the
last has ended. Every iteration decodes a token of each running sequence and takes prompts in order of
arrival up to its limit of tokens; or prompts go first and alone. Iterations in which nothing changes are
taken together. Deterministic. Routing, preemption, prefixes and failures are simulated in `sim`, not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.serving_tables import EngineSeconds

_LARGEST: Final = 1e30


@dataclass(frozen=True)
class LoopLimits:
    """What an engine takes at most: prompt and decode tokens an iteration, sequences and cache tokens a rank.

    `prompts_first`: iterations hold prompts or decoding sequences, never both.
    """

    chunk_tokens: int
    max_sequences: int
    cache_tokens: float
    ranks: int = 1
    prompts_first: bool = False


@dataclass(frozen=True)
class LoopTimes:
    """Seconds of each request: from arrival to first token, from first to last, and when it ended."""

    ttft_s: FloatArray
    decode_s: FloatArray
    end_s: FloatArray


def closed_loop(
    seconds: EngineSeconds, limits: LoopLimits, prompt: FloatArray, output: FloatArray, clients: int,
    think_s: float,
) -> LoopTimes:  # fmt: skip
    """Requests of `clients`, who all start at once and wait `think_s` between two requests.

    Args:
        seconds, limits: the engine.
        prompt, output: tokens of each request, in the order in which they are sent, shape (N,).
        clients: requests under way.
        think_s: between the end of a request and the arrival of the next.
    """
    arrivals = np.full(prompt.size, _LARGEST)
    arrivals[: min(clients, prompt.size)] = 0.0
    return _run(seconds, limits, prompt, output, arrivals, min(clients, prompt.size), think_s)


def open_loop(
    seconds: EngineSeconds, limits: LoopLimits, prompt: FloatArray, output: FloatArray, arrivals_s: FloatArray
) -> LoopTimes:
    """Requests that arrive at given times, in ascending order."""
    return _run(
        seconds, limits, prompt, output, np.asarray(arrivals_s, dtype=np.float64).copy(), prompt.size, 0.0
    )


def queued_s(clients: int, requests: int, servers: int, service_s: float, between_s: float) -> float:
    """Mean seconds from a request's arrival until it is served, in a closed loop.

    Args:
        clients, requests: who send how many in all, the first of each at once.
        servers: that take one request at a time, in order of arrival, for `service_s` each.
        between_s: from served to the client's next request.
    """
    from groundplane.perfmodel.serving_loop_kernel import queue_mean

    return float(queue_mean(clients, requests, servers, service_s, between_s))


def at_row(line: FloatArray, value: float) -> float:
    """A table by rows, between its points linear."""
    from groundplane.perfmodel.serving_loop_kernel import on_line

    return float(on_line(line, value))


def at_plane(table: FloatArray, first: float, second: float, *, shift: int) -> float:
    """A table on two geometric grids, between their points linear; `shift` 1: the second begins with 0."""
    from groundplane.perfmodel.serving_loop_kernel import on_plane

    return float(on_plane(table, first, second, shift))


def _run(
    seconds: EngineSeconds, limits: LoopLimits, prompt: FloatArray, output: FloatArray, arrivals: FloatArray,
    known: int, think_s: float,
) -> LoopTimes:  # fmt: skip
    steps = np.maximum(np.ceil((output - 1.0) / seconds.tokens), 0.0).astype(np.int64)
    ttft, end = _compiled()(
        seconds.dense_s, seconds.expert_s, seconds.head_s, seconds.reading_s, seconds.prompt_s,
        np.array([
            seconds.host_s, seconds.host_sequence_s, seconds.prompts, seconds.tokens, seconds.prompt_host_s,
        ]),
        np.array([limits.chunk_tokens, limits.max_sequences, limits.ranks, int(limits.prompts_first), known]),
        float(limits.cache_tokens), float(think_s),
        np.ascontiguousarray(prompt, dtype=np.float64), np.ascontiguousarray(output, dtype=np.float64),
        steps, arrivals,
    )  # fmt: skip
    return LoopTimes(ttft, end - (arrivals + ttft), end)


def _compiled() -> Any:
    """The loop, compiled at first use."""
    from groundplane.perfmodel.serving_loop_kernel import run_loop

    return run_loop
