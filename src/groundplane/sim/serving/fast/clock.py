"""What happens when, compiled: the loop of `reference.service.Service.run`.

Replicas that serve whole requests meet only at the gateway, so each runs ahead by itself to the next time at
which something comes from outside. Replicas for prompts and for decoding go in step.
"""

# mypy: disable-error-code="no-any-return"
# (numpy types an element as Any)

from __future__ import annotations

from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.batch import finish_iteration, jump, start
from groundplane.sim.serving.fast.cache import idle_blocks, used_blocks
from groundplane.sim.serving.fast.compiled import called_from_python, compiled
from groundplane.sim.serving.fast.fleet import (
    book_time,
    change,
    finish_transfers,
    lose,
    scale,
    stop_if_drained,
)
from groundplane.sim.serving.fast.gateway import route
from groundplane.sim.serving.fast.members import num_running
from groundplane.sim.serving.fast.state import State
from groundplane.sim.serving.reference.replica import DRAINING, READY

DONE, LOG_FULL, STUCK = range(3)


@called_from_python
def advance(s: State) -> int:
    """Goes on until every request has ended, the log is full, or nothing more will happen."""
    num_works = len(s.works)
    while s.world[c.NUM_DONE] < num_works:
        next_ns = _next_outside(s)
        if s.world[c.COUPLED]:
            next_ns = _next_together(s, next_ns)
        for r in range(len(s.replicas)):
            alone = s.replicas[r, c.ROLE] == c.BOTH
            if alone and s.replicas[r, c.ITERATING] and s.replicas[r, c.END] < next_ns:
                _run_to(s, r, next_ns)
        if _log_full(s):
            return LOG_FULL
        if s.world[c.NUM_DONE] == num_works:
            break
        if next_ns == c.FOREVER:
            return STUCK
        s.world[c.NOW] = next_ns
        _at(s, next_ns)
        for r in range(len(s.replicas)):
            if not s.replicas[r, c.ITERATING] and s.replicas[r, c.STATUS] in (READY, DRAINING):
                start(s, r, next_ns)
                stop_if_drained(s, r, next_ns)
    for r in range(len(s.replicas)):
        book_time(s, r, s.world[c.NOW])
    return DONE


@compiled
def _next_together(s: State, next_ns: int) -> int:
    """The next time at which replicas for prompts or for decoding do something, or one comes from outside.

    Nothing reaches a replica for decoding before a prompt is computed: until then those that only decode do
    so by themselves.
    """
    gate_ns = next_ns
    for r in range(len(s.replicas)):
        if s.replicas[r, c.ITERATING] and s.replicas[r, c.ROLE] == c.PREFILL:
            gate_ns = min(gate_ns, s.replicas[r, c.END])
    next_ns = gate_ns
    for r in range(len(s.replicas)):
        if s.replicas[r, c.ITERATING] and s.replicas[r, c.ROLE] == c.DECODE:
            if s.replicas[r, c.CAN_JUMP]:
                jump(s, r, gate_ns)
            next_ns = min(next_ns, s.replicas[r, c.END])
    return next_ns


@compiled
def _log_full(s: State) -> bool:
    return s.world[c.LOGGING] and s.world[c.NUM_LOGGED] > len(s.log) - s.world[c.LOG_MARGIN]


@compiled
def _run_to(s: State, r: int, horizon_ns: int) -> None:
    """Ends and begins iterations of one replica that end before a time."""
    while s.replicas[r, c.ITERATING] and not _log_full(s):
        if s.replicas[r, c.CAN_JUMP]:
            jump(s, r, horizon_ns)
        end_ns = s.replicas[r, c.END]
        if end_ns >= horizon_ns:
            return
        finish_iteration(s, r, end_ns)
        start(s, r, end_ns)
        stop_if_drained(s, r, end_ns)


@compiled
def _next_outside(s: State) -> int:
    """The next time at which something comes that is no end of an iteration; `FOREVER` if nothing does."""
    next_ns = c.FOREVER
    for r in range(len(s.replicas)):
        if s.replicas[r, c.CHANGE] >= 0:
            next_ns = min(next_ns, s.replicas[r, c.CHANGE])
        for place in range(s.replicas[r, c.NUM_TRANSFER]):
            next_ns = min(next_ns, s.lists[r, c.LIST_TRANSFER_END, place])
    if s.world[c.NEXT_FAILURE] < s.world[c.NUM_FAILURES]:
        next_ns = min(next_ns, s.world[_failure_at(s)])
    for pool in range(s.world[c.NUM_POOLS]):
        next_ns = min(next_ns, s.world[s.world[c.POOLS_AT] + c.POOL_SIZE * pool])
    if s.world[c.NEXT_ARRIVAL] < len(s.works):
        next_ns = min(next_ns, s.works[s.world[c.NEXT_ARRIVAL], c.ARRIVAL])
    if s.world[c.NUM_SAMPLES] < len(s.samples):
        next_ns = min(next_ns, s.world[c.NEXT_SAMPLE])
    return next_ns


@compiled
def _failure_at(s: State) -> int:
    """Where the next failure is described in `world`."""
    return s.world[c.FAILURES_AT] + c.FAILURE_SIZE * s.world[c.NEXT_FAILURE]


@compiled
def _at(s: State, now_ns: int) -> None:
    """All that happens at one time, in the order that the package states."""
    for r in range(len(s.replicas)):
        if s.replicas[r, c.ITERATING] and s.replicas[r, c.END] == now_ns:
            finish_iteration(s, r, now_ns)
    for r in range(len(s.replicas)):
        if s.replicas[r, c.NUM_TRANSFER] > 0:
            finish_transfers(s, r, now_ns)
    while s.world[c.NEXT_FAILURE] < s.world[c.NUM_FAILURES] and s.world[_failure_at(s)] == now_ns:
        place = _failure_at(s)
        s.world[c.NEXT_FAILURE] += 1
        lose(s, s.world[place + 1], s.world[place + 2], now_ns)
    for r in range(len(s.replicas)):
        while s.replicas[r, c.CHANGE] == now_ns:
            change(s, r, now_ns)
    for pool in range(s.world[c.NUM_POOLS]):
        if s.world[s.world[c.POOLS_AT] + c.POOL_SIZE * pool] == now_ns:
            scale(s, pool, now_ns)
    while s.world[c.NEXT_ARRIVAL] < len(s.works) and s.works[s.world[c.NEXT_ARRIVAL], c.ARRIVAL] == now_ns:
        work = s.world[c.NEXT_ARRIVAL]
        s.world[c.NEXT_ARRIVAL] += 1
        route(s, work, True, now_ns)
    if s.world[c.NUM_SAMPLES] < len(s.samples) and s.world[c.NEXT_SAMPLE] == now_ns:
        _sample(s, now_ns)


@compiled
def _sample(s: State, now_ns: int) -> None:
    sample = s.samples[s.world[c.NUM_SAMPLES]]
    sample[0] = now_ns
    for r in range(len(s.replicas)):
        sample[4 * r + 1] = used_blocks(s, r)
        sample[4 * r + 2] = idle_blocks(s, r)
        sample[4 * r + 3] = num_running(s, r)
        sample[4 * r + 4] = s.replicas[r, c.LINE_LENGTH]
    s.world[c.NUM_SAMPLES] += 1
    s.world[c.NEXT_SAMPLE] += s.world[c.SAMPLE_NS]
