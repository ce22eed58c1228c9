"""Searches all layouts of a training job and keeps the best, without pricing what cannot be better.

Every layout of the space is looked at. Two things let one go without its full price, and neither can drop a
layout that belongs in the answer: it does not fit into memory; or a lower bound of its time is above the time
of the last one kept, and some layout already priced is at least as fast as that bound and needs no more
memory.

Ties are broken by the order of the space, so the answer does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.strategy import Layouts
from groundplane.spec.errors import InputError, unknown_name

OBJECTIVES: Final = ("time", "memory")
"""What the list of best layouts is ordered by: seconds of a step (tokens/s, MFU and cost follow from it on a
given number of chips), or the memory left free."""

MAX_BLOCK: Final = 65_536
"""Layouts priced in one call: their arrays stay in the cache of a core."""


class LayoutPricer(Protocol):
    """Prices layouts of one job on one cluster: methods take N layouts and give arrays of shape (N,)."""

    @property
    def memory_limit_bytes(self) -> float:
        """What a rank may use."""
        ...

    def memory_bytes(self, layouts: Layouts) -> FloatArray:
        """Peak of the fullest rank."""
        ...

    def lower_bound_s(self, layouts: Layouts) -> FloatArray:
        """Seconds that a step takes at least; never above `step_s`, and much quicker to have."""
        ...

    def step_s(self, layouts: Layouts) -> FloatArray:
        """Seconds of a step."""
        ...


@dataclass(frozen=True)
class Found:
    """Layouts with their prices, in the order asked for; arrays of shape (N,)."""

    layouts: Layouts
    step_s: FloatArray
    memory_bytes: FloatArray

    def __len__(self) -> int:
        return len(self.step_s)


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        best: the best layouts by the objective.
        front: the Pareto front of step time and memory, fastest first.
        num_layouts: all that were looked at.
        num_too_large: did not fit into memory.
        num_bounded: let go by their lower bound.
        num_priced: priced in full.
        least_memory_bytes: what the smallest layout needs, also when nothing fits.
        smallest: that layout, alone.
    """

    best: Found
    front: Found
    num_layouts: int
    num_too_large: int
    num_bounded: int
    num_priced: int
    least_memory_bytes: float
    smallest: Layouts


def search(
    blocks: Iterable[Layouts],
    pricer: LayoutPricer,
    *,
    top: int = 10,
    objective: str = "time",
    workers: int = 2,
    prune: bool = True,
) -> SearchResult:
    """The best layouts of all blocks, and the Pareto front of time and memory.

    Args:
        blocks: the space, as `LayoutSpace.blocks` gives it.
        pricer: of the job on the cluster.
        top: how many layouts to keep.
        objective: see `OBJECTIVES`.
        workers: threads; the arithmetic runs outside the interpreter's lock.
        prune: without it every layout that fits is priced (for tests and benchmarks).

    Raises:
        InputError: no layout at all is feasible, or a wrong argument.
    """
    if top < 1:
        raise InputError("must be a positive integer", field="top", value=top)
    if objective not in OBJECTIVES:
        raise unknown_name("objective", objective, OBJECTIVES)
    state = _State(top, objective)
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        for wave in _waves(_cut(blocks), max(1, workers)):
            # All of a wave see the same incumbents, so that what is priced does not depend on timing.
            limits = state.limits() if prune else None
            for outcome in pool.map(lambda block, at=limits: _price_block(block, pricer, at), wave):
                state.add(outcome)
    return state.result()


@dataclass(frozen=True)
class _Limits:
    """What a layout must beat: the last kept time, and the front as sorted times and their memory."""

    kept_s: float
    kept_bytes: float
    by_memory: bool
    front_s: FloatArray
    front_bytes: FloatArray

    def may_matter(self, bound_s: FloatArray, memory_bytes: FloatArray) -> npt.NDArray[np.bool_]:
        """Which layouts could still be among the best or on the front."""
        kept = memory_bytes <= self.kept_bytes if self.by_memory else bound_s <= self.kept_s
        if not len(self.front_s):
            return np.ones(len(bound_s), dtype=bool)
        # Memory on the front falls with time, so the last point not slower than the bound needs least.
        place = np.searchsorted(self.front_s, bound_s, side="right") - 1
        beaten = (place >= 0) & (self.front_bytes[np.maximum(place, 0)] <= memory_bytes)
        return np.asarray(kept | ~beaten)


@dataclass(frozen=True)
class _Outcome:
    found: Found
    num_layouts: int
    num_too_large: int
    smallest: Layouts
    least_memory_bytes: float


def _price_block(block: Layouts, pricer: LayoutPricer, limits: _Limits | None) -> _Outcome:
    memory = pricer.memory_bytes(block)
    least = int(np.argmin(memory))
    smallest = block.take(np.array([least]))
    fits = np.flatnonzero(memory <= pricer.memory_limit_bytes)
    chosen = fits
    if limits is not None and len(fits):
        bound = pricer.lower_bound_s(block.take(fits))
        chosen = fits[limits.may_matter(bound, memory[fits])]
    layouts = block.take(chosen)
    step_s = pricer.step_s(layouts) if len(chosen) else np.zeros(0)
    return _Outcome(
        Found(layouts, step_s, memory[chosen]),
        len(block),
        len(block) - len(fits),
        smallest,
        float(memory[least]),
    )


@dataclass
class _State:
    """What is known so far: the best, the front, and how many were let go."""

    top: int
    objective: str
    best: Found | None = None
    front: Found | None = None
    num_layouts: int = 0
    num_too_large: int = 0
    num_priced: int = 0
    least_memory_bytes: float = np.inf
    smallest: Layouts | None = field(default=None)

    def limits(self) -> _Limits:
        full = self.best is not None and len(self.best) >= self.top
        worst_s = float(self.best.step_s[-1]) if full and self.best is not None else np.inf
        worst_bytes = float(self.best.memory_bytes[-1]) if full and self.best is not None else np.inf
        front_s = self.front.step_s if self.front is not None else np.zeros(0)
        front_bytes = self.front.memory_bytes if self.front is not None else np.zeros(0)
        return _Limits(worst_s, worst_bytes, self.objective == "memory", front_s, front_bytes)

    def add(self, outcome: _Outcome) -> None:
        self.num_layouts += outcome.num_layouts
        self.num_too_large += outcome.num_too_large
        self.num_priced += len(outcome.found)
        if outcome.least_memory_bytes < self.least_memory_bytes:
            self.least_memory_bytes, self.smallest = outcome.least_memory_bytes, outcome.smallest
        if not len(outcome.found):
            return
        self.best = _first(_joined(self.best, outcome.found), self.top, self.objective)
        self.front = _pareto(_joined(self.front, _pareto(outcome.found)))

    def result(self) -> SearchResult:
        if self.smallest is None:
            raise InputError("no layout divides the chips, the batch and the model", field="layout")
        nothing = Found(self.smallest.take(np.zeros(0, dtype=int)), np.zeros(0), np.zeros(0))
        return SearchResult(
            self.best or nothing,
            self.front or nothing,
            self.num_layouts,
            self.num_too_large,
            self.num_layouts - self.num_too_large - self.num_priced,
            self.num_priced,
            self.least_memory_bytes,
            self.smallest,
        )


def _first(found: Found, count: int, objective: str) -> Found:
    keys = (found.step_s, found.memory_bytes) if objective == "memory" else (found.memory_bytes, found.step_s)
    return _taken(found, np.lexsort(keys)[:count])


def _pareto(found: Found) -> Found:
    """Layouts that no other beats in both, fastest first; of equals the first of the space."""
    order = np.lexsort((found.memory_bytes, found.step_s))
    memory = found.memory_bytes[order]
    before = np.concatenate([[np.inf], np.minimum.accumulate(memory)[:-1]])
    return _taken(found, order[memory < before])


def _taken(found: Found, index: npt.NDArray[np.intp]) -> Found:
    return Found(found.layouts.take(index), found.step_s[index], found.memory_bytes[index])


def _joined(first: Found | None, second: Found) -> Found:
    if first is None:
        return second
    return Found(
        concatenated([first.layouts, second.layouts]),
        np.concatenate([first.step_s, second.step_s]),
        np.concatenate([first.memory_bytes, second.memory_bytes]),
    )


def concatenated(parts: Sequence[Layouts]) -> Layouts:
    """Layouts one after another."""
    names = vars(parts[0])
    return Layouts(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _cut(blocks: Iterable[Layouts]) -> Iterator[Layouts]:
    """The same layouts in the same order, in blocks that are neither too large for a cache nor tiny."""
    held: list[Layouts] = []
    size = 0
    for block in blocks:
        for start in range(0, len(block), MAX_BLOCK):
            part = block.take(np.arange(start, min(start + MAX_BLOCK, len(block))))
            if size + len(part) > MAX_BLOCK:
                yield concatenated(held)
                held, size = [], 0
            held.append(part)
            size += len(part)
    if held:
        yield concatenated(held)


def _waves(blocks: Iterator[Layouts], size: int) -> Iterator[list[Layouts]]:
    while wave := list(islice(blocks, size)):
        yield wave
