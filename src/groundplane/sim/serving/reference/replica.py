"""One replica of the plain simulator: its line, its batch, and what an iteration does to both.

The scheduler kinds differ in what fills an iteration (`start`), in when a request may begin and who gives way
when blocks run out (`admission`), and in when computed blocks are shared.
"""

from __future__ import annotations

import bisect
from typing import Protocol

from groundplane.sim.serving.deployment import PoolSpec
from groundplane.sim.serving.outcome import NEVER, EventKind
from groundplane.sim.serving.prepare import SGLANG_RATIO_LEAST, SGLANG_RATIO_START
from groundplane.sim.serving.reference.admission import admit, victim
from groundplane.sim.serving.reference.cache import Cache
from groundplane.sim.serving.reference.work import Work


class Hooks(Protocol):
    """What a replica tells the service of."""

    def log(
        self, now_ns: int, kind: EventKind, replica: int, subject: int, value: int, start_ns: int
    ) -> None:
        """Something happened."""

    def token(self, work: Work, now_ns: int) -> None:
        """A token was sent."""

    def ended(self, work: Work, now_ns: int) -> None:
        """The last token was sent."""

    def handed(self, work: Work, now_ns: int) -> None:
        """A prompt is computed and decodes elsewhere; its cache is held here."""


OFF, STARTING, READY, DRAINING, LOST = range(5)


class Replica:
    """State of one engine. Lists of works are in order of rank (`waiting`, `prefilling`) or joining."""

    def __init__(self, number: int, pool_index: int, pool: PoolSpec, unit_blocks: int, hooks: Hooks) -> None:
        self.number, self.pool_index, self.pool, self.hooks = number, pool_index, pool, hooks
        self.unit_blocks = unit_blocks
        self.status = OFF
        self.change_ns = NEVER
        self.waiting: list[Work] = []
        self.prefilling: list[Work] = []
        self.decoding: list[Work] = []
        self.transferring: dict[Work, int] = {}
        self.arrived: list[Work] = []
        self.holding: dict[int, Work] = {}
        self.cache = Cache(pool.cache, unit_blocks)
        self.swapped_blocks = 0
        self.ratio_permille = SGLANG_RATIO_START
        self.pieces: list[tuple[Work, int, int]] = []
        self.iterating = False
        self.iteration_start_ns = self.iteration_end_ns = NEVER
        self.egress_ns = self.ingress_ns = 0
        self.busy_ns = self.ready_ns = self.up_ns = 0
        self.iterations = self.decode_tokens = self.prompt_tokens = 0
        self.kv_block_ns = self.kv_peak_blocks = self.kv_since_ns = 0
        self.preemptions = self.transfer_ns = self.starts = 0
        self.up_since_ns = self.ready_since_ns = NEVER
        self.num_decode = 0
        self.loads_ns = self.swaps_ns = 0

    # What others look at
    # -------------------------------------------------------------------------------------------------

    @property
    def serving(self) -> bool:
        """It computes."""
        return self.status in (READY, DRAINING)

    @property
    def num_running(self) -> int:
        """Sequences in its batch, those whose caches are on their way included."""
        return len(self.prefilling) + len(self.decoding) + len(self.transferring) + len(self.arrived)

    @property
    def num_requests(self) -> int:
        """Requests that are here."""
        return len(self.waiting) + self.num_running + len(self.holding)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens still to be computed."""
        return sum(work.pending_tokens for work in (*self.waiting, *self.prefilling))

    @property
    def held_tokens(self) -> int:
        """Tokens in the caches of decoding sequences, and of those that come to decode here."""
        here = sum(work.computed for work in self.decoding)
        coming = (*self.waiting, *self.transferring, *self.arrived)
        return here + sum(work.expected_tokens for work in coming)

    def expected_hits(self, work: Work) -> int:
        """Tokens that the prefix cache of the chip holds of a prompt."""
        limit = self.hit_limit(work, work.target - 1)
        return self.cache.hits(work.hashes, limit) * self.cache.unit_tokens

    def push(self, work: Work) -> None:
        """Puts a request into the line."""
        bisect.insort(self.waiting, work, key=lambda other: other.rank)

    # Iterations
    # -------------------------------------------------------------------------------------------------

    def start(self, now_ns: int) -> None:
        """Begins an iteration if there is something to compute."""
        self.touch(now_ns)
        for work in self.arrived:
            work.expected_tokens = 0
            self.decoding.append(work)
        self.arrived = []
        self.pieces = []
        self.loads_ns = self.swaps_ns = 0
        while True:
            given_way = self.preemptions
            if self.pool.scheduler.kind == "sglang":
                decoding = self._fill_prompts_first(now_ns)
            else:
                decoding = self._fill_mixed(now_ns)
            num_decode = len(self.decoding) if decoding else 0
            # When all gave way to make room, those that wait are looked at at once.
            if num_decode or self.pieces or self.preemptions == given_way:
                break
        self.num_decode = num_decode
        self.kv_peak_blocks = max(self.kv_peak_blocks, self.cache.used_blocks)
        if not num_decode and not self.pieces:
            return
        context = sum(work.computed for work in self.decoding) if num_decode else 0
        pieces = [(tokens, before) for _, tokens, before in self.pieces]
        compute_ns = self.pool.table.iteration_ns(num_decode, context, pieces)
        self.iterating = True
        self.iteration_start_ns = now_ns
        self.iteration_end_ns = now_ns + max(compute_ns, self.loads_ns) + self.swaps_ns

    def _fill_mixed(self, now_ns: int) -> bool:
        calm = self._make_room_to_decode(now_ns)
        budget = self.pool.scheduler.max_batched_tokens - len(self.decoding)
        for work in list(self.prefilling):
            if budget == 0 or work not in self.prefilling:
                continue
            tokens = min(work.target - work.computed, budget)
            need = self.cache.blocks(work.computed + tokens) - self.cache.blocks(work.computed)
            while need > self.cache.available_blocks:
                calm = False
                if self._preempt(now_ns, victim(self)) is work:
                    break
            if work in self.prefilling:
                self.compute(now_ns, work, tokens, need)
                budget -= tokens
        while calm and self.waiting and self.num_running < self.pool.scheduler.max_sequences:
            used = admit(self, now_ns, self.waiting[0], budget)
            if used is None:
                break
            budget -= used
        return True

    def _fill_prompts_first(self, now_ns: int) -> bool:
        budget = self.pool.scheduler.max_batched_tokens
        for work in list(self.prefilling):
            tokens = min(work.target - work.computed, budget)
            need = self.cache.blocks(work.computed + tokens) - self.cache.blocks(work.computed)
            if budget == 0 or need > self.cache.available_blocks:
                break
            self.compute(now_ns, work, tokens, need)
            budget -= tokens
        while self.waiting and self.num_running < self.pool.scheduler.max_sequences:
            used = admit(self, now_ns, self.waiting[0], budget)
            if used is None:
                break
            budget -= used
        if self.pieces:
            return False
        self._make_room_to_decode(now_ns)
        return True

    def _make_room_to_decode(self, now_ns: int) -> bool:
        """Gives a block to each decoding sequence that needs one; False if any had to give way."""
        calm = True
        while True:
            growing = [work for work in self.decoding if work.computed % self.cache.block_tokens == 0]
            if len(growing) <= self.cache.available_blocks:
                break
            calm = False
            self._preempt(now_ns, victim(self))
        self.allocate(now_ns, len(growing))
        for work in growing:
            work.private_blocks += 1
        return calm

    def compute(self, now_ns: int, work: Work, tokens: int, need: int) -> None:
        """Puts the next tokens of a prompt into the iteration."""
        self.allocate(now_ns, need)
        work.private_blocks += need
        self.pieces.append((work, tokens, work.computed))
        if self.pool.scheduler.kind == "vllm-v1":
            # Its blocks are found by others from when they are scheduled.
            self.enter_units(work, work.computed + tokens)

    def finish_iteration(self, now_ns: int) -> None:
        """Ends the iteration: every sequence in it that has all its prompt gets a token."""
        self.touch(now_ns)
        self.iterating = False
        prompt_tokens = sum(tokens for _, tokens, _ in self.pieces)
        self.busy_ns += now_ns - self.iteration_start_ns
        self.iterations += 1
        self.decode_tokens += self.num_decode
        self.prompt_tokens += prompt_tokens
        self.log(now_ns, EventKind.ITERATION, self.num_decode, prompt_tokens, self.iteration_start_ns)
        if self.num_decode:
            self.ratio_permille = max(self.ratio_permille - 1, SGLANG_RATIO_LEAST)
            for work in list(self.decoding):
                work.computed += 1
                work.generated += 1
                self.hooks.token(work, now_ns)
                if work.generated == work.output:
                    self.remove(work)
                    self.hooks.ended(work, now_ns)
        for work, tokens, _ in self.pieces:
            self._finish_piece(now_ns, work, tokens)

    def _finish_piece(self, now_ns: int, work: Work, tokens: int) -> None:
        work.computed += tokens
        work.pending_tokens -= tokens
        self.enter_units(work, work.computed)
        if work.computed < work.target:
            return
        self.prefilling.remove(work)
        work.generated += 1
        self.hooks.token(work, now_ns)
        if work.generated == 1:
            work.prefill_replica = self.number
            self.log(now_ns, EventKind.FIRST_TOKEN, work.index, 0)
        if work.generated == work.output:
            self.release(work)
            self.hooks.ended(work, now_ns)
        elif self.pool.role == "prefill":
            self.holding[work.index] = work
            work.remote, work.remote_held, work.remote_blocks = self, work.held, work.private_blocks
            work.held = work.private_blocks = 0
            self.hooks.handed(work, now_ns)
        else:
            self.decoding.append(work)

    # Giving way, leaving
    # -------------------------------------------------------------------------------------------------

    def _preempt(self, now_ns: int, work: Work) -> Work:
        """Takes a request out of the batch and puts it back into the line."""
        self.preemptions += 1
        work.preemptions += 1
        self.log(now_ns, EventKind.PREEMPTED, work.index, work.computed)
        self.ratio_permille = SGLANG_RATIO_START
        size = self.cache.blocks(work.computed)
        room = self.swapped_blocks + size <= self.pool.cache.swap_blocks
        swap = self.pool.scheduler.preemption == "swap" and work in self.decoding and room
        self.remove(work)
        if swap:
            work.swapped = True
            self.swapped_blocks += size
            self.swaps_ns += size * self.pool.cache.swap_block_ns
        else:
            work.computed = 0
            work.pending_tokens = work.target
        self.push(work)
        return work

    def remove(self, work: Work) -> None:
        """Takes a request out of the batch; its blocks become free, its units idle."""
        if work in self.prefilling:
            self.prefilling.remove(work)
        else:
            self.decoding.remove(work)
        self.release(work)

    def release(self, work: Work) -> None:
        """Gives back all blocks; whole hash blocks that were computed stay to be found."""
        self.enter_units(work, work.computed)
        self.cache.leave(work.hashes, work.held, work.private_blocks)
        work.held = work.private_blocks = work.pending_tokens = 0

    def release_remote(self, work: Work) -> None:
        """Gives back the blocks of a cache that was kept here for another replica."""
        del self.holding[work.index]
        self.cache.leave(work.hashes, work.remote_held, work.remote_blocks)
        work.remote, work.remote_held, work.remote_blocks = None, 0, 0

    def cancel_transfer(self, work: Work) -> None:
        """A cache that was on its way will not come."""
        del self.transferring[work]
        self.cache.leave(work.hashes, work.held, work.private_blocks)
        work.held = work.private_blocks = 0

    def finish_transfer(self, work: Work) -> int:
        """A cache has come: the request decodes from the next iteration on. The blocks it brought."""
        del self.transferring[work]
        brought = work.private_blocks
        self.enter_units(work, work.computed)
        self.arrived.append(work)
        return brought

    def log(
        self, now_ns: int, kind: EventKind, subject: int, value: int, start_ns: int | None = None
    ) -> None:
        """Something happened here."""
        self.hooks.log(now_ns, kind, self.number, subject, value, now_ns if start_ns is None else start_ns)

    def lose(self, now_ns: int) -> list[Work]:
        """The replica is gone with all it held: the requests that were here, in order of index."""
        self.touch(now_ns)
        if self.iterating:
            self.busy_ns += now_ns - self.iteration_start_ns
        batch = (*self.prefilling, *self.decoding, *self.transferring, *self.arrived)
        here = sorted((*self.waiting, *batch), key=lambda work: work.index)
        self.waiting, self.prefilling, self.decoding, self.arrived, self.transferring = [], [], [], [], {}
        evicted = self.cache.evicted_blocks
        self.cache = Cache(self.pool.cache, self.unit_blocks)
        self.cache.evicted_blocks = evicted
        self.holding = {}
        self.pieces = []
        self.iterating = False
        self.swapped_blocks = 0
        self.ratio_permille = SGLANG_RATIO_START
        self.egress_ns = self.ingress_ns = 0
        return here

    def touch(self, now_ns: int) -> None:
        """Counts blocks in use up to now."""
        self.kv_block_ns += self.cache.used_blocks * (now_ns - self.kv_since_ns)
        self.kv_since_ns = now_ns

    def allocate(self, now_ns: int, count: int) -> None:
        evicted = self.cache.allocate(count)
        if evicted:
            self.log(now_ns, EventKind.EVICTED, evicted, 0)

    def enter_units(self, work: Work, tokens: int) -> None:
        """Makes units of a work's private blocks that are whole hash blocks of its first `tokens`."""
        if not self.pool.cache.prefix:
            return
        limit = self.hit_limit(work, tokens)
        while work.held < limit:
            self.cache.enter(work.hashes[work.held])
            work.held += 1
            work.private_blocks -= self.unit_blocks

    def hit_limit(self, work: Work, tokens: int) -> int:
        if not self.pool.cache.prefix:
            return 0
        return min(len(work.hashes), tokens // self.cache.unit_tokens)
