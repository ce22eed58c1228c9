"""Searches all layouts of a training job and keeps the best, without pricing what cannot be better.

No layout of the space is left out. Two things let one go without its full price, and neither can drop a
layout that belongs in the answer: it does not fit into memory; or a lower bound of its time is above the time
of the last one kept, and some layout already priced is at least as fast as that bound and needs no more
memory. Both are asked of whole groups first, by lower bounds of time and of memory.

Groups are looked at in ascending order of their bound, and ties are broken by that order, so that the answer
does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from groundplane.design.layout_space import LayoutSpace
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.intervals import StepTimes
from groundplane.perfmodel.strategy import Layouts
from groundplane.spec.errors import InputError, unknown_name

OBJECTIVES: Final = {
    "step_time": "time",
    "tokens_per_s": "time",
    "mfu": "time",
    "cost": "time",
    "memory": "memory",
}
"""What the list of best layouts may be ordered by. On a given number of chips tokens/s, MFU and cost (chips x
time) all order layouts as the time of a step does; "memory" puts first what leaves most of it free."""

MAX_BLOCK: Final = 65_536
"""Layouts looked at in one call: their arrays stay in the cache of a core."""

FIRST_BLOCK: Final = 4_096
"""Layouts looked at first, and fewest that are worth a call to price them."""


Progress = Callable[[int, int], None]
"""Told (done, all)."""


class LayoutPricer(Protocol):
    """Prices layouts of one job on one cluster: methods take N layouts and give arrays of shape (N,)."""

    @property
    def memory_limit_bytes(self) -> float:
        """What a rank may use."""
        ...

    def memory_bytes(self, layouts: Layouts) -> FloatArray:
        """Peak of the fullest rank."""
        ...

    def least_step_s(self, groups: Layouts) -> FloatArray:
        """Seconds that a step takes at least in any layout of each group of `LayoutSpace.groups`."""
        ...

    def least_memory_bytes(self, groups: Layouts) -> FloatArray:
        """Bytes that a rank needs at least in any layout of each group."""
        ...

    def step_times(self, layouts: Layouts) -> StepTimes:
        """Seconds of a step with their interval."""
        ...


@dataclass(frozen=True)
class Found:
    """Layouts with their prices, in the order asked for; arrays of shape (N,)."""

    layouts: Layouts
    times: StepTimes
    memory_bytes: FloatArray

    @property
    def step_s(self) -> FloatArray:
        """Seconds of a step."""
        return self.times.step_s

    def __len__(self) -> int:
        return len(self.memory_bytes)


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        best: the best layouts by the objective.
        front: the Pareto front of step time and memory, fastest first.
        num_layouts: all of the space.
        num_too_large: were seen not to fit into memory.
        num_bounded: let go by their bounds.
        num_priced: priced in full.
        least_memory_bytes: what the smallest layout needs of those looked at (of all, when nothing fits).
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
    space: LayoutSpace,
    pricer: LayoutPricer,
    *,
    top: int = 10,
    objective: str = "step_time",
    workers: int = 2,
    prune: bool = True,
    progress: Progress | None = None,
) -> SearchResult:
    """The best layouts of a space, and the Pareto front of time and memory.

    Args:
        space: all layouts that can be.
        pricer: of the job on the cluster.
        top: how many layouts to keep.
        objective: see `OBJECTIVES`.
        workers: threads; the arithmetic runs outside the interpreter's lock.
        prune: without it every layout that fits is priced (for tests and benchmarks).
        progress: told how many layouts are dealt with, of how many.

    Raises:
        InputError: no layout at all is feasible, or a wrong argument.
    """
    if top < 1:
        raise InputError("must be a positive integer", field="top", value=top)
    if objective not in OBJECTIVES:
        raise unknown_name("objective", objective, OBJECTIVES)
    groups = space.groups()
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        state = _State(top, OBJECTIVES[objective], pricer, pool, max(1, workers))
        least_s = np.concatenate(list(pool.map(pricer.least_step_s, _cut(groups))))
        least_bytes = np.zeros(len(groups))
        if prune:
            least_bytes = np.concatenate(list(pool.map(pricer.least_memory_bytes, _cut(groups))))
        queue = _Queue(groups, space.num_members(groups), least_s, least_bytes)
        state.num_layouts = int(queue.members.sum())
        state.num_too_large = queue.drop_larger_than(pricer.memory_limit_bytes)
        while True:
            # All of a wave see the same incumbents, so that what is priced does not depend on timing.
            limits = state.limits() if prune else None
            wave = [part for _ in range(max(1, workers)) if (part := queue.next(limits)) is not None]
            if not wave:
                break
            for sieved in pool.map(lambda part, at=limits: _sieve(space, part, pricer, at), wave):
                state.add(sieved)
            if progress is not None:
                progress(state.num_layouts - queue.num_left, state.num_layouts)
        state.price_pending()
    if prune and state.best is None:
        # Nothing fits, and what comes nearest lies among what was let go: look at all of it.
        return search(
            space, pricer, top=top, objective=objective, workers=workers, prune=False, progress=progress
        )
    return state.result()


@dataclass(frozen=True)
class _Part:
    """Groups and the least time of their layouts."""

    groups: Layouts
    least_s: FloatArray


def _cut(groups: Layouts) -> Iterator[Layouts]:
    for start in range(0, len(groups), MAX_BLOCK):
        yield groups.take(np.arange(start, min(start + MAX_BLOCK, len(groups))))


class _Queue:
    """Groups in ascending order of their least time, given out in parts whose layouts are about a block.

    The first parts are small: the sooner good layouts are priced, the more the bounds let go.
    """

    def __init__(
        self, groups: Layouts, members: npt.NDArray[np.intp], least_s: FloatArray, least_bytes: FloatArray
    ) -> None:
        order = np.argsort(least_s, kind="stable")
        self.groups, self.order = groups, order
        self.members, self.least_s, self.least_bytes = members, least_s, least_bytes
        self.block = FIRST_BLOCK

    @property
    def num_left(self) -> int:
        """Layouts that were not looked at yet."""
        return int(self.members[self.order].sum())

    def drop_larger_than(self, limit_bytes: float) -> int:
        """Lets groups go in which nothing fits; says how many layouts those were."""
        fits = self.least_bytes[self.order] <= limit_bytes
        dropped = int(self.members[self.order[~fits]].sum())
        self.order = self.order[fits]
        return dropped

    def next(self, limits: _Limits | None) -> _Part | None:
        """The next groups that may matter, or None where there are no more."""
        chosen: list[npt.NDArray[np.intp]] = []
        size = 0
        while len(self.order) and size < self.block:
            ahead = np.cumsum(self.members[self.order[:MAX_BLOCK]])
            count = max(1, int(np.searchsorted(ahead, self.block - size, side="right")))
            head, self.order = self.order[:count], self.order[count:]
            if limits is not None:
                head = head[limits.may_matter(self.least_s[head], self.least_bytes[head])]
            chosen.append(head)
            size += int(self.members[head].sum())
        self.block = min(2 * self.block, MAX_BLOCK)
        index = np.concatenate(chosen) if chosen else np.zeros(0, dtype=np.intp)
        return _Part(self.groups.take(index), self.least_s[index]) if len(index) else None


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
class _Sieved:
    """Layouts of some groups that may matter, not priced yet, and what became of the others."""

    layouts: Layouts
    memory_bytes: FloatArray
    num_too_large: int
    smallest: Layouts
    least_memory_bytes: float


def _sieve(space: LayoutSpace, part: _Part, pricer: LayoutPricer, limits: _Limits | None) -> _Sieved | None:
    layouts, own = space.expand(part.groups)
    if not len(layouts):
        return None
    memory = pricer.memory_bytes(layouts)
    least = int(np.argmin(memory))
    fits = np.flatnonzero(memory <= pricer.memory_limit_bytes)
    chosen = fits
    if limits is not None:
        chosen = fits[limits.may_matter(part.least_s[own[fits]], memory[fits])]
    return _Sieved(
        layouts.take(chosen),
        memory[chosen],
        len(layouts) - len(fits),
        layouts.take(np.array([least])),
        float(memory[least]),
    )


@dataclass
class _State:
    """What is known so far: the best, the front, how many were let go, and what still waits for its price."""

    top: int
    objective: str
    pricer: LayoutPricer
    pool: ThreadPoolExecutor
    workers: int
    best: Found | None = None
    front: Found | None = None
    pending: list[_Sieved] = field(default_factory=list)
    num_layouts: int = 0
    num_too_large: int = 0
    num_priced: int = 0
    least_memory_bytes: float = np.inf
    smallest: Layouts | None = None

    def limits(self) -> _Limits:
        full = self.best is not None and len(self.best) >= self.top
        worst_s = float(self.best.step_s[-1]) if full and self.best is not None else np.inf
        worst_bytes = float(self.best.memory_bytes[-1]) if full and self.best is not None else np.inf
        front_s = self.front.step_s if self.front is not None else np.zeros(0)
        front_bytes = self.front.memory_bytes if self.front is not None else np.zeros(0)
        return _Limits(worst_s, worst_bytes, self.objective == "memory", front_s, front_bytes)

    def add(self, sieved: _Sieved | None) -> None:
        """Takes in what a sieve left over; prices when there is enough for a call to pay, or nothing yet."""
        if sieved is None:
            return
        self.num_too_large += sieved.num_too_large
        if sieved.least_memory_bytes < self.least_memory_bytes:
            self.least_memory_bytes, self.smallest = sieved.least_memory_bytes, sieved.smallest
        if len(sieved.layouts):
            self.pending.append(sieved)
        if sum(len(part.layouts) for part in self.pending) >= (FIRST_BLOCK if self.num_priced else 1):
            self.price_pending()

    def price_pending(self) -> None:
        """Prices what waits and still may matter."""
        waiting, self.pending = self.pending, []
        if not waiting:
            return
        layouts = concatenated([part.layouts for part in waiting])
        memory = np.concatenate([part.memory_bytes for part in waiting])
        parts = np.array_split(
            np.arange(len(layouts)), max(1, min(self.workers, len(layouts) // FIRST_BLOCK))
        )
        times = list(self.pool.map(lambda index: self.pricer.step_times(layouts.take(index)), parts))
        self.num_priced += len(layouts)
        found = Found(layouts, _together(times), memory)
        self.best = _first(_joined(self.best, found), self.top, self.objective)
        self.front = _pareto(_joined(self.front, _pareto(found)))

    def result(self) -> SearchResult:
        if self.smallest is None:
            raise InputError("no layout divides the chips, the batch and the model", field="layout")
        none = np.zeros(0)
        nothing = Found(self.smallest.take(np.zeros(0, dtype=int)), StepTimes(none, none, none), none)
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
    times = StepTimes(*(value[index] for value in vars(found.times).values()))
    return Found(found.layouts.take(index), times, found.memory_bytes[index])


def _joined(first: Found | None, second: Found) -> Found:
    if first is None:
        return second
    return Found(
        concatenated([first.layouts, second.layouts]),
        _together([first.times, second.times]),
        np.concatenate([first.memory_bytes, second.memory_bytes]),
    )


def _together(parts: Sequence[StepTimes]) -> StepTimes:
    return StepTimes(*(np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])))


def concatenated(parts: Sequence[Layouts]) -> Layouts:
    """Layouts one after another."""
    names = vars(parts[0])
    return Layouts(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
