"""Time of an iteration: `IterationTable.iteration_ns`, compiled."""

# mypy: disable-error-code="no-any-return"
# (numpy types an element as Any)

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from groundplane.sim.serving.fast.compiled import compiled
from groundplane.sim.serving.iteration import CONTEXT_BITS, SUB_BITS, IterationTable
from groundplane.sim.serving.outcome import IntArray


class Prices(NamedTuple):
    """Tables of all pools, each with one more dimension in front than in `IterationTable`."""

    decode: IntArray
    rows: IntArray
    extra: IntArray
    attend: IntArray
    knots: IntArray
    cells: IntArray
    prompt: IntArray


def make_prices(tables: Sequence[IterationTable]) -> Prices:
    """Tables as arrays of one shape; what is beyond a smaller one's bounds is never read."""

    def stacked(name: str) -> IntArray:
        parts = [getattr(table, name) for table in tables]
        shape = np.max([part.shape for part in parts], axis=0)
        joined = np.zeros((len(parts), *shape), dtype=np.int64)
        for whole, part in zip(joined, parts, strict=True):
            whole[tuple(slice(0, size) for size in part.shape)] = part
        return joined

    return Prices(
        *(
            stacked(name)
            for name in (
                "decode_ns", "rows_ns", "extra_ns", "attend_ns", "prompt_knots", "prompt_cell", "prompt_ns",
            )
        )
    )  # fmt: skip


@compiled
def log2_floor(value: int) -> int:
    """Position of the highest bit of a positive number below 2^63; 0 for 0."""
    bits = 0
    for step in (32, 16, 8, 4, 2, 1):
        if value >> step:
            value >>= step
            bits += step
    return bits


@compiled
def between(line: IntArray, value: int) -> int:
    """A line of a table at a value of its geometric grid."""
    shift = max(log2_floor(value) - SUB_BITS, 0)
    place = (shift << SUB_BITS) + (value >> shift)
    low = line[place]
    return low + ((line[place + 1] - low) * (value & ((1 << shift) - 1)) >> shift)


@compiled
def look_up(table: IntArray, first: int, second: int) -> int:
    """A table at values of its geometric grids."""
    shift = max(log2_floor(first) - SUB_BITS, 0)
    row = (shift << SUB_BITS) + (first >> shift)
    rest = first & ((1 << shift) - 1)
    low = between(table[row], second)
    if rest == 0:
        return low
    return low + ((between(table[row + 1], second) - low) * rest >> shift)


@compiled
def attend_ns(prices: Prices, pool: int, num_decode: int, context: int) -> int:
    """Reading the caches of the sequences that decode."""
    return look_up(prices.attend[pool], num_decode, (context << CONTEXT_BITS) // num_decode)


@compiled
def rows_ns(prices: Prices, pool: int, num_decode: int, num_pieces: int, tokens: int) -> int:
    """All of an iteration with prompts that is not attention."""
    others = num_pieces - 1
    extra = look_up(prices.extra[pool], num_decode + others, tokens - others)
    return prices.rows[pool, num_decode + tokens] + extra


@compiled
def piece_ns(prices: Prices, pool: int, tokens: int, computed: int) -> int:
    """Attention over a piece of a prompt."""
    row = prices.cells[pool, tokens]
    begin = prices.knots[pool, row]
    low = between(prices.prompt[pool, row], computed)
    if tokens == begin:
        return low
    high = between(prices.prompt[pool, row + 1], computed)
    return low + (high - low) * (tokens - begin) // (prices.knots[pool, row + 1] - begin)
