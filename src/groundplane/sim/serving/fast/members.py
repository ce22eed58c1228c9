"""Who is in a replica's batch, compiled: joining and leaving its lists."""

# mypy: disable-error-code="no-any-return"
# (numpy types an element as Any)

from __future__ import annotations

from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.cache import blocks
from groundplane.sim.serving.fast.compiled import compiled
from groundplane.sim.serving.fast.gaps import longest_since
from groundplane.sim.serving.fast.lines import before
from groundplane.sim.serving.fast.state import State


@compiled
def num_running(s: State, r: int) -> int:
    """Sequences in the batch, those whose caches are on their way included."""
    batch = s.replicas[r, c.NUM_PREFILL] + s.replicas[r, c.NUM_DECODE]
    return batch + s.replicas[r, c.NUM_TRANSFER] + s.replicas[r, c.NUM_ARRIVED]


@compiled
def num_requests(s: State, r: int) -> int:
    """Requests that are here."""
    return s.replicas[r, c.LINE_LENGTH] + num_running(s, r) + s.replicas[r, c.NUM_HOLDING]


@compiled
def take_out(s: State, r: int, which: int, length: int, work: int) -> None:
    """Takes a request that is in it out of a list, which keeps its order."""
    place = 0
    while s.lists[r, which, place] != work:
        place += 1
    for later in range(place, length - 1):
        s.lists[r, which, later] = s.lists[r, which, later + 1]


@compiled
def join_prefill(s: State, r: int, work: int) -> None:
    """Puts a request among the prompts under way, by rank."""
    place = s.replicas[r, c.NUM_PREFILL]
    while place > 0 and before(s.works, work, s.lists[r, c.LIST_PREFILL, place - 1]):
        s.lists[r, c.LIST_PREFILL, place] = s.lists[r, c.LIST_PREFILL, place - 1]
        place -= 1
    s.lists[r, c.LIST_PREFILL, place] = work
    s.replicas[r, c.NUM_PREFILL] += 1
    s.works[work, c.WHERE] = c.IN_PREFILL


@compiled
def remove_prefill(s: State, r: int, work: int) -> None:
    """Takes a request out of the prompts under way."""
    take_out(s, r, c.LIST_PREFILL, s.replicas[r, c.NUM_PREFILL], work)
    s.replicas[r, c.NUM_PREFILL] -= 1


@compiled
def join_decode(s: State, r: int, work: int) -> None:
    """Puts a request among those that decode, from the next step on."""
    step, rest = s.replicas[r, c.STEP], s.works[work, c.OUTPUT] - s.works[work, c.GENERATED]
    size = s.replicas[r, c.BLOCK_TOKENS]
    s.lists[r, c.LIST_DECODE, s.replicas[r, c.NUM_DECODE]] = work
    s.lists[r, c.LIST_FRESH, s.replicas[r, c.NUM_FRESH]] = work
    s.replicas[r, c.NUM_DECODE] += 1
    s.replicas[r, c.NUM_FRESH] += 1
    s.replicas[r, c.CONTEXT] += s.works[work, c.COMPUTED]
    s.replicas[r, c.REST] += rest
    s.replicas[r, c.NEXT_END] = min(s.replicas[r, c.NEXT_END], step + rest)
    s.lists[r, c.PHASE, (s.works[work, c.COMPUTED] - step) % size] += 1
    s.works[work, c.STEP_JOINED] = step
    s.works[work, c.WHERE] = c.IN_DECODE


@compiled
def remove_decode(s: State, r: int, work: int) -> None:
    """Takes a request out of those that decode, before its end."""
    size = s.replicas[r, c.BLOCK_TOKENS]
    step, joined = s.replicas[r, c.STEP], s.works[work, c.STEP_JOINED]
    s.lists[r, c.PHASE, (s.works[work, c.COMPUTED] - joined) % size] -= 1
    if step > joined:
        longest_ns = longest_since(s, r, s.works[work, c.STEP_GAPS])
        s.works[work, c.MAX_GAP] = max(s.works[work, c.MAX_GAP], longest_ns)
        s.works[work, c.LAST_TOKEN] = s.replicas[r, c.LAST_DECODE]
    else:
        take_out(s, r, c.LIST_FRESH, s.replicas[r, c.NUM_FRESH], work)
        s.replicas[r, c.NUM_FRESH] -= 1
    settle(s, r, work)
    s.replicas[r, c.CONTEXT] -= s.works[work, c.COMPUTED]
    s.replicas[r, c.REST] -= s.works[work, c.OUTPUT] - s.works[work, c.GENERATED]
    take_out(s, r, c.LIST_DECODE, s.replicas[r, c.NUM_DECODE], work)
    s.replicas[r, c.NUM_DECODE] -= 1
    if s.replicas[r, c.NUM_DECODE] == 0:
        s.replicas[r, c.NUM_STACK] = 0
    s.replicas[r, c.NEXT_END] = first_end(s, r)


@compiled
def settle(s: State, r: int, work: int) -> None:
    """Writes down what a sequence that decodes has by now."""
    unit = s.replicas[r, c.UNIT_BLOCKS]
    steps = s.replicas[r, c.STEP] - s.works[work, c.STEP_JOINED]
    s.works[work, c.COMPUTED] += steps
    s.works[work, c.GENERATED] += steps
    owned = blocks(s, r, s.works[work, c.COMPUTED] + s.replicas[r, c.GROWN])
    s.works[work, c.PRIVATE] = owned - s.works[work, c.HELD] * unit
    s.works[work, c.STEP_JOINED] = s.replicas[r, c.STEP]


@compiled
def first_end(s: State, r: int) -> int:
    """The step at which the first of the sequences that decode ends."""
    first = c.FOREVER
    for place in range(s.replicas[r, c.NUM_DECODE]):
        work = s.lists[r, c.LIST_DECODE, place]
        rest = s.works[work, c.OUTPUT] - s.works[work, c.GENERATED]
        first = min(first, s.works[work, c.STEP_JOINED] + rest)
    return first
