"""Another load from the same requests, as bursty as they were.

`compress` divides every time by the factor: gaps keep their coefficient of variation exactly, as do order,
lengths and shared prefixes; the recording gets shorter. `layers` keeps the duration: each request comes
`factor` times (the fraction by whole conversations), copies within a second of it, so that the counts in
windows longer than that keep their coefficient of variation. A sum of shifted recordings would not: it comes
nearer to Poisson with every layer.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from groundplane.sim.serving.workload_generate import mixed
from groundplane.sim.serving.workload_rows import IntArray, RequestRows
from groundplane.spec.errors import InputError
from groundplane.spec.request_trace import MAX_REQUESTS, ScaleSpec

COPY_WITHIN_NS: Final = 1_000_000_000
"""A copy arrives at most so long after its original, and before the request that follows it."""

COMMON_SHARE: Final = 0.05
"""A block that more than this share of requests hold is common text: copies share it too."""


def scaled(rows: RequestRows, spec: ScaleSpec, rng: np.random.Generator) -> RequestRows:
    """The requests at another rate.

    Raises:
        InputError: a rate for requests that all come at once, or more requests than a workload may have.
    """
    factor = spec.factor
    if factor is None:
        if rows.rate_per_s <= 0 or spec.rate is None:
            raise InputError("needs requests at different times, to have a rate", field="scale.rate")
        factor = spec.rate / rows.rate_per_s
    if len(rows) * (factor if spec.how == "layers" else 1.0) > MAX_REQUESTS:
        raise InputError(f"gives more than {MAX_REQUESTS:,} requests", field="scale", value=factor)
    if spec.how == "compress":
        result = rows.take(np.arange(len(rows)))
        result.arrival_ns = np.rint(rows.arrival_ns / factor).astype(np.int64)
        result.notes.append(f"times divided by {factor:.6g}; gaps keep their coefficient of variation")
        return result
    return _layers(rows, factor, rng)


def _layers(rows: RequestRows, factor: float, rng: np.random.Generator) -> RequestRows:
    whole = int(factor)
    family = families(rows)
    num_families = int(family.max()) + 1
    # So many of them exactly: independent draws would make the load itself uncertain.
    chosen = rng.permutation(num_families) < round((factor - whole) * num_families)
    parts = [np.arange(len(rows))] * whole + [np.flatnonzero(chosen[family])]
    index = np.concatenate(parts).astype(np.int64)
    if not len(index):
        raise InputError("leaves no request", field="scale", value=factor)
    layer = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    gaps = np.minimum(np.append(np.diff(rows.arrival_ns), COPY_WITHIN_NS), COPY_WITHIN_NS)[index]
    delay = np.where(layer > 0, rng.random(len(index)) * gaps, 0.0).astype(np.int64)
    first = rows.arrival_ns[index].min()
    result = rows.take(index)
    result.arrival_ns = rows.arrival_ns[index] - first + delay
    _separate(result, rows, layer)
    result = result.in_order()
    result.notes.append(
        f"each request {factor:.6g} times, copies within {COPY_WITHIN_NS / 1e9:g} s of it; counts in longer "
        "windows keep their coefficient of variation"
    )
    return result


def _separate(result: RequestRows, rows: RequestRows, layer: IntArray) -> None:
    """Gives copies conversations and blocks of their own, but for text that is common to many requests."""
    if len(result.session):
        span = int(rows.session.max()) + 1
        result.session = np.where(result.session >= 0, result.session + layer * span, -1)
    if not len(result.block_hash):
        return
    counts = np.diff(result.block_start)
    of_block = np.repeat(layer, counts)
    known, place, times = np.unique(result.block_hash, return_inverse=True, return_counts=True)
    common = (times > COMMON_SHARE * len(result))[place]
    own = mixed(known[place], of_block)
    result.block_hash = np.where(common | (of_block == 0), result.block_hash, own)


def families(rows: RequestRows) -> IntArray:
    """(n,) ids from 0: requests of one conversation, or whose prompts begin alike beyond common text."""
    if len(rows.session) and (rows.session >= 0).any():
        alone = np.arange(len(rows)) + int(rows.session.max()) + 1
        key = np.where(rows.session >= 0, rows.session, alone)
    elif len(rows.block_start):
        key = _by_first_rare_block(rows)
    else:
        return np.arange(len(rows))
    return np.asarray(np.unique(key, return_inverse=True)[1], dtype=np.int64)


def _by_first_rare_block(rows: RequestRows) -> IntArray:
    _, place, times = np.unique(rows.block_hash, return_inverse=True, return_counts=True)
    rare = (times <= COMMON_SHARE * len(rows))[place]
    counts = np.diff(rows.block_start)
    owner = np.repeat(np.arange(len(rows)), counts)
    # Requests without a rare block are families of their own, numbered behind all blocks.
    key = np.arange(len(rows)) + len(times)
    places = np.flatnonzero(rare)[::-1]
    key[owner[places]] = place[places]
    return key
