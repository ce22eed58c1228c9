"""Where parts of devices go: an index of shared devices by what is taken of them, and the choice among them.

Candidates for a part are the devices that are shared already, one of each class of equals, and one fresh
device of each number of free devices that nodes have. The part goes where fragmentation over the typical mix
rises least (`fragmentation.py`); ties go to a device that is shared already, then to the one left fullest,
then to the placement of an instance that leaves most others possible, then to the node that joined first.
Whole devices never come here: a gang without a part costs nothing more for it. Derived state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from groundplane.control.actions import PlacedPart, RankPlacement
from groundplane.control.devices import UNUSED, DeviceUse, fits, most_parts, use_of, use_with, ways
from groundplane.control.events import DevicePart, Gang
from groundplane.control.fragmentation import Mix, lost_options
from groundplane.control.sorted_list import SortedList
from groundplane.control.state import CoreState, Hold, Node

if TYPE_CHECKING:
    from groundplane.control.placement import Pool, Pools

Spot = tuple[int, int, str]
"""A shared device: its node's place in the order of joining, its index, the node's id."""


class Candidate(NamedTuple):
    """One way to place a part."""

    node: Node
    device: int
    part: PlacedPart
    before: DeviceUse
    after: DeviceUse
    num_free: int


Rank = Callable[[Candidate], tuple[int, ...]]
"""Least for the candidate that is chosen."""


class PartPlacer:
    """The `Parts` of one view of the pools.

    Args:
        sharing: the index.
        is_barred: nodes whose shared devices may not be touched; none, if not given.
    """

    def __init__(self, sharing: Sharing, is_barred: Callable[[Node], bool] | None = None) -> None:
        self._sharing = sharing
        self._is_barred = is_barred

    def place(self, gang: Gang, pools: Pools) -> tuple[RankPlacement, ...] | None:
        """A part for the gang's one rank, or None."""
        rank = self._sharing.place(gang, pools, self._is_barred)
        return None if rank is None else (rank,)


class Sharing:
    """Shared devices of the open nodes in `state`.

    Args:
        mix: the typical mix, for `rank`.
        rank: how candidates are compared; by the rise of fragmentation if not given. May be set anew.
    """

    def __init__(self, state: CoreState, mix: Mix, rank: Rank | None = None) -> None:
        self._state = state
        self._mix = mix
        self.rank = rank or self.by_fragmentation
        self._spots: dict[str, dict[DeviceUse, SortedList[Spot]]] = {}
        self._class_of: dict[str, dict[int, tuple[str, DeviceUse]]] = {}

    def __bool__(self) -> bool:
        return bool(self._class_of)

    def update(self, node: Node) -> None:
        """Takes note of a node whose shared devices changed, or that has opened or closed."""
        before = self._class_of.pop(node.node_id, None)
        for device, (kind, use) in (before or {}).items():
            spots = self._spots[kind][use]
            spots.remove((node.index, device, node.node_id))
            if not spots:
                del self._spots[kind][use]
        if not node.shared or not node.is_open:
            return
        described = self._state.kinds.get(node.device_kind)
        classes = self._spots.setdefault(node.device_kind, {})
        found = self._class_of[node.node_id] = {}
        for each in node.shared:
            use = use_of(each.parts.values(), described)
            classes.setdefault(use, SortedList()).add((node.index, each.device, node.node_id))
            found[each.device] = (node.device_kind, use)

    def place(
        self, gang: Gang, pools: Pools, is_barred: Callable[[Node], bool] | None = None
    ) -> RankPlacement | None:
        """The best part of a device for the gang's rank, or None.

        Args:
            pools: whose free devices may be opened.
            is_barred: nodes whose shared devices may not be touched.
        """
        if gang.part is None:
            return None
        for kind in gang.kinds or tuple(self._state.kinds):
            candidates = list(self.shared_candidates(kind, gang, gang.part, is_barred))
            candidates += self._fresh(kind, gang, gang.part, pools)
            if candidates:
                best = min(candidates, key=self.rank)
                return RankPlacement(best.node.node_id, (best.device,), best.part)
        return None

    def fits_when_empty(self, gang: Gang, kind: str) -> bool:
        """Whether the part fits on a device of this kind of which nothing is taken."""
        return gang.part is not None and fits(UNUSED, gang.part, self._state.kinds.get(kind))

    def num_that_fit(self, gang: Gang, pool: Pool) -> int:
        """How many such parts the open nodes of a kind would take now, one beside the other."""
        described = self._state.kinds.get(pool.device_kind)
        if gang.part is None or described is None:
            return 0
        fresh = most_parts(UNUSED, gang.part, described) * pool.num_free
        classes = self._spots.get(pool.device_kind, {})
        return fresh + sum(
            most_parts(use, gang.part, described) * len(spots) for use, spots in classes.items()
        )

    def first_room(self, gang: Gang, end_ns: Callable[[str], int]) -> tuple[int, dict[str, Hold]] | None:
        """When a shared device will have room for the part at the earliest, and the hold on its node.

        Args:
            end_ns: when a work is expected to give its part back; less than 0 for never.
        """
        best: tuple[int, int, int, str] | None = None
        for kind in gang.kinds or tuple(self._state.kinds):
            for spots in self._spots.get(kind, {}).values():
                for index, device, node_id in spots:
                    found_ns = self._room_ns(gang, self._state.nodes[node_id], device, end_ns)
                    if found_ns >= 0 and (best is None or (found_ns, index, device) < best[:3]):
                        best = (found_ns, index, device, node_id)
        return None if best is None else (best[0], {best[3]: Hold(0, gang.memory_bytes_per_rank)})

    def _room_ns(self, gang: Gang, node: Node, device: int, end_ns: Callable[[str], int]) -> int:
        """When the device has room for the part; -1 for never as far as can be told."""
        if gang.part is None:
            return -1
        kind = self._state.kinds.get(node.device_kind)
        staying = dict(node.parts_of(device))
        memory_bytes = node.free_memory_bytes
        ends = sorted((end, work_id) for work_id in staying if (end := end_ns(work_id)) >= 0)
        for end, work_id in [(0, ""), *ends]:
            if work_id:
                del staying[work_id]
                memory_bytes += self._state.works[work_id].gang.memory_bytes_per_rank
            use = use_of(staying.values(), kind)
            if memory_bytes >= gang.memory_bytes_per_rank and fits(use, gang.part, kind):
                return end
        return -1

    def shared_candidates(
        self, kind: str, gang: Gang, part: DevicePart, is_barred: Callable[[Node], bool] | None
    ) -> Iterator[Candidate]:
        """Ways to place the part on devices that are shared already: one device of each class of equals."""
        described = self._state.kinds.get(kind)
        for use, spots in self._spots.get(kind, {}).items():
            found = list(ways(use, part, described))
            if not found:
                continue
            for _, device, node_id in spots:
                node = self._state.nodes[node_id]
                if node.free_memory_bytes >= gang.memory_bytes_per_rank and not (
                    is_barred and is_barred(node)
                ):
                    for placed in found:
                        after = use_with(use, placed, described)
                        yield Candidate(node, device, placed, use, after, node.num_free)
                    break

    def _fresh(self, kind: str, gang: Gang, part: DevicePart, pools: Pools) -> Iterator[Candidate]:
        described = self._state.kinds.get(kind)
        found = list(ways(UNUSED, part, described))
        if not found:
            return
        for num_free, node in pools.rooms(kind, gang):
            for placed in found:
                after = use_with(UNUSED, placed, described)
                yield Candidate(node, node.free[0], placed, UNUSED, after, num_free)

    def by_fragmentation(self, candidate: Candidate) -> tuple[int, ...]:
        """The rank that is used unless another is set."""
        node, device, _, before, after, num_free = candidate
        kind = self._state.kinds[node.device_kind]
        return (
            self._mix.rise(before, after, num_free, kind),
            before == UNUSED,
            num_free if before == UNUSED else after.free_units,
            lost_options(before, after, kind),
            node.index,
            device,
        )
