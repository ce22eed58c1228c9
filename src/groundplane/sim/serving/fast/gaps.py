"""Gaps between tokens, compiled, without touching each sequence at each token.

All sequences that decode share the gaps of their replica's decoding steps, but for the first after they
joined. Those are counted by number; the longest since a step is read from a stack of falling gaps.
"""

# mypy: disable-error-code="no-any-return"
# (numpy types an element as Any)

from __future__ import annotations

from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.compiled import compiled
from groundplane.sim.serving.fast.price import log2_floor
from groundplane.sim.serving.fast.state import State
from groundplane.sim.serving.outcome import GAP_SUB_BITS, NUM_GAP_BINS


@compiled
def gap_place(gap_ns: int) -> int:
    """`outcome.gap_bin`."""
    shift = max(log2_floor(gap_ns) - GAP_SUB_BITS, 0)
    return min((shift << GAP_SUB_BITS) + (gap_ns >> shift), NUM_GAP_BINS - 1)


@compiled
def send_token(s: State, work: int, now_ns: int) -> None:
    """A token was sent by itself: the first, or one with a gap of its own before it."""
    last_ns = s.works[work, c.LAST_TOKEN]
    if last_ns < 0:
        s.works[work, c.FIRST_TOKEN] = now_ns
    else:
        gap_ns = now_ns - last_ns
        s.models[s.works[work, c.MODEL], c.GAPS + gap_place(gap_ns)] += 1
        s.works[work, c.MAX_GAP] = max(s.works[work, c.MAX_GAP], gap_ns)
    s.works[work, c.LAST_TOKEN] = now_ns


@compiled
def longest_since(s: State, r: int, step: int) -> int:
    """The longest common gap at steps after one."""
    low, high = 0, s.replicas[r, c.NUM_STACK]
    while low < high:
        middle = (low + high) // 2
        if s.lists[r, c.STACK_STEP, middle] > step:
            high = middle
        else:
            low = middle + 1
    return s.lists[r, c.STACK_GAP, low] if low < s.replicas[r, c.NUM_STACK] else 0


@compiled
def send_step(s: State, r: int, now_ns: int, num_decode: int) -> None:
    """Every sequence of a decoding step sent a token; the step is already counted."""
    step, fresh = s.replicas[r, c.STEP], s.replicas[r, c.NUM_FRESH]
    if num_decode > fresh:
        gap_ns = now_ns - s.replicas[r, c.LAST_DECODE]
        model = s.replicas[r, c.POOL_MODEL]
        s.models[model, c.GAPS + gap_place(gap_ns)] += num_decode - fresh
        depth = s.replicas[r, c.NUM_STACK]
        while depth > 0 and s.lists[r, c.STACK_GAP, depth - 1] <= gap_ns:
            depth -= 1
        if depth == c.STACK_DEPTH:
            _settle_gaps(s, r, step, num_decode)
            depth = 0
        s.lists[r, c.STACK_STEP, depth] = step
        s.lists[r, c.STACK_GAP, depth] = gap_ns
        s.replicas[r, c.NUM_STACK] = depth + 1
    for place in range(fresh):
        work = s.lists[r, c.LIST_FRESH, place]
        send_token(s, work, now_ns)
        s.works[work, c.STEP_GAPS] = step
    s.replicas[r, c.NUM_FRESH] = 0
    s.replicas[r, c.LAST_DECODE] = now_ns


@compiled
def _settle_gaps(s: State, r: int, step: int, num_decode: int) -> None:
    """Reads the stack for all sequences, so that it can be emptied."""
    for place in range(num_decode):
        work = s.lists[r, c.LIST_DECODE, place]
        if s.works[work, c.STEP_JOINED] < step - 1:
            longest_ns = longest_since(s, r, s.works[work, c.STEP_GAPS])
            s.works[work, c.MAX_GAP] = max(s.works[work, c.MAX_GAP], longest_ns)
            s.works[work, c.STEP_GAPS] = step - 1
