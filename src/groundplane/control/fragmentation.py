"""What is left of devices and of no use to the next request: fragmentation over the mix, and its rise.

After "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (Weng et
al., USENIX ATC 2023): the fragmentation of a device for one shape of request is what is left of it, if that
shape does not fit there any more, and nothing if it does; over the mix it is the mean by how often each shape
is asked for. A part goes where this rises least. For a shape of several whole devices the free devices of a
node that has too few of them are fragments too, so opening a fresh device counts what that spoils. Of
instances, which have only certain starts, that is too coarse: to it comes what would be left with as many of
them on the device as find a start.

The mix is learnt: what was asked for of late, each shape with its count; all counts are halved when their sum
reaches `MIX_MEMORY`, so that old requests fade. One request for one whole device is always in it: where
nothing is known, devices are kept whole. Integers only.
"""

from __future__ import annotations

from groundplane.control.devices import UNUSED, DeviceUse, fits, most_instances
from groundplane.control.events import UNITS_PER_DEVICE, DevicePart, Gang, KindDescribed
from groundplane.control.state import CoreState, Demand

MIX_SHAPES = 16
"""How many shapes the mix holds; the rarest makes room for a new one."""
MIX_MEMORY = 4096
"""Requests that the mix remembers at most."""

ONE_DEVICE = Demand(num_devices=1, part=None, kinds=(), count=1)
"""What is in every mix."""

Shape = tuple[int, DevicePart | None, tuple[str, ...]]


class Mix:
    """The typical mix of requests, kept in `CoreState.demands`."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._of_shape: dict[Shape, Demand] = {}
        self._total = 0
        for demand in state.demands:
            self._of_shape[demand.num_devices, demand.part, demand.kinds] = demand
            self._total += demand.count

    def note(self, gang: Gang) -> None:
        """A gang of this shape was asked for."""
        shape = (gang.devices_per_rank, gang.part, gang.kinds)
        demand = self._of_shape.get(shape)
        if demand is None:
            demand = self._add(shape)
        demand.count += 1
        self._total += 1
        if self._total >= MIX_MEMORY:
            self._halve()

    def rise(self, before: DeviceUse, after: DeviceUse, num_free: int, kind: KindDescribed) -> int:
        """By how much fragmentation rises, in units times counts; less than 0 where it falls.

        Args:
            before, after: use of the device without and with the part.
            num_free: whole free devices of its node before.
        """
        is_fresh = before == UNUSED
        rise = 0
        for demand in (ONE_DEVICE, *self._state.demands):
            after_units = _fragment(after, demand, kind)
            if is_fresh:
                each = after_units + _free_fragments(num_free - 1, demand, kind)
                rise += demand.count * (each - _free_fragments(num_free, demand, kind))
            else:
                rise += demand.count * (after_units - _fragment(before, demand, kind))
        return rise

    def fragments(self, use: DeviceUse, kind: KindDescribed) -> int:
        """Fragmentation of one shared device, in units times counts."""
        return sum(
            demand.count * _fragment(use, demand, kind) for demand in (ONE_DEVICE, *self._state.demands)
        )

    def _add(self, shape: Shape) -> Demand:
        demands = self._state.demands
        if len(demands) >= MIX_SHAPES:
            rarest = min(demands, key=lambda demand: demand.count)
            demands.remove(rarest)
            self._total -= rarest.count
            del self._of_shape[rarest.num_devices, rarest.part, rarest.kinds]
        demand = self._of_shape[shape] = Demand(*shape, count=0)
        demands.append(demand)
        return demand

    def _halve(self) -> None:
        for demand in self._state.demands:
            demand.count = (demand.count + 1) // 2
        self._total = sum(demand.count for demand in self._state.demands)


def lost_options(before: DeviceUse, after: DeviceUse, kind: KindDescribed) -> int:
    """How many placements of the kind's profiles a part takes away: breaks ties between starts."""
    lost = 0
    for profile in kind.profiles:
        for start in profile.starts:
            mask = ((1 << profile.num_slots) - 1) << start
            lost += (not before.slots & mask) - (not after.slots & mask)
    return lost


def _fragment(use: DeviceUse, demand: Demand, kind: KindDescribed) -> int:
    """What is left of a shared device, if the demand cannot use it; of one cut into instances see above."""
    part = demand.part
    if part is None or not _accepts(demand, kind):
        return use.free_units
    if part.profile and use.mode == "instances":
        most = most_instances(use, part, kind)
        return use.free_units - most * part.units + (use.free_units if most == 0 else 0)
    return 0 if fits(use, part, kind) else use.free_units


def _free_fragments(num_free: int, demand: Demand, kind: KindDescribed) -> int:
    """What the free devices of a node are worth nothing to the demand."""
    if not _accepts(demand, kind) or (demand.part is None and num_free < demand.num_devices):
        return num_free * UNITS_PER_DEVICE
    if demand.part is not None and not fits(UNUSED, demand.part, kind):
        return num_free * UNITS_PER_DEVICE
    return 0


def _accepts(demand: Demand, kind: KindDescribed) -> bool:
    return not demand.kinds or kind.device_kind in demand.kinds
