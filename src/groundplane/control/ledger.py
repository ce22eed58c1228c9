"""The one ledger of leases and of where every accelerator-nanosecond went. Integers only.

A device is leased to a work with a fence, a number that only grows. It is released by `release` (the engine
proved that the work is gone) or `release_node` (the node was fenced), by nothing else. The accounts of a
device:

- busy: leased, and its work ran: an attempt from started to its stop request or end, a replica while it is
  ready.
- allocated_idle: leased, and not so: before the start, while not ready, from the stop request until gone.
- wasted_by_failure: what was busy since the last committed checkpoint (or the start) of an attempt that
  failed. A job that was cancelled or ran out of its time limit wastes nothing: a person wanted it so.
- fragmentation: free on an open node while the queue's head cannot be placed although the free devices of
  this kind are as many as it needs (the head: the first that would fit if every job gave its devices back).
- maintenance: not leased, on a node that is cordoned, silent or fenced.
- free: not leased, on an open node, otherwise.

Accounts are kept a node, in device-nanoseconds: they sum to (now - joined) x devices, exactly. A leased
device is settled when it is released, since only then is known whether its work was in vain; until then
`read_node` books work at risk as busy. So a lease or a release costs the same however long it lasted, and a
gang costs as much as it has ranks.
"""

from __future__ import annotations

from copy import copy

from groundplane.control.actions import RankPlacement
from groundplane.control.part_books import (
    book_held,
    book_unused,
    check_part,
    fold_rests,
    lease_part,
    release_part,
)
from groundplane.control.state import Accounts, CoreState, FragmentationClock, Node, Work
from groundplane.spec.errors import InvariantError

ERA_BITS = 40
"""`Node.eras` counts in units of 2**40 device-ns; what is above is carried there before 64 bits are full."""
_ACCOUNTS = Accounts.__struct_fields__
_CARRY_NS = 1 << 62


class Ledger:
    """Leases and accounts over the nodes in `state`; keeps nothing of its own."""

    def __init__(self, state: CoreState) -> None:
        self._state = state

    def fragmented_ns(self, device_kind: str, now_ns: int) -> int:
        """Reading of the fragmentation clock of a kind, which begins with its first node."""
        return self._state.clocks.setdefault(device_kind, FragmentationClock()).reading_ns(now_ns)

    def lease(self, work: Work, placement: tuple[RankPlacement, ...], now_ns: int) -> None:
        """Leases the devices and memory of `placement` to `work` under the next fence.

        Raises:
            InvariantError: a device is held, or a node is closed or short of memory. Nothing has changed
                then.
        """
        nodes = self._state.nodes
        ranks_on: dict[str, int] = {}
        taken: dict[str, tuple[int, ...]] = {}
        for rank in placement:
            ranks_on[rank.node_id] = ranks_on.get(rank.node_id, 0) + 1
            taken[rank.node_id] = taken.get(rank.node_id, ()) + rank.devices
        left: dict[str, tuple[int, ...]] = {}
        for node_id, devices in taken.items():
            node = nodes[node_id]
            left[node_id] = _without(node.free, devices)
            if work.gang.part is None and len(left[node_id]) != len(node.free) - len(devices):
                raise InvariantError(f"a device of {node_id} would be leased twice, to {work.work_id}")
            if (
                not node.is_open
                or ranks_on[node_id] * work.gang.memory_bytes_per_rank > node.free_memory_bytes
            ):
                raise InvariantError(f"node {node_id} cannot take {work.work_id}")
        part = placement[0].part
        if (part is None) != (work.gang.part is None):
            raise InvariantError(
                f"{work.work_id} is placed on a part and asked for none, or the other way round"
            )
        if part is not None:
            node = nodes[placement[0].node_id]
            check_part(node, placement[0].devices[0], part, self._state.kinds.get(node.device_kind))
        for node_id, devices in taken.items():
            node = nodes[node_id]
            self.settle_node(node, now_ns)
            node.free_memory_bytes -= ranks_on[node_id] * work.gang.memory_bytes_per_rank
            if part is None:
                node.free = left[node_id]
                node.leases[work.work_id] = devices
            else:
                lease_part(node, work.work_id, devices[0], part)
        work.fence = self._state.next_fence
        self._state.next_fence += 1
        work.placement = placement
        work.leased_ns = work.mode_since_ns = now_ns

    def release(self, work: Work, fence: int, *, is_failure: bool, now_ns: int) -> None:
        """Releases all that `work` still holds. The caller has proof that no process of it is left.

        Args:
            fence: the fence that the proof names.
            is_failure: whether what no checkpoint saved is lost.

        Raises:
            InvariantError: the fence is another.
        """
        if fence != work.fence:
            raise InvariantError(
                f"proof for fence {fence} cannot release {work.work_id} with fence {work.fence}"
            )
        self.set_busy(work, work.is_busy, now_ns)
        for node_id, num_ranks in ranks_by_node(work.placement).items():
            if node_id not in work.lost_nodes:
                self._release(work, node_id, num_ranks, is_failure, now_ns)

    def release_node(self, work: Work, node_id: str, now_ns: int) -> None:
        """Releases what `work` holds on a node that was fenced; what no checkpoint saved there is lost."""
        self.set_busy(work, work.is_busy, now_ns)
        num_ranks = ranks_by_node(work.placement)[node_id]
        self._release(work, node_id, num_ranks, work.kind == "attempt", now_ns)
        work.lost_nodes.append(node_id)

    def set_busy(self, work: Work, is_busy: bool, now_ns: int) -> None:
        """From now on the time of the work's devices is busy, or not; what passed is settled first."""
        elapsed_ns = now_ns - work.mode_since_ns
        if not work.is_busy:
            work.idle_ns += elapsed_ns
        elif work.kind == "attempt":
            work.at_risk_ns += elapsed_ns
        else:
            work.safe_ns += elapsed_ns
        work.mode_since_ns = now_ns
        work.is_busy = is_busy

    def at_risk_ns(self, work: Work, now_ns: int) -> int:
        """Time of the work that a stop would waste now: since its last checkpoint, or since it began."""
        return work.at_risk_ns + (now_ns - work.mode_since_ns if work.is_busy else 0)

    def commit(self, work: Work, now_ns: int) -> None:
        """A checkpoint is durable: what was at risk until now is safe."""
        self.set_busy(work, work.is_busy, now_ns)
        work.safe_ns += work.at_risk_ns
        work.at_risk_ns = 0

    def settle_node(self, node: Node, now_ns: int) -> None:
        """Books the time of the node's free devices. Called before a lease, a release, opening or closing."""
        self._book_free(node, node.accounts, node.parts_accounts, now_ns)
        node.since_fragmented_ns = self._state.clocks[node.device_kind].reading_ns(now_ns)
        node.since_ns = now_ns
        _carry(node, now_ns)

    def read_node(self, node: Node, now_ns: int) -> Accounts:
        """A copy of the node's accounts as of now; their sum is (now - joined) x devices."""
        accounts = Accounts(*(
            getattr(node.accounts, name) + (getattr(node.eras, name) << ERA_BITS) for name in _ACCOUNTS
        ))  # fmt: skip
        rests = copy(node.parts_accounts)
        self._book_free(node, accounts, rests, now_ns)
        if node.shared:
            book_held(node, accounts, rests, self._state.works, now_ns)
        fold_rests(accounts, rests)
        for work_id, devices in node.leases.items():
            work = self._state.works[work_id]
            idle_ns = work.idle_ns + (0 if work.is_busy else now_ns - work.mode_since_ns)
            accounts.allocated_idle_ns += idle_ns * len(devices)
            accounts.busy_ns += (now_ns - work.leased_ns - idle_ns) * len(devices)
        return accounts

    def _book_free(self, node: Node, accounts: Accounts, rests: Accounts, now_ns: int) -> None:
        num_free = len(node.free)
        device_ns = (now_ns - node.since_ns) * num_free
        if node.shared:
            elapsed_ns = now_ns - node.since_ns
            clock = self._state.clocks[node.device_kind]
            fragmented_ns = clock.reading_ns(now_ns) - node.since_fragmented_ns
            kind = self._state.kinds.get(node.device_kind)
            book_unused(node, accounts, rests, kind, elapsed_ns, fragmented_ns)
        if node.is_open:
            clock = self._state.clocks[node.device_kind]
            fragmented_ns = (clock.reading_ns(now_ns) - node.since_fragmented_ns) * num_free
            accounts.fragmentation_ns += fragmented_ns
            accounts.free_ns += device_ns - fragmented_ns
        else:
            accounts.maintenance_ns += device_ns

    def _release(self, work: Work, node_id: str, num_ranks: int, is_failure: bool, now_ns: int) -> None:
        node = self._state.nodes[node_id]
        if now_ns - work.leased_ns != work.idle_ns + work.safe_ns + work.at_risk_ns:
            raise InvariantError(f"the times of {work.work_id} do not sum to those of its lease")
        self.settle_node(node, now_ns)
        node.free_memory_bytes += num_ranks * work.gang.memory_bytes_per_rank
        if work.gang.part is not None:
            release_part(node, work, is_failure=is_failure)
            return
        devices = node.leases.pop(work.work_id, ())
        if len(devices) != num_ranks * work.gang.devices_per_rank:
            raise InvariantError(f"{work.work_id} gives back devices of {node_id} that it does not hold")
        accounts, num_devices = node.accounts, len(devices)
        accounts.allocated_idle_ns += work.idle_ns * num_devices
        accounts.busy_ns += work.safe_ns * num_devices
        if is_failure:
            accounts.wasted_by_failure_ns += work.at_risk_ns * num_devices
        else:
            accounts.busy_ns += work.at_risk_ns * num_devices
        _carry(node, now_ns)
        node.free = tuple(sorted(node.free + devices))


def ranks_by_node(placement: tuple[RankPlacement, ...]) -> dict[str, int]:
    """How many ranks are on each node, in the order of the ranks."""
    ranks: dict[str, int] = {}
    for rank in placement:
        ranks[rank.node_id] = ranks.get(rank.node_id, 0) + 1
    return ranks


def _without(free: tuple[int, ...], devices: tuple[int, ...]) -> tuple[int, ...]:
    if free[: len(devices)] == devices:
        return free[len(devices) :]
    return tuple(index for index in free if index not in devices)


def _carry(node: Node, now_ns: int) -> None:
    """Moves the upper bits of large accounts into the node's eras, so that every integer fits 64 bits."""
    if (now_ns - node.joined_ns) * node.num_devices < _CARRY_NS:
        return
    for name in _ACCOUNTS:
        value = getattr(node.accounts, name)
        setattr(node.eras, name, getattr(node.eras, name) + (value >> ERA_BITS))
        setattr(node.accounts, name, value & ((1 << ERA_BITS) - 1))
