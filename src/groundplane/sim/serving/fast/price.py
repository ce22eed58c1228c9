"""Time of an iteration: `IterationTable.iteration_ns`, compiled, on the tables of all pools in one array."""

# mypy: disable-error-code="no-any-return"
# (numpy types an element as Any)

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.compiled import compiled
from groundplane.sim.serving.iteration import CONTEXT_BITS, SUB_BITS, IterationTable
from groundplane.sim.serving.outcome import IntArray


def make_prices(tables: Sequence[IterationTable]) -> tuple[IntArray, list[dict[int, int]]]:
    """All tables in one array, and for each where its parts begin and how wide their rows are."""
    parts: list[IntArray] = []
    found: list[dict[int, int]] = []
    length = 0
    for table in tables:
        found.append(
            {
                c.EXTRA_WIDTH: table.extra_ns.shape[1],
                c.ATTEND_WIDTH: table.attend_ns.shape[1],
                c.PROMPT_WIDTH: table.prompt_ns.shape[1],
            }
        )
        for column, part in (
            (c.DECODE_AT, table.decode_ns),
            (c.ROWS_AT, table.rows_ns),
            (c.EXTRA_AT, table.extra_ns),
            (c.ATTEND_AT, table.attend_ns),
            (c.KNOTS_AT, table.prompt_knots),
            (c.CELLS_AT, table.prompt_cell),
            (c.PROMPT_AT, table.prompt_ns),
        ):
            found[-1][column] = length
            parts.append(part.ravel().astype(np.int64))
            length += part.size
    return np.concatenate(parts), found


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
def between(prices: IntArray, begin: int, value: int) -> int:
    """A line of a table, which begins there, at a value of its geometric grid."""
    shift = max(log2_floor(value) - SUB_BITS, 0)
    place = begin + (shift << SUB_BITS) + (value >> shift)
    low = prices[place]
    return low + ((prices[place + 1] - low) * (value & ((1 << shift) - 1)) >> shift)


@compiled
def look_up(prices: IntArray, begin: int, width: int, first: int, second: int) -> int:
    """A table, which begins there, at values of its geometric grids."""
    shift = max(log2_floor(first) - SUB_BITS, 0)
    line = begin + width * ((shift << SUB_BITS) + (first >> shift))
    rest = first & ((1 << shift) - 1)
    low = between(prices, line, second)
    if rest == 0:
        return low
    return low + ((between(prices, line + width, second) - low) * rest >> shift)


@compiled
def attend_ns(prices: IntArray, replica: IntArray, num_decode: int, context: int) -> int:
    """Reading the caches of the sequences that decode; `replica` is a replica's row."""
    mean = (context << CONTEXT_BITS) // num_decode
    return look_up(prices, replica[c.ATTEND_AT], replica[c.ATTEND_WIDTH], num_decode, mean)


@compiled
def rows_ns(prices: IntArray, replica: IntArray, num_decode: int, num_pieces: int, tokens: int) -> int:
    """All of an iteration with prompts that is not attention."""
    others = num_pieces - 1
    begin, width = replica[c.EXTRA_AT], replica[c.EXTRA_WIDTH]
    extra = look_up(prices, begin, width, num_decode + others, tokens - others)
    return prices[replica[c.ROWS_AT] + num_decode + tokens] + extra


@compiled
def piece_ns(prices: IntArray, replica: IntArray, tokens: int, computed: int) -> int:
    """Attention over a piece of a prompt."""
    row = prices[replica[c.CELLS_AT] + tokens]
    begin = prices[replica[c.KNOTS_AT] + row]
    line = replica[c.PROMPT_AT] + row * replica[c.PROMPT_WIDTH]
    low = between(prices, line, computed)
    if tokens == begin:
        return low
    high = between(prices, line + replica[c.PROMPT_WIDTH], computed)
    return low + (high - low) * (tokens - begin) // (prices[replica[c.KNOTS_AT] + row + 1] - begin)
