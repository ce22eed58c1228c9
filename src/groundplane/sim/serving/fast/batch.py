"""Iterations of one replica, compiled: `reference.replica.Replica`, and many decoding iterations at once."""

# mypy: disable-error-code="no-any-return"
# (numpy types an element as Any)

from __future__ import annotations

from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.admit import admit, compute, preempt, victim
from groundplane.sim.serving.fast.cache import (
    allocate,
    available,
    blocks,
    count_blocks,
    enter_units,
    release,
    touch,
    used_blocks,
    write,
)
from groundplane.sim.serving.fast.compiled import compiled
from groundplane.sim.serving.fast.gaps import longest_since, send_step, send_token
from groundplane.sim.serving.fast.gateway import end_work, route_decode, target
from groundplane.sim.serving.fast.members import first_end, join_decode, num_running, remove_prefill, settle
from groundplane.sim.serving.fast.price import attend_ns, piece_ns, rows_ns
from groundplane.sim.serving.fast.state import State
from groundplane.sim.serving.outcome import EventKind
from groundplane.sim.serving.outcome import State as End
from groundplane.sim.serving.prepare import SGLANG_RATIO_LEAST

_ITERATION, _FIRST, _FINISHED = int(EventKind.ITERATION), int(EventKind.FIRST_TOKEN), int(EventKind.FINISHED)
_ENDED = int(End.ENDED)


@compiled
def start(s: State, r: int, now_ns: int) -> None:
    """Begins an iteration if there is something to compute."""
    touch(s, r, now_ns)
    for place in range(s.replicas[r, c.NUM_ARRIVED]):
        work = s.lists[r, c.LIST_ARRIVED, place]
        s.replicas[r, c.EXPECTED_TOKENS] -= s.works[work, c.EXPECTED]
        s.works[work, c.EXPECTED] = 0
        join_decode(s, r, work)
    s.replicas[r, c.NUM_ARRIVED] = 0
    s.replicas[r, c.NUM_PIECES] = 0
    s.replicas[r, c.LOADS] = 0
    s.replicas[r, c.SWAPS] = 0
    replica = s.replicas[r]
    while True:
        given_way = replica[c.NUM_PREEMPTED]
        replica[c.GROWN] = 0
        if replica[c.KIND] == c.SGLANG:
            decoding, settled = _fill_prompts_first(s, r, now_ns)
        else:
            decoding, settled = True, _fill_mixed(s, r, now_ns)
        num_decode = replica[c.NUM_DECODE] if decoding else 0
        num_pieces = replica[c.NUM_PIECES]
        # When all gave way to make room, those that wait are looked at at once.
        if num_decode > 0 or num_pieces > 0 or replica[c.NUM_PREEMPTED] == given_way:
            break
    s.replicas[r, c.BATCH] = num_decode
    s.replicas[r, c.KV_PEAK] = max(s.replicas[r, c.KV_PEAK], used_blocks(s, r))
    s.replicas[r, c.CAN_JUMP] = settled and num_pieces == 0 and s.replicas[r, c.NUM_PREFILL] == 0
    if num_decode == 0 and num_pieces == 0:
        return
    tokens = 0
    duration_ns = 0
    if num_pieces == 0:
        duration_ns = s.prices[s.replicas[r, c.DECODE_AT] + num_decode]
    for place in range(num_pieces):
        piece = s.lists[r, c.LIST_TOKENS, place]
        tokens += piece
        duration_ns += piece_ns(
            s.prices, replica, piece, s.works[s.lists[r, c.LIST_PIECE, place], c.COMPUTED]
        )
    if num_pieces > 0:
        duration_ns += rows_ns(s.prices, replica, num_decode, num_pieces, tokens)
    if num_decode > 0:
        duration_ns += attend_ns(s.prices, replica, num_decode, s.replicas[r, c.CONTEXT])
    s.replicas[r, c.TOKENS] = tokens
    s.replicas[r, c.ITERATING] = 1
    s.replicas[r, c.BEGIN] = now_ns
    duration_ns = max(duration_ns, 1, s.replicas[r, c.LOADS]) + s.replicas[r, c.SWAPS]
    s.replicas[r, c.END] = now_ns + duration_ns


@compiled
def _fill_mixed(s: State, r: int, now_ns: int) -> bool:
    """Whether the line is empty, or will stay as it is until a sequence ends."""
    calm = _make_room_to_decode(s, r, now_ns)
    budget = s.replicas[r, c.MAX_BATCHED] - s.replicas[r, c.NUM_DECODE]
    place = 0
    while place < s.replicas[r, c.NUM_PREFILL] and budget > 0:
        work = s.lists[r, c.LIST_PREFILL, place]
        computed = s.works[work, c.COMPUTED]
        tokens = min(target(s, work) - computed, budget)
        need = blocks(s, r, computed + tokens) - blocks(s, r, computed)
        gone = False
        while not gone and need > available(s, r):
            calm = False
            loser = victim(s, r)
            preempt(s, r, loser, now_ns)
            gone = loser == work
        if not gone:
            compute(s, r, work, tokens, need, now_ns)
            budget -= tokens
            place += 1
    while calm and s.replicas[r, c.LINE_LENGTH] > 0:
        if num_running(s, r) >= s.replicas[r, c.MAX_SEQUENCES]:
            return True
        used = admit(s, r, budget, now_ns)
        if used < 0:
            return True
        budget -= used
    return calm


@compiled
def _fill_prompts_first(s: State, r: int, now_ns: int) -> tuple[bool, bool]:
    """Whether the iteration decodes; whether the line will stay as it is until a sequence ends."""
    budget = s.replicas[r, c.MAX_BATCHED]
    for place in range(s.replicas[r, c.NUM_PREFILL]):
        work = s.lists[r, c.LIST_PREFILL, place]
        computed = s.works[work, c.COMPUTED]
        tokens = min(target(s, work) - computed, budget)
        need = blocks(s, r, computed + tokens) - blocks(s, r, computed)
        if budget == 0 or need > available(s, r):
            break
        compute(s, r, work, tokens, need, now_ns)
        budget -= tokens
    settled = True
    while s.replicas[r, c.LINE_LENGTH] > 0 and num_running(s, r) < s.replicas[r, c.MAX_SEQUENCES]:
        used = admit(s, r, budget, now_ns)
        if used < 0:
            # What it sets aside for running sequences shrinks with each token: the next step may let it in.
            settled = False
            break
        budget -= used
    if s.replicas[r, c.NUM_PIECES] > 0:
        return False, False
    calm = _make_room_to_decode(s, r, now_ns)
    return True, settled and calm


@compiled
def _make_room_to_decode(s: State, r: int, now_ns: int) -> bool:
    """Gives a block to each decoding sequence that needs one; False if any had to give way."""
    size = s.replicas[r, c.BLOCK_TOKENS]
    place = (-s.replicas[r, c.STEP]) % size
    calm = True
    while s.lists[r, c.PHASE, place] > available(s, r):
        calm = False
        preempt(s, r, victim(s, r), now_ns)
    allocate(s, r, now_ns, s.lists[r, c.PHASE, place])
    s.replicas[r, c.GROWN] = 1
    return calm


@compiled
def finish_iteration(s: State, r: int, now_ns: int) -> None:
    """Ends the iteration: every sequence in it that has all its prompt gets a token."""
    touch(s, r, now_ns)
    s.replicas[r, c.ITERATING] = 0
    s.replicas[r, c.GROWN] = 0
    num_decode, tokens = s.replicas[r, c.BATCH], s.replicas[r, c.TOKENS]
    begin_ns = s.replicas[r, c.BEGIN]
    s.replicas[r, c.BUSY_NS] += now_ns - begin_ns
    s.replicas[r, c.ITERATIONS] += 1
    s.replicas[r, c.DECODE_TOKENS] += num_decode
    s.replicas[r, c.PROMPT_TOKENS] += tokens
    write(s, now_ns, _ITERATION, r, num_decode, tokens, begin_ns)
    if num_decode > 0:
        s.replicas[r, c.STEP] += 1
        s.replicas[r, c.CONTEXT] += num_decode
        s.replicas[r, c.REST] -= num_decode
        s.replicas[r, c.RATIO] = max(s.replicas[r, c.RATIO] - 1, SGLANG_RATIO_LEAST)
        send_step(s, r, now_ns, num_decode)
        if s.replicas[r, c.STEP] == s.replicas[r, c.NEXT_END]:
            _finish_sequences(s, r, now_ns)
    for place in range(s.replicas[r, c.NUM_PIECES]):
        work = s.lists[r, c.LIST_PIECE, place]
        _finish_piece(s, r, work, s.lists[r, c.LIST_TOKENS, place], now_ns)


@compiled
def _finish_sequences(s: State, r: int, now_ns: int) -> None:
    """Takes out the sequences that have all their tokens."""
    step = s.replicas[r, c.STEP]
    size = s.replicas[r, c.BLOCK_TOKENS]
    kept = 0
    for place in range(s.replicas[r, c.NUM_DECODE]):
        work = s.lists[r, c.LIST_DECODE, place]
        rest = s.works[work, c.OUTPUT] - s.works[work, c.GENERATED]
        if s.works[work, c.STEP_JOINED] + rest > step:
            s.lists[r, c.LIST_DECODE, kept] = work
            kept += 1
            continue
        phase = (s.works[work, c.COMPUTED] - s.works[work, c.STEP_JOINED]) % size
        s.lists[r, c.PHASE, phase] -= 1
        longest_ns = longest_since(s, r, s.works[work, c.STEP_GAPS])
        s.works[work, c.MAX_GAP] = max(s.works[work, c.MAX_GAP], longest_ns)
        s.works[work, c.LAST_TOKEN] = now_ns
        settle(s, r, work)
        s.replicas[r, c.CONTEXT] -= s.works[work, c.COMPUTED]
        release(s, r, work)
        end_work(s, work, _ENDED, now_ns)
        write(s, now_ns, _FINISHED, r, work, 0, now_ns)
    s.replicas[r, c.NUM_DECODE] = kept
    if kept == 0:
        s.replicas[r, c.NUM_STACK] = 0
    s.replicas[r, c.NEXT_END] = first_end(s, r)


@compiled
def _finish_piece(s: State, r: int, work: int, tokens: int, now_ns: int) -> None:
    s.works[work, c.COMPUTED] += tokens
    s.works[work, c.PENDING] -= tokens
    s.replicas[r, c.WAITING_TOKENS] -= tokens
    enter_units(s, r, work, s.works[work, c.COMPUTED])
    if s.works[work, c.COMPUTED] < target(s, work):
        return
    remove_prefill(s, r, work)
    s.works[work, c.GENERATED] += 1
    send_token(s, work, now_ns)
    if s.works[work, c.GENERATED] == 1:
        s.works[work, c.PREFILL_REPLICA] = r
        write(s, now_ns, _FIRST, r, work, 0, now_ns)
    if s.works[work, c.GENERATED] == s.works[work, c.OUTPUT]:
        release(s, r, work)
        end_work(s, work, _ENDED, now_ns)
        write(s, now_ns, _FINISHED, r, work, 0, now_ns)
    elif s.replicas[r, c.ROLE] == c.PREFILL:
        s.replicas[r, c.NUM_HOLDING] += 1
        s.works[work, c.REMOTE] = r
        s.works[work, c.REMOTE_HELD] = s.works[work, c.HELD]
        s.works[work, c.REMOTE_BLOCKS] = s.works[work, c.PRIVATE]
        s.works[work, c.HELD] = 0
        s.works[work, c.PRIVATE] = 0
        route_decode(s, work, now_ns)
    else:
        join_decode(s, r, work)


@compiled
def jump(s: State, r: int, horizon_ns: int) -> None:
    """Does decoding iterations that end before a time, up to one in which something else happens.

    Something else: a sequence ends, blocks must be evicted, the log is full. The iteration under way is then
    not ended; each that is begun here is begun as `start` would.
    """
    replica = s.replicas[r]
    num_decode = replica[c.BATCH]
    size = s.replicas[r, c.BLOCK_TOKENS]
    base_ns = s.prices[replica[c.DECODE_AT] + num_decode]
    used = used_blocks(s, r)
    last_step = replica[c.NEXT_END] - 1
    room = len(s.log) - s.world[c.LOG_MARGIN] if s.world[c.LOGGING] else c.FOREVER
    while replica[c.END] < horizon_ns and replica[c.STEP] < last_step and s.world[c.NUM_LOGGED] < room:
        grown = s.lists[r, c.PHASE, (-replica[c.STEP] - 1) % size]
        if grown > replica[c.FREE]:
            return
        end_ns, begin_ns = replica[c.END], replica[c.BEGIN]
        write(s, end_ns, _ITERATION, r, num_decode, 0, begin_ns)
        replica[c.STEP] += 1
        replica[c.CONTEXT] += num_decode
        replica[c.REST] -= num_decode
        replica[c.RATIO] = max(replica[c.RATIO] - 1, SGLANG_RATIO_LEAST)
        replica[c.BUSY_NS] += end_ns - begin_ns
        replica[c.ITERATIONS] += 1
        replica[c.DECODE_TOKENS] += num_decode
        count_blocks(replica, used, end_ns)
        send_step(s, r, end_ns, num_decode)
        used += grown
        replica[c.FREE] -= grown
        replica[c.KV_PEAK] = max(replica[c.KV_PEAK], used)
        duration_ns = base_ns + attend_ns(s.prices, replica, num_decode, replica[c.CONTEXT])
        replica[c.BEGIN] = end_ns
        replica[c.END] = end_ns + max(duration_ns, 1)
