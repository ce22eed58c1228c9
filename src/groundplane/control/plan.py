"""Where and when the blocked head of the queue will run: what backfill may not touch.

The running works give back their devices in the order of their predicted ends; the first moment at which
enough ranks fit on open nodes is the start, the nodes with most room then are the plan. Works without a
prediction come last, in the order of their fences, and make the start unknown. Replicas are not expected to
end, unless they are draining or stopping. No plan means that the head would not fit if every job were over.
"""

from __future__ import annotations

from groundplane.control.events import Gang
from groundplane.control.placement import Pool, Pools, num_slots
from groundplane.control.state import CoreState, HeadPlan, Hold, Node, Work

UNKNOWN_NS = 1 << 62


def plan_head(state: CoreState, pools: Pools, owner_id: str, gang: Gang) -> HeadPlan | None:
    """The plan for a gang that cannot be placed now.

    Args:
        owner_id: the job or replica that waits.
    """
    ends = sorted(
        (end_ns, work.fence, work.work_id)
        for work in state.works.values()
        if (end_ns := _predicted_end_ns(state, work)) is not None
    )
    best: tuple[int, dict[str, Hold]] | None = None
    for pool in pools:
        found = _plan_in_pool(state, pool, gang, ends)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return None
    return HeadPlan(owner_id, -1 if best[0] == UNKNOWN_NS else best[0], best[1])


def _predicted_end_ns(state: CoreState, work: Work) -> int | None:
    if not work.placement:
        return None
    if work.state in {"stopping", "draining"}:
        return state.now_ns
    if work.kind == "replica":
        return None
    predicted_run_ns = state.jobs[work.owner_id].predicted_run_ns
    return max(state.now_ns, work.leased_ns + predicted_run_ns) if predicted_run_ns else UNKNOWN_NS


def _plan_in_pool(
    state: CoreState, pool: Pool, gang: Gang, ends: list[tuple[int, int, str]]
) -> tuple[int, dict[str, Hold]] | None:
    room = {node.node_id: _Room(node, gang) for node in pool.open_nodes()}
    total = sum(each.slots for each in room.values())
    for end_ns, _, work_id in ends:
        work = state.works[work_id]
        for rank in work.placement:
            each = room.get(rank.node_id)
            if each is None or rank.node_id in work.lost_nodes:
                continue
            total += each.give_back(len(rank.devices), work.gang.memory_bytes_per_rank, gang)
        if total >= gang.num_ranks:
            return end_ns, _choose(room, gang)
    return None


class _Room:
    """Free devices and memory of one node at a moment to come."""

    __slots__ = ("index", "memory_bytes", "num_devices", "slots")

    def __init__(self, node: Node, gang: Gang) -> None:
        self.index = node.index
        self.num_devices = sum(not device.holder for device in node.devices)
        self.memory_bytes = node.free_memory_bytes
        self.slots = num_slots(self.num_devices, self.memory_bytes, gang)

    def give_back(self, num_devices: int, memory_bytes: int, gang: Gang) -> int:
        """Adds what a work returns; the answer is how many more ranks of `gang` fit."""
        before = self.slots
        self.num_devices += num_devices
        self.memory_bytes += memory_bytes
        self.slots = num_slots(self.num_devices, self.memory_bytes, gang)
        return self.slots - before


def _choose(room: dict[str, _Room], gang: Gang) -> dict[str, Hold]:
    holds: dict[str, Hold] = {}
    left = gang.num_ranks
    for node_id, each in sorted(room.items(), key=lambda item: (-item[1].slots, item[1].index)):
        ranks = min(each.slots, left)
        if ranks == 0:
            break
        holds[node_id] = Hold(ranks * gang.devices_per_rank, ranks * gang.memory_bytes_per_rank)
        left -= ranks
    return holds
