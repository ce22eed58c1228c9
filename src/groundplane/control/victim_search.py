"""One search for victims: along a timetable, rank after rank, leaving out whom the rules protect.

What it finds places the gang for certain: it is never a number of devices, always ranks on named nodes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from groundplane.control.elastic import is_enlarged
from groundplane.control.events import Gang, PreemptionRules
from groundplane.control.placement import Pool, num_slots
from groundplane.control.plan import LEAVING, Timetable
from groundplane.control.shares import Shares
from groundplane.control.state import CoreState, Hold, Node, Work

MOMENTS_LOOKED_AT = 300
"""How far a search goes along a timetable beyond the ranks that it needs."""
_SIZE_STEP = 4
"""Sizes of gangs are compared in steps of 2**4."""
_RISK_BITS = 72
_SIZE_BITS = 8
_NO_RISK_NS = 1 << 70
_LEAST_PRIORITY = 1 << 40
_ENLARGED = 1


@dataclass(frozen=True)
class Claim:
    """What the head asks for, and by which right."""

    leaf: str
    priority: int
    gang: Gang
    rules: PreemptionRules

    @property
    def num_devices(self) -> int:
        """Devices of the whole gang."""
        return self.gang.num_ranks * self.gang.devices_per_rank

    @property
    def size(self) -> int:
        """Its order of magnitude."""
        return self.num_devices.bit_length() // _SIZE_STEP


@dataclass(frozen=True)
class Found:
    """Where the gang will run, and who has to go; `last_key` says how much is lost, the less the better."""

    last_key: int
    holds: dict[str, Hold]
    victims: list[Work]


Candidate = tuple[int, str, int, int]
"""Key in the order of the search (0: on its way out already), id, devices and memory on one node."""


def candidates_on(state: CoreState, node: Node, size: int) -> list[Candidate]:
    """Attempts on a node that could go for a gang of this order of magnitude, who is to go first first."""
    found = []
    for work_id, devices in node.leases.items():
        work = state.works[work_id]
        key = _key(state, work, size)
        if key >= 0:
            ranks = len(devices) // work.gang.devices_per_rank
            if key > 0 and is_enlarged(job := state.jobs[work.owner_id], work):
                extra = work.placement[job.gang.num_ranks :]
                ranks = sum(rank.node_id == node.node_id for rank in extra)
                if ranks == 0:
                    continue
            num_devices = ranks * work.gang.devices_per_rank
            found.append((key, work_id, num_devices, ranks * work.gang.memory_bytes_per_rank))
    found.sort()
    return found


def _key(state: CoreState, work: Work, size: int) -> int:
    """Sorts by what must not depend on the time of asking; -1 for works that are never victims.

    The time since the last checkpoint of a work that runs is now less `mode_since_ns` less `at_risk_ns`, so
    the order by the latter is the same at any time.
    """
    if work.state in LEAVING:
        return 0
    if work.kind == "replica":
        return -1
    job = state.jobs[work.owner_id]
    if not job.is_preemptible:
        return -1
    held = work.gang.num_ranks * work.gang.devices_per_rank
    excess = max(0, held.bit_length() // _SIZE_STEP - size)
    since_ns = work.mode_since_ns - work.at_risk_ns if work.is_busy else _NO_RISK_NS
    priority = _ENLARGED if is_enlarged(job, work) else max(_ENLARGED + 1, job.priority + _LEAST_PRIORITY)
    return (((priority << _SIZE_BITS) + excess) << _RISK_BITS) + _NO_RISK_NS - since_ns


@dataclass
class _NodeInReach:
    """A node in a search: what is free there by now, and the candidates not yet used, first first."""

    node: Node
    num_free: int
    memory_bytes: int
    num_used: int = 0
    rest: list[Candidate] = field(default_factory=list)


class Search:
    """One walk along a timetable."""

    def __init__(self, state: CoreState, shares: Shares, claim: Claim, pool: Pool) -> None:
        self._state = state
        self._shares = shares
        self._claim = claim
        self._pool = pool
        self._path = shares.path(claim.leaf)
        self._victims: dict[str, Work] = {}
        self._taken: dict[str, int] = {}
        self._reached: dict[int, _NodeInReach] = {}

    def run(self, timetable: Timetable) -> Found | None:
        """Takes rank after rank, the cheapest first. A key of the timetable is never above the true one."""
        gang = self._claim.gang
        steps_left = gang.num_ranks + MOMENTS_LOOKED_AT
        moments = iter(timetable)
        following = next(moments, None)
        ready: list[tuple[int, int]] = []
        last_key = num_ranks = 0
        beyond = self._key_beyond_all_rights()
        while num_ranks < gang.num_ranks and steps_left > 0:
            steps_left -= 1
            if ready and (following is None or ready[0] <= following):
                key, position = heapq.heappop(ready)
                reached = self._reached[position]
                if self._take(reached, key):
                    num_ranks += 1
                    last_key = max(last_key, key)
                self._push_next(ready, position)
            elif following is None or following[0] >= beyond:
                break
            else:
                position = following[1]
                if position not in self._reached:
                    self._reach(position)
                    self._push_next(ready, position)
                following = next(moments, None)
        if num_ranks < gang.num_ranks:
            return None
        holds = {
            reached.node.node_id: Hold(
                reached.num_used * gang.devices_per_rank, reached.num_used * gang.memory_bytes_per_rank
            )
            for _, reached in sorted(self._reached.items())
            if reached.num_used
        }
        self._spare_who_is_not_needed()
        return Found(last_key, holds, list(self._victims.values()))

    def _spare_who_is_not_needed(self) -> None:
        """A larger victim may have made a smaller one before it needless: the dearest are asked first."""
        rooms: dict[str, list[int]] = {}  # devices and memory once all victims are gone, and ranks to place
        given_back: dict[str, list[tuple[str, int, int]]] = {}
        order: dict[str, int] = {}
        for reached in self._reached.values():
            if not reached.num_used:
                continue
            node = reached.node
            room = rooms[node.node_id] = [len(node.free), node.free_memory_bytes, reached.num_used]
            for key, work_id, num_devices, memory_bytes in candidates_on(self._state, node, self._claim.size):
                if key == 0 or work_id in self._victims:
                    room[0] += num_devices
                    room[1] += memory_bytes
                if work_id in self._victims:
                    given_back.setdefault(work_id, []).append((node.node_id, num_devices, memory_bytes))
                    order[work_id] = key
        for work_id in sorted(order, key=lambda each: (-order[each], each)):
            parts = given_back[work_id]
            if all(
                num_slots(rooms[node_id][0] - num_devices, rooms[node_id][1] - memory_bytes, self._claim.gang)
                >= rooms[node_id][2]
                for node_id, num_devices, memory_bytes in parts
            ):
                del self._victims[work_id]
                for node_id, num_devices, memory_bytes in parts:
                    rooms[node_id][0] -= num_devices
                    rooms[node_id][1] -= memory_bytes

    def _key_beyond_all_rights(self) -> int:
        """From this key on nobody can be a victim: priorities are too high, and no guarantee helps."""
        claim = self._claim
        if claim.rules.reclaims and any(
            self._is_guaranteed(level) for level in range(1, len(self._path) + 1)
        ):
            return 1 << (2 * _RISK_BITS)
        priority = _ENLARGED + 1
        if claim.rules.priority_gap:
            priority = max(priority, claim.priority - claim.rules.priority_gap + 1 + _LEAST_PRIORITY)
        return priority << (_SIZE_BITS + _RISK_BITS)

    def _reach(self, position: int) -> None:
        node = self._pool.nodes[position]
        reached = self._reached[position] = _NodeInReach(node, len(node.free), node.free_memory_bytes)
        for candidate in candidates_on(self._state, node, self._claim.size):
            key, work_id, num_devices, memory_bytes = candidate
            if key == 0 or work_id in self._victims:
                reached.num_free += num_devices
                reached.memory_bytes += memory_bytes
            else:
                reached.rest.append(candidate)

    def _push_next(self, ready: list[tuple[int, int]], position: int) -> None:
        """Says by which candidate the node would have room for one more rank, as things stand."""
        found = self._next_room(self._reached[position])
        if found is not None:
            heapq.heappush(ready, (found[0], position))

    def _next_room(self, reached: _NodeInReach) -> tuple[int, list[Work]] | None:
        """The key and the works that have to go for one more rank on the node."""
        gang = self._claim.gang
        num_free, memory_bytes = reached.num_free, reached.memory_bytes
        going: list[Work] = []
        taken: dict[str, int] = {}
        for candidate in reached.rest:
            if candidate[1] in self._victims:
                num_free += candidate[2]
                memory_bytes += candidate[3]
        rest = iter([candidate for candidate in reached.rest if candidate[1] not in self._victims])
        key = 0
        while num_slots(num_free, memory_bytes, gang) <= reached.num_used:
            following = next(rest, None)
            if following is None:
                return None
            _, work_id, num_devices, given_back_bytes = following
            work = self._state.works[work_id]
            if not self._may_take(work, taken):
                continue
            self._count(work, taken)
            going.append(work)
            key = following[0]
            num_free += num_devices
            memory_bytes += given_back_bytes
        return key, going

    def _take(self, reached: _NodeInReach, key: int) -> bool:
        """Takes one more rank on the node, unless what was taken elsewhere has made it dearer."""
        found = self._next_room(reached)
        if found is None or found[0] > key:
            return False
        for work in found[1]:
            self._victims[work.work_id] = work
            self._count(work, self._taken)
        left = []
        for candidate in reached.rest:
            if candidate[1] in self._victims:
                reached.num_free += candidate[2]
                reached.memory_bytes += candidate[3]
            else:
                left.append(candidate)
        reached.rest = left
        reached.num_used += 1
        return True

    def _count(self, work: Work, taken: dict[str, int]) -> None:
        for name in self._shares.path(self._shares.leaf_of(work.queue)):
            taken[name] = taken.get(name, 0) + work.gang.num_ranks * work.gang.devices_per_rank

    def _may_take(self, work: Work, taken: dict[str, int]) -> bool:
        """Whether the rules give the head a right to this victim, beside those that it takes already."""
        claim, rules, state = self._claim, self._claim.rules, self._state
        job = state.jobs[work.owner_id]
        if state.now_ns - work.leased_ns < rules.min_run_ns:
            return False
        if is_enlarged(job, work):
            return True
        if job.num_preemptions >= rules.max_preemptions:
            return False
        outranks = 0 < rules.priority_gap <= claim.priority - job.priority
        theirs = self._shares.path(self._shares.leaf_of(work.queue))
        num_common = 0
        for mine, other in zip(reversed(self._path), reversed(theirs), strict=False):
            if mine != other:
                break
            num_common += 1
        if num_common == len(theirs) == len(self._path):
            return outranks
        if not outranks and not (rules.reclaims and self._is_guaranteed(len(self._path) - num_common)):
            return False
        held = work.gang.num_ranks * work.gang.devices_per_rank
        return all(
            self._shares.num_borrowed(name) >= held + taken.get(name, 0) + self._taken.get(name, 0)
            for name in theirs[: len(theirs) - num_common]
        )

    def _is_guaranteed(self, num_own_levels: int) -> bool:
        """Whether the queue on the claim's side of the fork would stay within its guarantee."""
        if num_own_levels == 0:
            return False
        return -self._shares.num_borrowed(self._path[num_own_levels - 1]) >= self._claim.num_devices
