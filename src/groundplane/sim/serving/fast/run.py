"""Runs the compiled simulator and gathers what came of it."""

from __future__ import annotations

import numpy as np

from groundplane.sim.serving.fast import clock
from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.state import State, make_state
from groundplane.sim.serving.outcome import EventLog, IntArray, Outcome, ReplicaTotals, Samples
from groundplane.sim.serving.prepare import Prepared
from groundplane.spec.errors import InvariantError


def run(prepared: Prepared, *, log: bool) -> Outcome:
    """Simulates.

    Raises:
        InvariantError: requests wait for what never comes.
    """
    state = make_state(prepared, log=log)
    parts: list[IntArray] = []
    while (code := clock.advance(state)) == clock.LOG_FULL:
        parts.append(_take_log(state))
    if code == clock.STUCK:
        waiting = len(prepared.requests) - int(state.world[c.NUM_DONE])
        raise InvariantError(f"{waiting} requests wait for ever")
    parts.append(_take_log(state))
    works = state.works

    def of(column: int) -> IntArray:
        return np.ascontiguousarray(works[:, column])

    count = int(state.world[c.NUM_SAMPLES])
    samples = state.samples[:count]
    return Outcome(
        state=of(c.STATE),
        admitted_ns=of(c.ADMITTED),
        first_token_ns=of(c.FIRST_TOKEN),
        finish_ns=of(c.FINISHED),
        max_gap_ns=of(c.MAX_GAP),
        replica=of(c.REPLICA),
        prefill_replica=of(c.PREFILL_REPLICA),
        hit_tokens=of(c.HIT_TOKENS),
        tier_hit_tokens=of(c.TIER_HIT_TOKENS),
        output_tokens=of(c.GENERATED),
        preemptions=of(c.PREEMPTIONS),
        moves=of(c.MOVES),
        transfer_ns=of(c.TRANSFER),
        gap_counts=np.ascontiguousarray(state.models[:, c.GAPS :]),
        replicas=_totals(state),
        samples=Samples(samples[:, 0].copy(), *(np.ascontiguousarray(samples[:, k::4]) for k in range(1, 5))),
        end_ns=int(state.world[c.NOW]),
        log=_event_log(parts) if log else None,
    )


def _totals(state: State) -> ReplicaTotals:
    def of(column: int) -> IntArray:
        return np.ascontiguousarray(state.replicas[:, column])

    carried, rest = of(c.KV_CARRIED).tolist(), of(c.KV_BLOCK_NS).tolist()
    whole = [high * c.KV_CARRY + low for high, low in zip(carried, rest, strict=True)]
    return ReplicaTotals(
        pool=of(c.POOL),
        busy_ns=of(c.BUSY_NS),
        ready_ns=of(c.READY_NS),
        up_ns=of(c.UP_NS),
        iterations=of(c.ITERATIONS),
        decode_tokens=of(c.DECODE_TOKENS),
        prompt_tokens=of(c.PROMPT_TOKENS),
        kv_block_ns=np.array(whole, dtype=np.float64),
        kv_peak_blocks=of(c.KV_PEAK),
        preemptions=of(c.NUM_PREEMPTED),
        evicted_blocks=of(c.EVICTED_BLOCKS),
        transfer_ns=of(c.TRANSFER_NS),
        starts=of(c.STARTS),
    )


def _take_log(state: State) -> IntArray:
    count = int(state.world[c.NUM_LOGGED])
    state.world[c.NUM_LOGGED] = 0
    return state.log[:count].copy()


def _event_log(parts: list[IntArray]) -> EventLog:
    rows = np.concatenate(parts)
    # Replicas ran ahead of each other: in order of time, then replica; within one, as it happened.
    rows = rows[np.lexsort((rows[:, 2], rows[:, 0]))]
    return EventLog(*(np.ascontiguousarray(rows[:, column]) for column in range(6)))
