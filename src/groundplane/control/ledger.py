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

A device's accounts sum to now - joined, exactly. A leased device is settled when it is released, since only
then is known whether its work was in vain; until then `read_device` books work at risk as busy.
"""

from __future__ import annotations

from copy import copy

from groundplane.control.actions import RankPlacement
from groundplane.control.state import Accounts, CoreState, Device, FragmentationClock, Node, Work
from groundplane.spec.errors import InvariantError


class Ledger:
    """Leases and accounts over the nodes in `state`; keeps nothing of its own."""

    def __init__(self, state: CoreState) -> None:
        self._state = state

    def add_device(self, device_kind: str, now_ns: int) -> Device:
        """A device of a node that joins now."""
        clock = self._state.clocks.setdefault(device_kind, FragmentationClock())
        return Device(since_ns=now_ns, since_fragmented_ns=clock.reading_ns(now_ns))

    def lease(self, work: Work, placement: tuple[RankPlacement, ...], now_ns: int) -> None:
        """Leases the devices and memory of `placement` to `work` under the next fence.

        Raises:
            InvariantError: a device is held, or a node is closed or short of memory. Nothing has changed
                then.
        """
        nodes = self._state.nodes
        memory: dict[str, int] = {}
        taken: dict[tuple[str, int], None] = {}
        for rank in placement:
            node = nodes[rank.node_id]
            memory[rank.node_id] = memory.get(rank.node_id, 0) + work.gang.memory_bytes_per_rank
            for index in rank.devices:
                if node.devices[index].holder or (rank.node_id, index) in taken:
                    raise InvariantError(
                        f"device {rank.node_id}/{index} would be leased twice, to {work.work_id}"
                    )
                taken[rank.node_id, index] = None
            if not node.is_open or memory[rank.node_id] > node.free_memory_bytes:
                raise InvariantError(f"node {rank.node_id} cannot take {work.work_id}")
        for rank in placement:
            node = nodes[rank.node_id]
            node.free_memory_bytes -= work.gang.memory_bytes_per_rank
            for index in rank.devices:
                self._settle_unleased(node, node.devices[index], now_ns)
                node.devices[index].holder = work.work_id
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
        for rank in work.placement:
            if rank.node_id not in work.lost_nodes:
                self._release_rank(work, rank, is_failure, now_ns)

    def release_node(self, work: Work, node_id: str, now_ns: int) -> None:
        """Releases what `work` holds on a node that was fenced; what no checkpoint saved there is lost."""
        self.set_busy(work, work.is_busy, now_ns)
        for rank in work.placement:
            if rank.node_id == node_id:
                self._release_rank(work, rank, work.kind == "attempt", now_ns)
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

    def commit(self, work: Work, now_ns: int) -> None:
        """A checkpoint is durable: what was at risk until now is safe."""
        self.set_busy(work, work.is_busy, now_ns)
        work.safe_ns += work.at_risk_ns
        work.at_risk_ns = 0

    def settle_node(self, node: Node, now_ns: int) -> None:
        """Books the time of the node's unleased devices. Called before the node opens or closes."""
        for device in node.devices:
            if not device.holder:
                self._settle_unleased(node, device, now_ns)

    def read_device(self, node: Node, device: Device, now_ns: int) -> Accounts:
        """A copy of the device's accounts as of now; their sum is now - joined."""
        accounts = copy(device.accounts)
        elapsed_ns = now_ns - device.since_ns
        if device.holder:
            work = self._state.works[device.holder]
            idle_ns = work.idle_ns + (0 if work.is_busy else now_ns - work.mode_since_ns)
            accounts.allocated_idle_ns += idle_ns
            accounts.busy_ns += elapsed_ns - idle_ns
        elif not node.is_open:
            accounts.maintenance_ns += elapsed_ns
        else:
            fragmented_ns = self._clock_ns(node, now_ns) - device.since_fragmented_ns
            accounts.fragmentation_ns += fragmented_ns
            accounts.free_ns += elapsed_ns - fragmented_ns
        return accounts

    def _release_rank(self, work: Work, rank: RankPlacement, is_failure: bool, now_ns: int) -> None:
        node = self._state.nodes[rank.node_id]
        clock_ns = self._clock_ns(node, now_ns)
        for index in rank.devices:
            device = node.devices[index]
            if device.holder != work.work_id:
                raise InvariantError(
                    f"{work.work_id} gives back {rank.node_id}/{index}, held by {device.holder!r}"
                )
            if now_ns - device.since_ns != work.idle_ns + work.safe_ns + work.at_risk_ns:
                raise InvariantError(
                    f"the times of {work.work_id} do not sum to those of {rank.node_id}/{index}"
                )
            accounts = device.accounts
            accounts.allocated_idle_ns += work.idle_ns
            accounts.busy_ns += work.safe_ns
            if is_failure:
                accounts.wasted_by_failure_ns += work.at_risk_ns
            else:
                accounts.busy_ns += work.at_risk_ns
            device.holder = ""
            device.since_ns = now_ns
            device.since_fragmented_ns = clock_ns
        node.free_memory_bytes += work.gang.memory_bytes_per_rank

    def _settle_unleased(self, node: Node, device: Device, now_ns: int) -> None:
        elapsed_ns = now_ns - device.since_ns
        clock_ns = self._clock_ns(node, now_ns)
        if node.is_open:
            fragmented_ns = clock_ns - device.since_fragmented_ns
            device.accounts.fragmentation_ns += fragmented_ns
            device.accounts.free_ns += elapsed_ns - fragmented_ns
        else:
            device.accounts.maintenance_ns += elapsed_ns
        device.since_ns = now_ns
        device.since_fragmented_ns = clock_ns

    def _clock_ns(self, node: Node, now_ns: int) -> int:
        return self._state.clocks[node.device_kind].reading_ns(now_ns)
