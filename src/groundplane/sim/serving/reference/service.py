"""The plain simulator's gateway and clock: what happens when, where requests go, which replicas there are."""

from __future__ import annotations

import bisect

from groundplane.control import autoscale, routing
from groundplane.sim.serving.outcome import MAX_SAMPLES, NEVER, EventKind, State, gap_bin
from groundplane.sim.serving.prepare import Prepared
from groundplane.sim.serving.reference.replica import DRAINING, LOST, OFF, READY, STARTING, Replica
from groundplane.sim.serving.reference.work import Work
from groundplane.spec.errors import InvariantError

Event = tuple[int, int, int, int, int, int]


class Service:
    """A deployment that serves requests; `run` once."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self.deployment = prepared, prepared.deployment
        requests = prepared.requests
        self.works = [self._work(index) for index in range(len(requests))]
        self.start_ns = prepared.start_ns
        self.now_ns = self.start_ns
        self.events: list[Event] = []
        self.gap_counts: list[dict[int, int]] = [{} for _ in range(prepared.num_models)]
        self.samples: list[tuple[int, list[tuple[int, int, int, int]]]] = []
        self.num_done = 0
        self.lines: list[list[Work]] = [[] for _ in range(prepared.num_models)]
        self.decode_lines: list[list[Work]] = [[] for _ in range(prepared.num_models)]
        self.previous = [NEVER] * prepared.num_models
        self.previous_decode = [NEVER] * prepared.num_models
        self.home = [NEVER] * max(prepared.num_sessions, 1)
        self.memories = [autoscale.new_memory() for _ in self.deployment.pools]
        self.replicas: list[Replica] = []
        for pool_index, pool in enumerate(self.deployment.pools):
            for place in range(pool.max_replicas):
                replica = Replica(
                    len(self.replicas), pool_index, pool, int(prepared.unit_blocks[pool_index]), self
                )
                replica.kv_since_ns = self.start_ns
                if place < pool.count:
                    replica.status = READY
                    replica.up_since_ns = replica.ready_since_ns = self.start_ns
                    replica.starts = 1
                self.replicas.append(replica)
        self.failures = prepared.failures()
        self.longest = prepared.longest().tolist()
        self.ticks = [
            self.start_ns + pool.autoscale.interval_ns if pool.autoscale else NEVER
            for pool in self.deployment.pools
        ]
        self.next_sample_ns = self.start_ns + prepared.sample_ns
        self.next_arrival = self.next_failure = 0

    def _work(self, index: int) -> Work:
        requests = self.prepared.requests
        begin = int(requests.block_offsets[index])
        return Work(
            index=index,
            prompt=int(requests.prompt_tokens[index]),
            output=int(requests.output_tokens[index]),
            model=int(requests.model[index]),
            priority=int(requests.priority[index]),
            session=int(self.prepared.session[index]),
            hashes=requests.block_hashes[begin : begin + int(self.prepared.num_hashes[index])].tolist(),
        )

    # The clock
    # -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Goes from one time to the next until every request has ended."""
        while self.num_done < len(self.works):
            times = self._times()
            if not times:
                raise InvariantError(f"{len(self.works) - self.num_done} requests wait for ever")
            self.now_ns = min(times)
            self._at(self.now_ns)
            for replica in self.replicas:
                if replica.serving and not replica.iterating:
                    replica.start(self.now_ns)
                    self._stop_if_drained(replica)
        for replica in self.replicas:
            self._down(replica)

    def _times(self) -> list[int]:
        times = [replica.iteration_end_ns for replica in self.replicas if replica.iterating]
        for replica in self.replicas:
            times += replica.transferring.values()
            if replica.change_ns != NEVER:
                times.append(replica.change_ns)
        if self.next_failure < len(self.failures):
            times.append(self.failures[self.next_failure][0])
        times += [tick for tick in self.ticks if tick != NEVER]
        if self.next_arrival < len(self.works):
            times.append(int(self.prepared.requests.arrival_ns[self.next_arrival]))
        if times and len(self.samples) < MAX_SAMPLES:
            times.append(self.next_sample_ns)
        return times

    def _at(self, now_ns: int) -> None:
        """All that happens at one time, in the order that the package states."""
        for replica in self.replicas:
            if replica.iterating and replica.iteration_end_ns == now_ns:
                replica.finish_iteration(now_ns)
        for replica in self.replicas:
            for work, end_ns in list(replica.transferring.items()):
                if end_ns == now_ns:
                    self._finish_transfer(replica, work)
        while self.next_failure < len(self.failures) and self.failures[self.next_failure][0] == now_ns:
            _, number, down_ns = self.failures[self.next_failure]
            self.next_failure += 1
            self._lose(self.replicas[number], down_ns)
        for replica in self.replicas:
            while replica.change_ns == now_ns:
                self._change(replica)
        for index, tick in enumerate(self.ticks):
            if tick == now_ns:
                self._autoscale(index)
        arrivals = self.prepared.requests.arrival_ns
        while self.next_arrival < len(self.works) and int(arrivals[self.next_arrival]) == now_ns:
            work = self.works[self.next_arrival]
            self.next_arrival += 1
            self._route(work, bounded=True)
        if self.next_sample_ns == now_ns and len(self.samples) < MAX_SAMPLES:
            self._sample()

    def _sample(self) -> None:
        rows = [
            (
                replica.cache.used_blocks,
                replica.cache.idle_blocks,
                replica.num_running,
                len(replica.waiting),
            )
            for replica in self.replicas
        ]
        self.samples.append((self.now_ns, rows))
        self.next_sample_ns += self.prepared.sample_ns

    # What replicas tell
    # -------------------------------------------------------------------------------------------------

    def log(
        self, now_ns: int, kind: EventKind, replica: int, subject: int, value: int, start_ns: int
    ) -> None:
        """Writes an event down."""
        self.events.append((now_ns, int(kind), replica, subject, value, start_ns))

    def token(self, work: Work, now_ns: int) -> None:
        """A token was sent: the first, or one with a gap before it."""
        if work.last_token_ns == NEVER:
            work.first_token_ns = now_ns
        else:
            gap_ns = now_ns - work.last_token_ns
            counts, place = self.gap_counts[work.model], gap_bin(gap_ns)
            counts[place] = counts.get(place, 0) + 1
            work.max_gap_ns = max(work.max_gap_ns, gap_ns)
        work.last_token_ns = now_ns

    def ended(self, work: Work, now_ns: int) -> None:
        """A request has all its tokens."""
        self._end(work, State.ENDED)
        self.log(now_ns, EventKind.FINISHED, work.replica, work.index, 0, now_ns)

    def handed(self, work: Work, now_ns: int) -> None:  # noqa: ARG002  the clock stands at it
        """A prompt is computed; a decoding replica is to take it."""
        self._route_decode(work)

    def _end(self, work: Work, state: State) -> None:
        work.state = int(state)
        work.finish_ns = self.now_ns
        self.num_done += 1

    def _finish_transfer(self, replica: Replica, work: Work) -> None:
        source = work.remote
        if source is None:
            raise InvariantError("a cache came from nowhere")
        replica.touch(self.now_ns)
        source.touch(self.now_ns)
        source.release_remote(work)
        brought = replica.finish_transfer(work)
        work.transfer_ns += self.now_ns - work.last_token_ns
        replica.log(self.now_ns, EventKind.TRANSFERRED, work.index, brought)

    # Routing
    # -------------------------------------------------------------------------------------------------

    def _fits(self, replica: Replica, work: Work, *, decode: bool) -> bool:
        right_role = (replica.pool.role == "decode") == decode
        room = int(self.prepared.most_tokens[replica.pool_index])
        return right_role and replica.pool.model == work.model and room >= work.most_tokens

    def _route(self, work: Work, *, bounded: bool) -> None:
        """Sends a request to a replica, into the gateway's line, or away."""
        if work.most_tokens > self.longest[work.model]:
            self._reject(work, State.REJECTED_LONG)
            return
        up = [
            replica.status == READY and self._fits(replica, work, decode=False) for replica in self.replicas
        ]
        if not any(up):
            line = self.lines[work.model]
            if bounded and len(line) >= self.deployment.max_waiting:
                self._reject(work, State.REJECTED_FULL)
            else:
                bisect.insort(line, work, key=lambda other: other.rank)
            return
        able = [
            is_up and (not bounded or len(replica.waiting) < replica.pool.max_queue)
            for is_up, replica in zip(up, self.replicas, strict=True)
        ]
        hits = [0] * len(self.replicas)
        if self.deployment.routing.kind == "prefix":
            hits = [
                replica.expected_hits(work) if is_able else 0
                for is_able, replica in zip(able, self.replicas, strict=True)
            ]
        chosen = self._pick(work, able, hits)
        if chosen == routing.NO_REPLICA:
            self._reject(work, State.REJECTED_FULL)
            return
        self.previous[work.model] = chosen
        if work.session >= 0:
            self.home[work.session] = chosen
        replica = self.replicas[chosen]
        work.replica = chosen
        work.pending_tokens = work.target - hits[chosen]
        replica.push(work)
        replica.log(self.now_ns, EventKind.ROUTED, work.index, hits[chosen])

    def _pick(self, work: Work, able: list[bool], hits: list[int]) -> int:
        kind, previous = self.deployment.routing.kind, self.previous[work.model]
        if kind == "round_robin":
            return routing.round_robin(able, previous)
        if kind == "session" and work.session >= 0:
            home = routing.at_home(able, self.home[work.session])
            if home != routing.NO_REPLICA:
                return home
        return routing.least_cost(
            able,
            previous,
            [replica.waiting_tokens for replica in self.replicas],
            [replica.held_tokens for replica in self.replicas],
            hits,
            work.target,
            self.deployment.routing.prompt_permille,
        )

    def _route_decode(self, work: Work) -> None:
        able = [
            replica.status == READY and self._fits(replica, work, decode=True) for replica in self.replicas
        ]
        previous = self.previous_decode[work.model]
        if self.deployment.routing.kind == "round_robin":
            chosen = routing.round_robin(able, previous)
        else:
            chosen = routing.least_cost(
                able,
                previous,
                [replica.waiting_tokens for replica in self.replicas],
                [replica.held_tokens for replica in self.replicas],
                [0] * len(self.replicas),
                0,
                self.deployment.routing.prompt_permille,
            )
        if chosen == routing.NO_REPLICA:
            bisect.insort(self.decode_lines[work.model], work, key=lambda other: other.rank)
            return
        self.previous_decode[work.model] = chosen
        replica = self.replicas[chosen]
        work.replica = chosen
        work.expected_tokens = work.computed
        work.pending_tokens = 0 if work.remote is not None else work.target
        replica.push(work)
        replica.log(self.now_ns, EventKind.ROUTED, work.index, 0)

    def _reject(self, work: Work, state: State) -> None:
        self._end(work, state)
        self.log(self.now_ns, EventKind.REJECTED, NEVER, work.index, int(state), self.now_ns)

    def _flush_lines(self, replica: Replica) -> None:
        """A replica is up: what waited for one is sent."""
        lines = self.decode_lines if replica.pool.role == "decode" else self.lines
        waiting, lines[replica.pool.model] = lines[replica.pool.model], []
        for work in waiting:
            if replica.pool.role == "decode":
                self._route_decode(work)
            else:
                self._route(work, bounded=False)

    # Replicas come and go
    # -------------------------------------------------------------------------------------------------

    def _lose(self, replica: Replica, down_ns: int) -> None:
        if replica.status in (OFF, LOST):
            return
        holding = sorted(replica.holding.values(), key=lambda work: work.index)
        here = replica.lose(self.now_ns)
        replica.log(self.now_ns, EventKind.LOST, 0, 0)
        self._down(replica)
        replica.status, replica.change_ns = LOST, self.now_ns + down_ns
        for work in holding:
            self._lose_cache(work)
        for work in here:
            if work.remote is not None:
                work.remote.touch(self.now_ns)
                work.remote.release_remote(work)
            work.computed = work.held = work.private_blocks = work.pending_tokens = work.expected_tokens = 0
            work.swapped = False
            work.moves += 1
            sent = self.deployment.on_failure == "fail" and work.generated > 0
            if sent or work.moves > self.deployment.max_moves:
                self._end(work, State.FAILED)
                replica.log(self.now_ns, EventKind.FAILED, work.index, 0)
            else:
                self._route(work, bounded=False)

    def _lose_cache(self, work: Work) -> None:
        """The replica that held a computed prompt for another is lost: it is computed again elsewhere."""
        keeper = self.replicas[work.replica]
        work.remote, work.remote_held, work.remote_blocks = None, 0, 0
        work.preemptions += 1
        if work in keeper.transferring:
            keeper.touch(self.now_ns)
            keeper.cancel_transfer(work)
            keeper.push(work)
        work.computed = work.expected_tokens = 0
        work.pending_tokens = work.target

    def _change(self, replica: Replica) -> None:
        """A lost replica begins its cold start, or a starting one is up."""
        if replica.status == LOST:
            self._begin_start(replica)
            return
        self._ready(replica)

    def _begin_start(self, replica: Replica) -> None:
        replica.status = STARTING
        replica.starts += 1
        replica.up_since_ns = self.now_ns
        replica.change_ns = self.now_ns + replica.pool.cold_start.total_ns
        replica.log(self.now_ns, EventKind.STARTING, 0, 0)

    def _ready(self, replica: Replica) -> None:
        replica.status, replica.change_ns = READY, NEVER
        if replica.ready_since_ns == NEVER:
            replica.ready_since_ns = self.now_ns
        replica.log(self.now_ns, EventKind.READY, 0, 0)
        self._flush_lines(replica)

    def _down(self, replica: Replica) -> None:
        """Books the time that a replica was up."""
        if replica.up_since_ns != NEVER:
            replica.up_ns += self.now_ns - replica.up_since_ns
        if replica.ready_since_ns != NEVER:
            replica.ready_ns += self.now_ns - replica.ready_since_ns
        replica.up_since_ns = replica.ready_since_ns = NEVER

    def _stop(self, replica: Replica) -> None:
        self._down(replica)
        # Nothing of its memory is left when it comes back.
        replica.lose(self.now_ns)
        replica.status, replica.change_ns = OFF, NEVER
        replica.log(self.now_ns, EventKind.STOPPED, 0, 0)

    def _stop_if_drained(self, replica: Replica) -> None:
        if replica.status == DRAINING and not replica.iterating and replica.num_requests == 0:
            self._stop(replica)

    def _autoscale(self, pool_index: int) -> None:
        spec = self.deployment.pools[pool_index].autoscale
        if spec is None:
            return
        self.ticks[pool_index] += spec.interval_ns
        pool = self.deployment.pools[pool_index]
        mine = [replica for replica in self.replicas if replica.pool_index == pool_index]
        lines = self.decode_lines if pool.role == "decode" else self.lines
        load = sum(replica.num_requests for replica in mine) + len(lines[pool.model])
        current = [replica for replica in mine if replica.status in (STARTING, READY)]
        wanted = autoscale.replicas_wanted(
            self.memories[pool_index], self.now_ns, load, len(current), spec.target_requests,
            spec.min_replicas, spec.max_replicas, spec.up_patience_ns, spec.down_patience_ns,
        )  # fmt: skip
        for status in (DRAINING, OFF):
            for replica in mine:
                if replica.status == status and wanted > len(current):
                    current.append(replica)
                    if status == DRAINING:
                        self._ready(replica)
                    else:
                        self._begin_start(replica)
                        if replica.change_ns == self.now_ns:
                            self._ready(replica)
        excess = len(current) - wanted
        for status in (STARTING, READY):
            for replica in reversed(mine):
                if replica.status == status and excess > 0:
                    excess -= 1
                    if status == STARTING:
                        self._stop(replica)
                    else:
                        replica.status = DRAINING
