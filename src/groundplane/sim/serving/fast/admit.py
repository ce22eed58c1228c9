"""Starting and giving way, compiled: which request joins a batch, which is put back into the line."""

# mypy: disable-error-code="no-any-return"
# (numpy types an element as Any)

from __future__ import annotations

from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.cache import (
    allocate,
    available,
    blocks,
    count_hits,
    count_idle,
    enter_units,
    hit_limit,
    release,
    use_units,
    write,
)
from groundplane.sim.serving.fast.compiled import compiled
from groundplane.sim.serving.fast.gateway import most_tokens, target
from groundplane.sim.serving.fast.lines import before, pop, push
from groundplane.sim.serving.fast.members import join_decode, join_prefill, remove_decode, remove_prefill
from groundplane.sim.serving.fast.state import State
from groundplane.sim.serving.fast.units import find, leave_tiers
from groundplane.sim.serving.outcome import EventKind
from groundplane.sim.serving.prepare import SGLANG_CLIP_TOKENS, SGLANG_RATIO_START

_ADMITTED, _PREEMPTED = int(EventKind.ADMITTED), int(EventKind.PREEMPTED)


@compiled
def admit(s: State, r: int, budget: int, now_ns: int) -> int:
    """Lets the head of the line in; the tokens of the iteration it uses, or -1 if it must wait."""
    work = s.replicas[r, c.LINE]
    if s.works[work, c.REMOTE] >= 0:
        return _admit_remote(s, r, work, now_ns)
    if budget < 1:
        return -1
    if s.works[work, c.SWAPPED]:
        return _admit_swapped(s, r, work, now_ns)
    unit, unit_tokens = s.replicas[r, c.UNIT_BLOCKS], s.replicas[r, c.UNIT_TOKENS]
    whole = target(s, work)
    limit = hit_limit(s, r, work, whole - 1)
    hits = count_hits(s, r, work, limit)
    host, disk = _count_tier_hits(s, r, work, hits, limit)
    found = hits + host + disk
    computed = found * unit_tokens
    tokens = min(whole - computed, budget)
    need = blocks(s, r, computed + tokens) - hits * unit
    wanted = max(need, _needed(s, r, work) - hits * unit)
    free = available(s, r)
    if wanted > free or wanted > free - count_idle(s, r, work, hits) * unit:
        return -1
    pop(s.works, s.replicas, r, c.LINE)
    write(s, now_ns, _ADMITTED, r, work, computed, now_ns)
    if not s.works[work, c.SEEN]:
        s.works[work, c.SEEN] = 1
        s.works[work, c.ADMITTED] = now_ns
        s.works[work, c.HIT_TOKENS] = hits * unit_tokens
        s.works[work, c.TIER_HIT_TOKENS] = (host + disk) * unit_tokens
    join_prefill(s, r, work)
    use_units(s, r, work, hits)
    begin = s.works[work, c.HASH_BEGIN]
    for place in range(begin + hits, begin + found):
        leave_tiers(s.tables, s.places, c.LEVELS * r, s.hashes[place])
    allocate(s, r, now_ns, need)
    s.works[work, c.PRIVATE] = need
    s.works[work, c.COMPUTED] = computed
    s.replicas[r, c.WAITING_TOKENS] += whole - computed - s.works[work, c.PENDING]
    s.works[work, c.PENDING] = whole - computed
    enter_units(s, r, work, computed)
    s.replicas[r, c.LOADS] += unit * (host * s.replicas[r, c.HOST_NS] + disk * s.replicas[r, c.DISK_NS])
    compute(s, r, work, tokens, 0, now_ns)
    return tokens


@compiled
def _count_tier_hits(s: State, r: int, work: int, hits: int, limit: int) -> tuple[int, int]:
    """Units after the first hits that host memory holds, and that the disk does."""
    host = 0
    disk = 0
    table = c.LEVELS * r
    if s.tables[table + 1, c.CAPACITY] == 0 and s.tables[table + 2, c.CAPACITY] == 0:
        return host, disk
    begin = s.works[work, c.HASH_BEGIN]
    for place in range(begin + hits, begin + limit):
        if find(s.tables, s.places, table + 1, s.hashes[place]) >= 0:
            host += 1
        elif find(s.tables, s.places, table + 2, s.hashes[place]) >= 0:
            disk += 1
        else:
            break
    return host, disk


@compiled
def _admit_swapped(s: State, r: int, work: int, now_ns: int) -> int:
    computed = s.works[work, c.COMPUTED]
    need = blocks(s, r, computed + 1)
    if max(need, _needed(s, r, work)) > available(s, r):
        return -1
    pop(s.works, s.replicas, r, c.LINE)
    write(s, now_ns, _ADMITTED, r, work, computed, now_ns)
    moved = blocks(s, r, computed)
    s.replicas[r, c.SWAPPED_BLOCKS] -= moved
    s.replicas[r, c.SWAPS] += moved * s.replicas[r, c.SWAP_NS]
    allocate(s, r, now_ns, need)
    s.works[work, c.PRIVATE] = need
    s.works[work, c.SWAPPED] = 0
    join_decode(s, r, work)
    return 1


@compiled
def _admit_remote(s: State, r: int, work: int, now_ns: int) -> int:
    source = s.works[work, c.REMOTE]
    unit, computed = s.replicas[r, c.UNIT_BLOCKS], s.works[work, c.COMPUTED]
    hits = count_hits(s, r, work, hit_limit(s, r, work, computed))
    need = blocks(s, r, computed) - hits * unit
    free = available(s, r) - count_idle(s, r, work, hits) * unit
    if max(need, _needed(s, r, work) - hits * unit) > free:
        return -1
    pop(s.works, s.replicas, r, c.LINE)
    write(s, now_ns, _ADMITTED, r, work, hits * s.replicas[r, c.UNIT_TOKENS], now_ns)
    use_units(s, r, work, hits)
    allocate(s, r, now_ns, need)
    s.works[work, c.PRIVATE] = need
    latency_ns = max(s.replicas[r, c.LINK_LATENCY], s.replicas[source, c.LINK_LATENCY])
    duration_ns = latency_ns + need * max(s.replicas[r, c.LINK_NS], s.replicas[source, c.LINK_NS])
    begin_ns = max(now_ns, s.replicas[r, c.INGRESS], s.replicas[source, c.EGRESS])
    end_ns = begin_ns + max(duration_ns, 1)
    s.replicas[r, c.INGRESS] = end_ns
    s.replicas[source, c.EGRESS] = end_ns
    s.replicas[r, c.TRANSFER_NS] += end_ns - begin_ns
    place = s.replicas[r, c.NUM_TRANSFER]
    s.lists[r, c.LIST_TRANSFER, place] = work
    s.lists[r, c.LIST_TRANSFER_END, place] = end_ns
    s.replicas[r, c.NUM_TRANSFER] += 1
    s.works[work, c.WHERE] = c.IN_TRANSFER
    return 0


@compiled
def _needed(s: State, r: int, work: int) -> int:
    """Blocks, those it finds included, that must be to be had before a request may begin."""
    kind = s.replicas[r, c.KIND]
    if kind == c.SGLANG:
        rest = min(s.works[work, c.OUTPUT] - s.works[work, c.GENERATED], SGLANG_CLIP_TOKENS)
        aside = blocks(s, r, s.replicas[r, c.REST] * s.replicas[r, c.RATIO] // 1000)
        for place in range(s.replicas[r, c.NUM_PREFILL]):
            aside += _promised(s, r, s.lists[r, c.LIST_PREFILL, place])
        return blocks(s, r, target(s, work) + rest - 1) + aside
    if kind == c.TRTLLM:
        promised = 0
        for place in range(s.replicas[r, c.NUM_PREFILL]):
            promised += _promised(s, r, s.lists[r, c.LIST_PREFILL, place])
        for place in range(s.replicas[r, c.NUM_TRANSFER]):
            promised += _promised(s, r, s.lists[r, c.LIST_TRANSFER, place])
        for place in range(s.replicas[r, c.NUM_DECODE]):
            other = s.lists[r, c.LIST_DECODE, place]
            steps = s.replicas[r, c.STEP] - s.works[other, c.STEP_JOINED]
            owned = blocks(s, r, s.works[other, c.COMPUTED] + steps + s.replicas[r, c.GROWN])
            promised += blocks(s, r, most_tokens(s, other)) - owned
        return blocks(s, r, most_tokens(s, work)) + promised
    if kind == c.VLLM and s.replicas[r, c.RESERVE_PROMPT]:
        return blocks(s, r, target(s, work))
    return 0


@compiled
def _promised(s: State, r: int, work: int) -> int:
    """Blocks that a request in the batch, which does not decode yet, may still need."""
    held = s.works[work, c.HELD] * s.replicas[r, c.UNIT_BLOCKS]
    return blocks(s, r, most_tokens(s, work)) - held - s.works[work, c.PRIVATE]


@compiled
def compute(s: State, r: int, work: int, tokens: int, need: int, now_ns: int) -> None:
    """Puts the next tokens of a prompt into the iteration."""
    allocate(s, r, now_ns, need)
    s.works[work, c.PRIVATE] += need
    place = s.replicas[r, c.NUM_PIECES]
    s.lists[r, c.LIST_PIECE, place] = work
    s.lists[r, c.LIST_TOKENS, place] = tokens
    s.replicas[r, c.NUM_PIECES] += 1
    if s.replicas[r, c.KIND] == c.VLLM:
        enter_units(s, r, work, s.works[work, c.COMPUTED] + tokens)


@compiled
def victim(s: State, r: int) -> int:
    """Who gives way when blocks run out."""
    sglang = s.replicas[r, c.KIND] == c.SGLANG
    loser = -1
    fewest = c.FOREVER
    for place in range(s.replicas[r, c.NUM_DECODE]):
        work = s.lists[r, c.LIST_DECODE, place]
        if not sglang:
            if loser < 0 or before(s.works, loser, work):
                loser = work
            continue
        tokens = s.works[work, c.GENERATED] + s.replicas[r, c.STEP] - s.works[work, c.STEP_JOINED]
        longer = loser >= 0 and (
            s.works[work, c.PROMPT] > s.works[loser, c.PROMPT]
            or (s.works[work, c.PROMPT] == s.works[loser, c.PROMPT] and work > loser)
        )
        if tokens < fewest or (tokens == fewest and longer):
            loser = work
            fewest = tokens
    if not sglang and s.replicas[r, c.NUM_PREFILL] > 0:
        work = s.lists[r, c.LIST_PREFILL, s.replicas[r, c.NUM_PREFILL] - 1]
        if loser < 0 or before(s.works, loser, work):
            loser = work
    return loser


@compiled
def preempt(s: State, r: int, work: int, now_ns: int) -> None:
    """Takes a request out of the batch and puts it back into the line."""
    s.replicas[r, c.NUM_PREEMPTED] += 1
    s.works[work, c.PREEMPTIONS] += 1
    s.replicas[r, c.RATIO] = SGLANG_RATIO_START
    decoding = s.works[work, c.WHERE] == c.IN_DECODE
    if decoding:
        remove_decode(s, r, work)
    else:
        remove_prefill(s, r, work)
    computed = s.works[work, c.COMPUTED]
    write(s, now_ns, _PREEMPTED, r, work, computed, now_ns)
    release(s, r, work)
    size = blocks(s, r, computed)
    room = s.replicas[r, c.SWAPPED_BLOCKS] + size <= s.replicas[r, c.SWAP_BLOCKS]
    if s.replicas[r, c.SWAP] and decoding and room:
        s.works[work, c.SWAPPED] = 1
        s.replicas[r, c.SWAPPED_BLOCKS] += size
        s.replicas[r, c.SWAPS] += size * s.replicas[r, c.SWAP_NS]
    else:
        s.works[work, c.COMPUTED] = 0
        s.works[work, c.PENDING] = target(s, work)
        s.replicas[r, c.WAITING_TOKENS] += s.works[work, c.PENDING]
    s.works[work, c.WHERE] = c.IN_LINE
    push(s.works, s.replicas, r, c.LINE, work)
