"""How long one iteration of an engine takes, as a table that a simulation can ask a million times a second.

The iteration model (`perfmodel`) prices grids of batches once; in between is interpolated, in integers, so
that the plain and the compiled simulator agree to the nanosecond. Three parts add up:

* all that depends on how many sequences decode and how many prompt tokens join them (by rows, without
  interpolation: kernels step where tiles fill up);
* reading the cache for the decoding sequences, by their number and mean context;
* attention over prompts, for each piece of one by its tokens and those before it in the cache.

Most grids are geometric: whole numbers up to 8, then eight steps an octave.
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
KNOT_ERROR: Final = 0.002
MAX_KNOTS: Final = 2048


@dataclass(frozen=True)
class IterationTable:
    """Nanoseconds of an iteration's parts.

    `decode_ns[n]` for n decoding sequences alone; `rows_ns[r]` for r prompt tokens of one prompt alone;
    `extra_ns[cell(n), cell(p)]` what n sequences beside p prompt tokens take beyond `rows_ns[n + p]` (may be
    negative); `attend_ns[cell(n), cell(16 c)]` for reading n caches of c tokens on average;
    `prompt_ns[prompt_cell[q], cell(k)]` for `prompt_knots[prompt_cell[q]]` tokens of a prompt after k in the
    cache, between knots linear. No sequence has more than `max_context` tokens.
    """

    decode_ns: IntArray
    rows_ns: IntArray
    extra_ns: IntArray
    attend_ns: IntArray
    prompt_knots: IntArray
    prompt_cell: IntArray
    prompt_ns: IntArray
    max_context: int

    @property
    def max_sequences(self) -> int:
        """Most sequences of an iteration."""
        return len(self.decode_ns) - 1

    @property
    def max_batched_tokens(self) -> int:
        """Most prompt tokens of an iteration."""
        return len(self.prompt_cell) - 1

    def iteration_ns(self, num_decode: int, context_tokens: int, pieces: Pieces) -> int:
        """Time of one iteration, at least 1.

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
            total = int(self.rows_ns[num_decode + rows])
            total += _look_up(self.extra_ns, num_decode + others, rows - others)
        if num_decode:
            total += _look_up(self.attend_ns, num_decode, (context_tokens << CONTEXT_BITS) // num_decode)
        for tokens, before in pieces:
            total += self._prompt_ns(tokens, before)
        return max(total, 1)

    def _prompt_ns(self, tokens: int, before: int) -> int:
        row = int(self.prompt_cell[tokens])
        begin = int(self.prompt_knots[row])
        low = _between(self.prompt_ns[row], before)
        if tokens == begin:
            return low
        high = _between(self.prompt_ns[row + 1], before)
        return low + (high - low) * (tokens - begin) // (int(self.prompt_knots[row + 1]) - begin)


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
    row, shift = cell(first), _shift(first)
    rest = first & ((1 << shift) - 1)
    low = _between(table[row], second)
    if rest == 0:
        return low
    return low + ((_between(table[row + 1], second) - low) * rest >> shift)


def _between(line: IntArray, value: int) -> int:
    """A line of a table at a value of its geometric grid, between cells linear."""
    place, shift = cell(value), _shift(value)
    low, high = int(line[place]), int(line[place + 1])
    return low + ((high - low) * (value & ((1 << shift) - 1)) >> shift)


def _shift(value: int) -> int:
    return max(value.bit_length() - 1 - SUB_BITS, 0)


def tabulate(
    parts: PriceParts, *, max_sequences: int, max_batched_tokens: int, max_context: int
) -> IterationTable:
    """The table of an iteration model.

    Args:
        parts: the model.
        max_sequences: most sequences of an iteration.
        max_batched_tokens: most tokens of one, prompts' and decoding sequences'.
        max_context: most tokens in the cache of one sequence.

    Raises:
        InputError: the model gives a time that is negative, not finite, or above 1,000 s.
    """
    one, none = np.ones(1), np.zeros(1)
    sequences = np.arange(max_sequences + 1, dtype=np.float64)
    # Decoding alone, without what is read of the cache: that is another table's.
    decode, _, _ = parts(sequences, one, none, none, one)
    most_rows = int(knots(max_sequences)[-1] + knots(max_batched_tokens)[-1])
    dense = np.arange(most_rows + 1, dtype=np.float64)
    rows, _, _ = parts(none, one, np.maximum(dense, 1.0), none, one)
    some, prompts = knots(max_sequences), np.maximum(knots(max_batched_tokens), 1)
    mixed, _, _ = parts(some[:, None].astype(np.float64), one, prompts[None, :].astype(np.float64), none, one)
    contexts = knots(max_context << CONTEXT_BITS).astype(np.float64) / (1 << CONTEXT_BITS)
    _, attend, _ = parts(some[:, None].astype(np.float64), contexts[None, :], none, none, one)
    befores = knots(max_context).astype(np.float64)
    marks = _prompt_knots(parts, max_batched_tokens, max_context)
    _, _, prompt = parts(none, one, np.maximum(marks, 1)[:, None].astype(np.float64), befores[None, :], one)
    rows_ns = _nanoseconds(rows, (len(dense),))
    return IterationTable(
        decode_ns=_nanoseconds(decode, (len(sequences),)),
        rows_ns=rows_ns,
        extra_ns=_nanoseconds(mixed, (len(some), len(prompts))) - rows_ns[some[:, None] + prompts[None, :]],
        attend_ns=_nanoseconds(attend, (len(some), len(contexts))),
        prompt_knots=marks,
        prompt_cell=np.searchsorted(marks, np.arange(max_batched_tokens + 1), side="right") - 1,
        prompt_ns=_nanoseconds(prompt, (len(marks), len(befores))),
        max_context=max_context,
    )


def _prompt_knots(parts: PriceParts, most: int, max_context: int) -> IntArray:
    """Numbers of tokens between which attention over a prompt is straight to `KNOT_ERROR`.

    Kernels step at multiples of their blocks and where they change; knots are put where a straight line is
    furthest off, until it is near enough at three contexts, or there are `MAX_KNOTS`.
    """
    tokens = np.arange(1, most + 1, dtype=np.float64)
    contexts = np.array([0.0, max_context / 16.0, float(max_context)])
    _, _, exact = parts(np.zeros(1), np.ones(1), tokens[:, None], contexts[None, :], np.ones(1))
    exact = np.broadcast_to(exact, (most, len(contexts)))
    chosen = {1, most}
    open_spans = [(1, most)]
    while open_spans and len(chosen) < MAX_KNOTS:
        begin, end = open_spans.pop()
        if end - begin < 2:
            continue
        inside = exact[begin - 1 : end]
        share = np.linspace(0.0, 1.0, end - begin + 1)[:, None]
        straight = inside[0] * (1.0 - share) + inside[-1] * share
        error = np.max(np.abs(straight - inside) / np.maximum(inside, 1e-9), axis=1)
        worst = int(np.argmax(error))
        if error[worst] > KNOT_ERROR:
            chosen.add(begin + worst)
            open_spans += [(begin, begin + worst), (begin + worst, end)]
    return np.array([0, *sorted(chosen), most + 1], dtype=np.int64)


def linear_table(
    *,
    base_ns: int = 0,
    sequence_ns: int = 0,
    context_ps: int = 0,
    prompt_token_ns: int = 0,
    max_sequences: int = 256,
    max_batched_tokens: int = 8192,
    max_context: int = 131072,
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
