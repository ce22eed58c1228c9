"""Generated requests: arrivals, lengths, prompts that begin alike, and conversations, with block hashes.

A block's hash stands for the prompt up to its end: it is made of whose text the block is (a shared prefix,
a conversation, one request) and its place, so that equal hashes mean equal beginnings and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.sim.serving.workload_arrivals import arrivals_s
from groundplane.sim.serving.workload_lengths import drawn_tokens
from groundplane.sim.serving.workload_rows import IntArray, RequestRows
from groundplane.spec.errors import InputError
from groundplane.spec.request_trace import ArrivalSpec, LengthSpec, PrefixSpec, SessionSpec, WorkloadSpec

MAX_HASHES: Final = 200_000_000
"""Most block hashes of one workload: 1.6 GB of them."""


@dataclass
class _Turns:
    """Requests before their hashes: `owner` is the conversation (or the request itself)."""

    arrival_s: FloatArray
    prompt: IntArray
    output: IntArray
    owner: IntArray


def generate(spec: WorkloadSpec, rng: np.random.Generator) -> RequestRows:
    """The requests of a spec with `arrivals`, in order.

    Raises:
        InputError: no request within the duration, or more hashes than memory should hold.
    """
    arrivals, prompt, output = spec.arrivals, spec.prompt, spec.output
    if arrivals is None or prompt is None or output is None:
        raise InputError("needs arrivals, prompt and output", field="arrivals")
    duration = spec.duration_s
    if spec.sessions is None:
        times = arrivals_s(arrivals, rng, count=spec.requests, duration_s=duration)
        count = len(times)
        turns = _Turns(
            times, drawn_tokens(prompt, rng, count), drawn_tokens(output, rng, count), np.arange(count)
        )
    else:
        turns = _sessions(arrivals, spec.sessions, prompt, output, rng, spec.requests, duration)
    if not len(turns.arrival_s):
        raise InputError("leaves no request: ask for more", field="duration", value=duration)
    rows = RequestRows(
        np.round((turns.arrival_s - turns.arrival_s[0]) * 1e9).astype(np.int64), turns.prompt, turns.output
    )
    if spec.sessions is not None:
        rows.session = turns.owner
    if spec.prefix is not None or spec.sessions is not None:
        _add_hashes(rows, turns.owner, spec.prefix, spec.block_tokens, rng)
    return rows


def _sessions(
    arrivals: ArrivalSpec, spec: SessionSpec, prompt: LengthSpec, output: LengthSpec,
    rng: np.random.Generator, count: int | None, duration_s: float | None,
) -> _Turns:  # fmt: skip
    """Turns of conversations that began before time 0 and after: `arrivals.rate` counts requests."""
    seconds = (spec.think_s + output.mean * spec.token_time_s) * max(spec.turns - 1.0, 0.0)
    run_in_s = 5.0 * seconds
    horizon_s = duration_s if duration_s is not None else float(count or 1) / arrivals.rate
    margin = 1.1
    while True:
        span_s = run_in_s + horizon_s * margin + 8.0 * spec.turns / arrivals.rate
        begins = arrivals_s(
            ArrivalSpec(
                arrivals.rate / spec.turns, arrivals.burstiness, arrivals.diurnal, arrivals.period_s,
                arrivals.peak_s + run_in_s,
            ),
            rng, duration_s=span_s,
        )  # fmt: skip
        turns = _turns(begins, spec, prompt, output, rng)
        kept = turns.arrival_s >= run_in_s
        if duration_s is not None:
            kept &= turns.arrival_s < run_in_s + duration_s
        # Conversations cut at the context limit are shorter, so that some draws give too few.
        if count is None or int(kept.sum()) >= count or duration_s is not None or margin > 100.0:
            break
        margin *= 1.5
    index = np.flatnonzero(kept)
    index = index[np.argsort(turns.arrival_s[index], kind="stable")][:count]
    return _Turns(
        turns.arrival_s[index] - run_in_s, turns.prompt[index], turns.output[index], turns.owner[index]
    )


def _turns(
    begins: FloatArray, spec: SessionSpec, prompt: LengthSpec, output: LengthSpec, rng: np.random.Generator
) -> _Turns:
    turns = rng.geometric(1.0 / spec.turns, len(begins)) if len(begins) else np.zeros(0, dtype=np.int64)
    owner = np.repeat(np.arange(len(begins)), turns)
    asked = drawn_tokens(prompt, rng, len(owner))
    answered = drawn_tokens(output, rng, len(owner))
    think_s = rng.exponential(spec.think_s, len(owner)) if spec.think_s > 0 else np.zeros(len(owner))
    first = np.cumsum(turns) - turns
    history = _before(asked + answered, first, turns)
    waited = _before(think_s + answered * spec.token_time_s, first, turns)
    whole = history + asked
    fits = whole + answered <= spec.context_limit
    # A conversation that reached the limit has ended, also where a later turn would be short enough.
    fits &= _before((~fits).astype(np.int64), first, turns) == 0
    return _Turns(
        (begins[owner] + waited)[fits],
        whole[fits].astype(np.int64),
        answered[fits],
        owner[fits].astype(np.int64),
    )


def _before(values: np.ndarray, first: IntArray, counts: IntArray) -> np.ndarray:
    """Sum of the values before each one within its own conversation."""
    running = np.cumsum(values) - values
    return np.asarray(running - np.repeat(running[first] if len(first) else running[:0], counts))


def _add_hashes(
    rows: RequestRows, owner: IntArray, prefix: PrefixSpec | None, block_tokens: int, rng: np.random.Generator
) -> None:
    group = np.full(len(rows), -1, dtype=np.int64)
    shared_tokens = 0
    if prefix is not None:
        weights = np.arange(1, prefix.groups + 1, dtype=np.float64) ** -prefix.skew
        owners = int(owner.max()) + 1
        drawn = np.searchsorted(np.cumsum(weights), rng.random(owners) * weights.sum(), side="right")
        drawn = np.minimum(drawn, prefix.groups - 1)
        drawn[rng.random(owners) >= prefix.share] = -1
        group = drawn[owner]
        shared_tokens = prefix.tokens
        rows.prompt = rows.prompt + np.where(group >= 0, shared_tokens, 0)
    # The next turn of a conversation finds what was answered in this one.
    counts = (rows.prompt + (rows.output if len(rows.session) else 0)) // block_tokens
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    if int(start[-1]) > MAX_HASHES:
        raise InputError(
            f"gives {int(start[-1]):,} block hashes, more than {MAX_HASHES:,}",
            field="block_tokens",
            value=block_tokens,
        )
    place = np.arange(start[-1], dtype=np.int64) - np.repeat(start[:-1], counts)
    inside = (place + 1) * block_tokens <= shared_tokens
    whose = np.repeat(owner, counts) * 2 + 1
    shared = np.repeat(group, counts)
    whose = np.where(inside & (shared >= 0), shared * 2, whose)
    rows.block_tokens, rows.block_start = block_tokens, start
    rows.block_hash = mixed(whose, place)


def mixed(first: IntArray, second: IntArray) -> IntArray:
    """A 63-bit hash of two numbers (SplitMix64's finaliser, Steele 2014, twice)."""
    with np.errstate(over="ignore"):
        value = _finalised(first.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1))
        value = _finalised(value + second.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03))
    return (value >> np.uint64(1)).astype(np.int64)


def _finalised(value: np.ndarray) -> np.ndarray:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(value ^ (value >> np.uint64(31)))
