"""Replicas come and go, compiled: losses, starts, scaling, ends of transfers. See `reference.service`."""

# mypy: disable-error-code="no-any-return"
# (numpy types an element as Any)

from __future__ import annotations

import numpy as np

from groundplane.control import autoscale
from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.cache import enter_units, leave, release_remote, touch, write
from groundplane.sim.serving.fast.compiled import compiled
from groundplane.sim.serving.fast.gateway import end_work, route, route_decode, target
from groundplane.sim.serving.fast.lines import pop, push
from groundplane.sim.serving.fast.members import num_requests, remove_decode
from groundplane.sim.serving.fast.state import State
from groundplane.sim.serving.fast.units import clear
from groundplane.sim.serving.outcome import EventKind, IntArray
from groundplane.sim.serving.outcome import State as End
from groundplane.sim.serving.prepare import SGLANG_RATIO_START
from groundplane.sim.serving.reference.replica import DRAINING, LOST, OFF, READY, STARTING

_TRANSFERRED, _FAILED = int(EventKind.TRANSFERRED), int(EventKind.FAILED)
_STARTING, _READY = int(EventKind.STARTING), int(EventKind.READY)
_LOST, _STOPPED = int(EventKind.LOST), int(EventKind.STOPPED)
_END_FAILED = int(End.FAILED)

_replicas_wanted = compiled(autoscale.replicas_wanted)


@compiled
def finish_transfers(s: State, r: int, now_ns: int) -> None:
    """Caches that have come by now: their requests decode from the next iteration on."""
    kept = 0
    for place in range(s.replicas[r, c.NUM_TRANSFER]):
        work, end_ns = s.lists[r, c.LIST_TRANSFER, place], s.lists[r, c.LIST_TRANSFER_END, place]
        if end_ns != now_ns:
            s.lists[r, c.LIST_TRANSFER, kept] = work
            s.lists[r, c.LIST_TRANSFER_END, kept] = end_ns
            kept += 1
            continue
        touch(s, r, now_ns)
        touch(s, s.works[work, c.REMOTE], now_ns)
        release_remote(s, work)
        brought = s.works[work, c.PRIVATE]
        enter_units(s, r, work, s.works[work, c.COMPUTED])
        s.lists[r, c.LIST_ARRIVED, s.replicas[r, c.NUM_ARRIVED]] = work
        s.replicas[r, c.NUM_ARRIVED] += 1
        s.replicas[r, c.CAN_JUMP] = 0
        s.works[work, c.TRANSFER] += now_ns - s.works[work, c.LAST_TOKEN]
        write(s, now_ns, _TRANSFERRED, r, work, brought, now_ns)
    s.replicas[r, c.NUM_TRANSFER] = kept


@compiled
def lose(s: State, r: int, down_ns: int, now_ns: int) -> None:
    """A replica is gone with all it held."""
    status = s.replicas[r, c.STATUS]
    if status in (OFF, LOST):
        return
    here = _empty(s, r, now_ns)
    write(s, now_ns, _LOST, r, 0, 0, now_ns)
    book_time(s, r, now_ns)
    s.replicas[r, c.STATUS] = LOST
    s.replicas[r, c.CHANGE] = now_ns + down_ns
    if s.replicas[r, c.ROLE] == c.PREFILL:
        for work in range(len(s.works)):
            if s.works[work, c.REMOTE] == r:
                _lose_cache(s, work, now_ns)
    for work in here:
        if s.works[work, c.REMOTE] >= 0:
            touch(s, s.works[work, c.REMOTE], now_ns)
            release_remote(s, work)
        for column in (c.COMPUTED, c.HELD, c.PRIVATE, c.PENDING, c.EXPECTED, c.SWAPPED):
            s.works[work, column] = 0
        s.works[work, c.MOVES] += 1
        sent = s.world[c.FAIL_SENT] and s.works[work, c.GENERATED] > 0
        if sent or s.works[work, c.MOVES] > s.world[c.MAX_MOVES]:
            end_work(s, work, _END_FAILED, now_ns)
            write(s, now_ns, _FAILED, r, work, 0, now_ns)
        else:
            route(s, work, False, now_ns)


@compiled
def _empty(s: State, r: int, now_ns: int) -> IntArray:
    """Takes everything away from a replica; the requests that were here, in order."""
    touch(s, r, now_ns)
    if s.replicas[r, c.ITERATING]:
        s.replicas[r, c.BUSY_NS] += now_ns - s.replicas[r, c.BEGIN]
    here = np.empty(num_requests(s, r) - s.replicas[r, c.NUM_HOLDING], dtype=np.int64)
    count = 0
    while s.replicas[r, c.NUM_DECODE] > 0:
        work = s.lists[r, c.LIST_DECODE, s.replicas[r, c.NUM_DECODE] - 1]
        remove_decode(s, r, work)
        here[count] = work
        count += 1
    for which, length in (
        (c.LIST_PREFILL, c.NUM_PREFILL),
        (c.LIST_TRANSFER, c.NUM_TRANSFER),
        (c.LIST_ARRIVED, c.NUM_ARRIVED),
    ):
        for place in range(s.replicas[r, length]):
            here[count] = s.lists[r, which, place]
            count += 1
        s.replicas[r, length] = 0
    while s.replicas[r, c.LINE_LENGTH] > 0:
        here[count] = pop(s.works, s.replicas, r, c.LINE)
        count += 1
    for column in (
        c.ITERATING, c.NUM_PIECES, c.NUM_HOLDING, c.SWAPPED_BLOCKS, c.EGRESS, c.INGRESS, c.WAITING_TOKENS,
        c.EXPECTED_TOKENS, c.CONTEXT, c.REST, c.GROWN,
    ):  # fmt: skip
        s.replicas[r, column] = 0
    s.replicas[r, c.RATIO] = SGLANG_RATIO_START
    s.replicas[r, c.FREE] = s.replicas[r, c.NUM_BLOCKS]
    clear(s.tables, s.places, c.LEVELS * r)
    here.sort()
    return here


@compiled
def _lose_cache(s: State, work: int, now_ns: int) -> None:
    """The replica that held a computed prompt for another is lost: it is computed again elsewhere."""
    keeper = s.works[work, c.REPLICA]
    s.works[work, c.REMOTE] = c.NONE
    s.works[work, c.REMOTE_HELD] = 0
    s.works[work, c.REMOTE_BLOCKS] = 0
    s.works[work, c.PREEMPTIONS] += 1
    where = s.works[work, c.WHERE]
    if where == c.IN_TRANSFER:
        touch(s, keeper, now_ns)
        leave(s, keeper, work, s.works[work, c.HELD], s.works[work, c.PRIVATE])
        s.works[work, c.HELD] = 0
        s.works[work, c.PRIVATE] = 0
        kept = 0
        for place in range(s.replicas[keeper, c.NUM_TRANSFER]):
            other = s.lists[keeper, c.LIST_TRANSFER, place]
            if other != work:
                s.lists[keeper, c.LIST_TRANSFER, kept] = other
                s.lists[keeper, c.LIST_TRANSFER_END, kept] = s.lists[keeper, c.LIST_TRANSFER_END, place]
                kept += 1
        s.replicas[keeper, c.NUM_TRANSFER] = kept
        s.works[work, c.WHERE] = c.IN_LINE
        push(s.works, s.replicas, keeper, c.LINE, work)
    s.replicas[keeper, c.CAN_JUMP] = 0
    if where != c.IN_GATEWAY:
        s.replicas[keeper, c.EXPECTED_TOKENS] -= s.works[work, c.EXPECTED]
        s.replicas[keeper, c.WAITING_TOKENS] += target(s, work)
    s.works[work, c.COMPUTED] = 0
    s.works[work, c.EXPECTED] = 0
    s.works[work, c.PENDING] = target(s, work)


@compiled
def change(s: State, r: int, now_ns: int) -> None:
    """A lost replica begins its cold start, or a starting one is up."""
    if s.replicas[r, c.STATUS] == LOST:
        _begin_start(s, r, now_ns)
    else:
        _make_ready(s, r, now_ns)


@compiled
def _begin_start(s: State, r: int, now_ns: int) -> None:
    s.replicas[r, c.STATUS] = STARTING
    s.replicas[r, c.STARTS] += 1
    s.replicas[r, c.UP_SINCE] = now_ns
    s.replicas[r, c.CHANGE] = now_ns + s.replicas[r, c.START_NS]
    write(s, now_ns, _STARTING, r, 0, 0, now_ns)


@compiled
def _make_ready(s: State, r: int, now_ns: int) -> None:
    """A replica is up: what waited for one is sent."""
    s.replicas[r, c.STATUS] = READY
    s.replicas[r, c.CHANGE] = c.NONE
    if s.replicas[r, c.READY_SINCE] < 0:
        s.replicas[r, c.READY_SINCE] = now_ns
    write(s, now_ns, _READY, r, 0, 0, now_ns)
    decode = s.replicas[r, c.ROLE] == c.DECODE
    line = c.DECODE_LINE if decode else c.GATE_LINE
    model = s.replicas[r, c.POOL_MODEL]
    waiting = np.empty(s.models[model, line + 1], dtype=np.int64)
    for place in range(len(waiting)):
        waiting[place] = pop(s.works, s.models, model, line)
    for work in waiting:
        if decode:
            route_decode(s, work, now_ns)
        else:
            route(s, work, False, now_ns)


@compiled
def book_time(s: State, r: int, now_ns: int) -> None:
    """Books the time that a replica was up."""
    if s.replicas[r, c.UP_SINCE] >= 0:
        s.replicas[r, c.UP_NS] += now_ns - s.replicas[r, c.UP_SINCE]
    if s.replicas[r, c.READY_SINCE] >= 0:
        s.replicas[r, c.READY_NS] += now_ns - s.replicas[r, c.READY_SINCE]
    s.replicas[r, c.UP_SINCE] = c.NONE
    s.replicas[r, c.READY_SINCE] = c.NONE


@compiled
def _stop(s: State, r: int, now_ns: int) -> None:
    book_time(s, r, now_ns)
    _empty(s, r, now_ns)
    s.replicas[r, c.STATUS] = OFF
    s.replicas[r, c.CHANGE] = c.NONE
    write(s, now_ns, _STOPPED, r, 0, 0, now_ns)


@compiled
def stop_if_drained(s: State, r: int, now_ns: int) -> None:
    """A replica that is scaled away stops when its last request is served."""
    if s.replicas[r, c.STATUS] == DRAINING and not s.replicas[r, c.ITERATING] and num_requests(s, r) == 0:
        _stop(s, r, now_ns)


@compiled
def scale(s: State, pool: int, now_ns: int) -> None:
    """Looks at a pool's load; starts, keeps or drains replicas as the policy says."""
    first = 0
    while s.replicas[first, c.POOL] != pool:
        first += 1
    replica = s.replicas[first]
    place = s.world[c.POOLS_AT] + c.POOL_SIZE * pool
    s.world[place] += replica[c.INTERVAL]
    line = c.DECODE_LENGTH if replica[c.ROLE] == c.DECODE else c.GATE_LENGTH
    load = s.models[replica[c.POOL_MODEL], line]
    current = 0
    for r in range(first, len(s.replicas)):
        if s.replicas[r, c.POOL] == pool:
            load += num_requests(s, r)
            current += s.replicas[r, c.STATUS] in (STARTING, READY)
    wanted = _replicas_wanted(
        s.world[place + 1 : place + c.POOL_SIZE], now_ns, load, current, replica[c.TARGET],
        replica[c.MIN_REPLICAS], replica[c.MAX_REPLICAS], replica[c.UP_PATIENCE], replica[c.DOWN_PATIENCE],
    )  # fmt: skip
    for status in (DRAINING, OFF):
        for r in range(len(s.replicas)):
            if s.replicas[r, c.POOL] == pool and s.replicas[r, c.STATUS] == status and current < wanted:
                current += 1
                if status == OFF:
                    _begin_start(s, r, now_ns)
                if status == DRAINING or s.replicas[r, c.CHANGE] == now_ns:
                    _make_ready(s, r, now_ns)
    for status in (STARTING, READY):
        for r in range(len(s.replicas) - 1, -1, -1):
            if s.replicas[r, c.POOL] == pool and s.replicas[r, c.STATUS] == status and current > wanted:
                current -= 1
                if status == STARTING:
                    _stop(s, r, now_ns)
                else:
                    s.replicas[r, c.STATUS] = DRAINING
