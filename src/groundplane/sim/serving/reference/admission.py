"""Which request may join a replica's batch, and who leaves it when blocks run out. See `SchedulerSpec`."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from groundplane.sim.serving.outcome import EventKind
from groundplane.sim.serving.prepare import SGLANG_CLIP_TOKENS
from groundplane.sim.serving.reference.work import Work

if TYPE_CHECKING:
    from groundplane.sim.serving.reference.replica import Replica


def admit(replica: Replica, now_ns: int, work: Work, budget: int) -> int | None:
    """Lets the head of the line in; the tokens of the iteration it uses, or None if it must wait."""
    if work.remote is not None:
        return _admit_remote(replica, now_ns, work)
    if budget < 1:
        return None
    if work.swapped:
        return _admit_swapped(replica, now_ns, work)
    cache = replica.cache
    limit = replica.hit_limit(work, work.target - 1)
    hits = cache.hits(work.hashes, limit)
    host, disk = cache.tier_hits(work.hashes, hits, limit)
    begin = (hits + host + disk) * cache.unit_tokens
    tokens = min(work.target - begin, budget)
    taken = hits * replica.unit_blocks
    need = cache.blocks(begin + tokens) - taken
    available = cache.available_blocks - cache.idle_among(work.hashes, hits) * replica.unit_blocks
    if max(need, _needed(replica, work) - taken) > available:
        return None
    _join(replica, now_ns, work, begin)
    if not work.seen:
        work.seen = True
        work.admitted_ns = now_ns
        work.hit_tokens = hits * cache.unit_tokens
        work.tier_hit_tokens = (host + disk) * cache.unit_tokens
    bisect.insort(replica.prefilling, work, key=lambda other: other.rank)
    for name in work.hashes[:hits]:
        cache.use(name)
    work.held = hits
    for name in work.hashes[hits : hits + host + disk]:
        cache.leave_tiers(name)
    replica.allocate(now_ns, need)
    work.private_blocks = need
    work.computed = begin
    work.pending_tokens = work.target - begin
    replica.enter_units(work, begin)
    spec = replica.pool.cache
    replica.loads_ns += replica.unit_blocks * (host * spec.host_block_ns + disk * spec.disk_block_ns)
    replica.compute(now_ns, work, tokens, 0)
    return tokens


def _admit_swapped(replica: Replica, now_ns: int, work: Work) -> int | None:
    """Its cache comes back from host memory, and it decodes in this iteration."""
    need = replica.cache.blocks(work.computed + 1)
    if max(need, _needed(replica, work)) > replica.cache.available_blocks:
        return None
    _join(replica, now_ns, work, work.computed)
    moved = replica.cache.blocks(work.computed)
    replica.swapped_blocks -= moved
    replica.swaps_ns += moved * replica.pool.cache.swap_block_ns
    replica.allocate(now_ns, need)
    work.private_blocks = need
    work.swapped = False
    replica.decoding.append(work)
    return 1


def _admit_remote(replica: Replica, now_ns: int, work: Work) -> int | None:
    """Blocks are taken, and what is not here begins to come over the links."""
    source = work.remote
    if source is None:
        return None
    hits = replica.cache.hits(work.hashes, replica.hit_limit(work, work.computed))
    taken = hits * replica.unit_blocks
    need = replica.cache.blocks(work.computed) - taken
    available = (
        replica.cache.available_blocks - replica.cache.idle_among(work.hashes, hits) * replica.unit_blocks
    )
    if max(need, _needed(replica, work) - taken) > available:
        return None
    _join(replica, now_ns, work, hits * replica.cache.unit_tokens)
    for name in work.hashes[:hits]:
        replica.cache.use(name)
    work.held = hits
    replica.allocate(now_ns, need)
    work.private_blocks = need
    here, there = replica.pool.link, source.pool.link
    duration_ns = max(here.latency_ns, there.latency_ns) + need * max(here.block_ns, there.block_ns)
    begin_ns = max(now_ns, replica.ingress_ns, source.egress_ns)
    end_ns = begin_ns + max(duration_ns, 1)
    replica.ingress_ns = source.egress_ns = end_ns
    replica.transfer_ns += end_ns - begin_ns
    replica.transferring[work] = end_ns
    return 0


def _join(replica: Replica, now_ns: int, work: Work, found_tokens: int) -> None:
    replica.waiting.pop(0)
    replica.log(now_ns, EventKind.ADMITTED, work.index, found_tokens)


def _needed(replica: Replica, work: Work) -> int:
    """Blocks, those it finds included, that must be to be had before a request may begin."""
    scheduler, blocks = replica.pool.scheduler, replica.cache.blocks
    if scheduler.kind == "sglang":
        rest = min(work.output - work.generated, SGLANG_CLIP_TOKENS)
        running = sum(other.output - other.generated for other in replica.decoding)
        begun = sum(_promised(replica, other) for other in replica.prefilling)
        return blocks(work.target + rest - 1) + blocks(running * replica.ratio_permille // 1000) + begun
    if scheduler.kind == "trtllm":
        running_works = (*replica.prefilling, *replica.decoding, *replica.transferring)
        return blocks(work.most_tokens) + sum(_promised(replica, other) for other in running_works)
    if scheduler.kind == "vllm-v1" and scheduler.reserve_prompt:
        return blocks(work.target)
    return 0


def _promised(replica: Replica, work: Work) -> int:
    """Blocks that a request in the batch may still need."""
    return replica.cache.blocks(work.most_tokens) - work.held * replica.unit_blocks - work.private_blocks


def victim(replica: Replica) -> Work:
    if replica.pool.scheduler.kind == "sglang":
        return min(replica.decoding, key=lambda work: (work.generated, -work.prompt, -work.index))
    return max((*replica.prefilling, *replica.decoding), key=lambda work: work.rank)
