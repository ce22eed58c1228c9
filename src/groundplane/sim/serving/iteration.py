"""How long one iteration of an engine takes, as a table that a simulation can ask a million times a second.

The iteration model (`perfmodel`) prices grids of batches once; in between is interpolated, in integers, so
that the plain and the compiled simulator agree to the nanosecond. Three parts add up:

* all that depends on how many sequences decode and how many prompt tokens join them;
* reading the cache for the decoding sequences, by their number and mean context;
* attention over prompts, for each piece of one by its tokens and those before it in the cache.

Grids are geometric: whole numbers up to 8, then eight steps an octave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from groundplane.spec.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

Pieces = list[tuple[int, int]]
"""(tokens, tokens before them in the cache) of each piece of a prompt in an iteration."""

PriceParts = Callable[
    [FloatArray, FloatArray, FloatArray, FloatArray, FloatArray], tuple[FloatArray, FloatArray, FloatArray]
]
"""`(decode, mean context, prefill, prompt context, prompts)` to seconds of (all else, cache reads of decoding
sequences, attention over prompts); arrays broadcast."""

SUB_BITS: Final = 3
CONTEXT_BITS: Final = 4
"""Fraction bits of the mean context: it is held in sixteenths of a token."""

MAX_ITERATION_NS: Final = 10**12


@dataclass(frozen=True)
class IterationTable:
    """Nanoseconds of an iteration's parts.

    `decode_ns[n]` for n decoding sequences alone; `mixed_ns[cell(n), cell(p)]` for n of them beside p prompt
    tokens of one prompt; `attend_ns[cell(n), cell(16 c)]` for reading n caches of c tokens on average;
    `prompt_ns[cell(q), cell(k)]` for q tokens of a prompt after k in the cache.
    """

    decode_ns: IntArray
    mixed_ns: IntArray
    attend_ns: IntArray
    prompt_ns: IntArray

    @property
    def max_sequences(self) -> int:
        """Most sequences of an iteration."""
        return len(self.decode_ns) - 1

    def iteration_ns(self, num_decode: int, context_tokens: int, pieces: Pieces) -> int:
        """Time of one iteration.

        Args:
            num_decode: sequences that get one token.
            context_tokens: tokens in the caches of all of them together.
            pieces: of prompts; their number and `num_decode` are together at most `max_sequences`.
        """
        if not pieces:
            total = int(self.decode_ns[num_decode])
        else:
            # Another prompt's last row is one more row of the head, as a decoding sequence's is.
            rows = sum(tokens for tokens, _ in pieces)
            others = len(pieces) - 1
            total = _look_up(self.mixed_ns, num_decode + others, rows - others)
        if num_decode:
            mean = (context_tokens << CONTEXT_BITS) // num_decode
            total += _look_up(self.attend_ns, num_decode, mean)
        for tokens, before in pieces:
            total += _look_up(self.prompt_ns, tokens, before)
        return max(total, 1)


def cell(value: int) -> int:
    """The grid cell that a whole number lies in."""
    shift = max(value.bit_length() - 1 - SUB_BITS, 0)
    return (shift << SUB_BITS) + (value >> shift)


def knots(most: int) -> IntArray:
    """The grid's values up to the first that is not below `most`, and one more to interpolate towards."""
    values = [0]
    while len(values) <= cell(most) + 1:
        last = len(values)
        shift = max((last >> SUB_BITS) - 1, 0)
        values.append((last - (shift << SUB_BITS)) << shift)
    return np.array(values, dtype=np.int64)


def _look_up(table: IntArray, first: int, second: int) -> int:
    shift_1 = max(first.bit_length() - 1 - SUB_BITS, 0)
    shift_2 = max(second.bit_length() - 1 - SUB_BITS, 0)
    row, column = cell(first), cell(second)
    rest_1, rest_2 = first & ((1 << shift_1) - 1), second & ((1 << shift_2) - 1)
    low, high = int(table[row, column]), int(table[row, column + 1])
    before = low + ((high - low) * rest_2 >> shift_2)
    if rest_1 == 0:
        return before
    low, high = int(table[row + 1, column]), int(table[row + 1, column + 1])
    after = low + ((high - low) * rest_2 >> shift_2)
    return before + ((after - before) * rest_1 >> shift_1)


def tabulate(
    parts: PriceParts, *, max_sequences: int, max_batched_tokens: int, max_context: int
) -> IterationTable:
    """The table of an iteration model.

    Args:
        parts: the model.
        max_sequences: most sequences of an iteration.
        max_batched_tokens: most prompt tokens of one.
        max_context: most tokens in the cache of one sequence.

    Raises:
        InputError: the model gives a time that is negative, not finite, or above 1,000 s.
    """
    one, none = np.ones(1), np.zeros(1)
    sequences = np.arange(max_sequences + 1, dtype=np.float64)
    # Decoding alone, without what is read of the cache: that is the second table's.
    decode, _, _ = parts(sequences, none + 1.0, none, none, one)
    some = knots(max_sequences).astype(np.float64)
    prompts = np.maximum(knots(max_batched_tokens), 1).astype(np.float64)
    mixed, _, _ = parts(some[:, None], none + 1.0, prompts[None, :], none, one)
    contexts = knots(max_context << CONTEXT_BITS).astype(np.float64) / (1 << CONTEXT_BITS)
    _, attend, _ = parts(some[:, None], contexts[None, :], none, none, one)
    befores = knots(max_context).astype(np.float64)
    _, _, prompt = parts(none, none + 1.0, prompts[:, None], befores[None, :], one)
    shapes = ((len(some), len(prompts)), (len(some), len(contexts)), (len(prompts), len(befores)))
    return IterationTable(
        _nanoseconds(decode, (len(sequences),)),
        _nanoseconds(mixed, shapes[0]),
        _nanoseconds(attend, shapes[1]),
        _nanoseconds(prompt, shapes[2]),
    )


def linear_table(
    *,
    base_ns: int = 0,
    sequence_ns: int = 0,
    context_ps: int = 0,
    prompt_token_ns: int = 0,
    max_sequences: int = 1024,
    max_batched_tokens: int = 16384,
    max_context: int = 1 << 20,
) -> IterationTable:
    """The table of an iteration that takes so much, for each sequence, context token and prompt token more.

    What a queue with a known answer, or a chip of which only two numbers are known, needs.
    """

    def parts(
        decode: FloatArray, context: FloatArray, prefill: FloatArray, before: FloatArray, _: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        rest = base_ns + sequence_ns * decode + prompt_token_ns * prefill + 0.0 * before
        return rest * 1e-9, context_ps * decode * context * 1e-12, 0.0 * (prefill + before)

    return tabulate(
        parts, max_sequences=max_sequences, max_batched_tokens=max_batched_tokens, max_context=max_context
    )


def _nanoseconds(seconds: FloatArray, shape: tuple[int, ...]) -> IntArray:
    values = np.broadcast_to(seconds * 1e9, shape)
    if not (np.isfinite(values).all() and (values >= 0).all() and (values <= MAX_ITERATION_NS).all()):
        raise InputError("must take 0 to 1,000 s", field="iteration")
    return np.ascontiguousarray(np.rint(values), dtype=np.int64)
