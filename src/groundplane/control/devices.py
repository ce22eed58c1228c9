"""What fits on one device that is shared: MIG instances by slices and legal starts, fractions by sums.

A device is shared in one way at a time: cut in hardware into instances of its kind's profiles, or by
fractions of its compute with a cap on memory (time slices are equal fractions). Which profiles a kind has,
how many memory slices each takes and from where on it may lie comes with the kind (`KindDescribed`); nothing
here knows of a chip. Integers only; knows nothing of nodes and queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from groundplane.control.actions import PlacedPart
from groundplane.control.events import UNITS_PER_DEVICE, DevicePart, KindDescribed, PartProfile

Mode = Literal["whole", "fractions", "instances"]


class DeviceUse(NamedTuple):
    """What is taken of one device; equal for devices that are each other's equals.

    `slots` has a bit for each memory slice that an instance has; `limited` the instances of profiles of which
    a device takes only so many, ascending.
    """

    mode: Mode
    units: int
    memory_bytes: int
    slots: int
    limited: tuple[str, ...]

    @property
    def free_units(self) -> int:
        """Compute that nobody has."""
        return UNITS_PER_DEVICE - self.units


UNUSED = DeviceUse("whole", 0, 0, 0, ())
"""A device of which nothing is taken."""


def use_of(parts: Iterable[PlacedPart], kind: KindDescribed | None) -> DeviceUse:
    """What parts take together of a device of this kind."""
    use = UNUSED
    for part in parts:
        use = use_with(use, part, kind)
    return use


def use_with(use: DeviceUse, part: PlacedPart, kind: KindDescribed | None) -> DeviceUse:
    """The use with one part more; whether it fits was asked before."""
    units = use.units + part.units
    if not part.profile:
        return DeviceUse("fractions", units, use.memory_bytes + part.memory_bytes, 0, ())
    profile = profile_of(kind, part.profile)
    if profile is None:
        return DeviceUse("instances", units, use.memory_bytes, use.slots, use.limited)
    slots = use.slots | _mask(profile, part.start)
    limited = tuple(sorted((*use.limited, profile.name))) if profile.max_instances else use.limited
    return DeviceUse("instances", units, use.memory_bytes + part.memory_bytes, slots, limited)


def ways(use: DeviceUse, part: DevicePart, kind: KindDescribed | None) -> Iterator[PlacedPart]:
    """Every way to place a part on a device so used: one for a fraction, one a start for an instance."""
    if kind is None:
        return
    if not part.profile:
        if fits_fraction(use, part, kind):
            yield PlacedPart(part.units, part.memory_bytes)
        return
    profile = profile_of(kind, part.profile)
    if profile is None or not _allows(use, profile):
        return
    for start in profile.starts:
        if not use.slots & _mask(profile, start):
            yield PlacedPart(profile.units, profile.memory_bytes, profile.name, start)


def fits(use: DeviceUse, part: DevicePart, kind: KindDescribed | None) -> bool:
    """Whether there is a way to place a part on a device so used."""
    return next(ways(use, part, kind), None) is not None


def fits_fraction(use: DeviceUse, part: DevicePart, kind: KindDescribed) -> bool:
    """Whether a fraction finds compute and memory enough on a device that no instance is on."""
    if use.mode == "instances" or use.units + part.units > UNITS_PER_DEVICE:
        return False
    return not kind.memory_bytes or use.memory_bytes + part.memory_bytes <= kind.memory_bytes


def most_instances(use: DeviceUse, part: DevicePart, kind: KindDescribed) -> int:
    """How many instances of a part's profile a device so used would take, one beside the other."""
    profile = profile_of(kind, part.profile)
    if profile is None or not _allows(use, profile):
        return 0
    slots, most = use.slots, 0
    for start in profile.starts:
        if not slots & _mask(profile, start):
            slots |= _mask(profile, start)
            most += 1
    left = profile.max_instances - use.limited.count(profile.name) if profile.max_instances else most
    return min(most, left, use.free_units // profile.units)


def most_parts(use: DeviceUse, part: DevicePart, kind: KindDescribed) -> int:
    """How many such parts a device so used would take, one beside the other."""
    if part.profile:
        return most_instances(use, part, kind)
    if use.mode == "instances":
        return 0
    most = use.free_units // part.units
    if part.memory_bytes and kind.memory_bytes:
        most = min(most, (kind.memory_bytes - use.memory_bytes) // part.memory_bytes)
    return most


def is_stranded(use: DeviceUse, kind: KindDescribed | None) -> bool:
    """Whether what is left of a shared device can be given to nobody: no slices or no memory are left."""
    if kind is None or use.mode == "whole":
        return False
    if use.mode == "fractions":
        return bool(kind.memory_bytes) and use.memory_bytes >= kind.memory_bytes
    return not any(
        _allows(use, profile) and any(not use.slots & _mask(profile, start) for start in profile.starts)
        for profile in kind.profiles
    )


def overlaps(parts: Iterable[PlacedPart], kind: KindDescribed | None) -> bool:
    """Whether parts on one device take anything twice, or more than there is. What no ledger may allow."""
    use = UNUSED
    for part in parts:
        wanted = DevicePart(part.units, part.memory_bytes, part.profile)
        if part not in ways(use, wanted, kind):
            return True
        use = use_with(use, part, kind)
    return False


def profile_of(kind: KindDescribed | None, name: str) -> PartProfile | None:
    """A profile of the kind by its name."""
    profiles = () if kind is None else kind.profiles
    return next((profile for profile in profiles if profile.name == name), None)


def _allows(use: DeviceUse, profile: PartProfile) -> bool:
    if use.mode == "fractions" or use.units + profile.units > UNITS_PER_DEVICE:
        return False
    return not profile.max_instances or use.limited.count(profile.name) < profile.max_instances


def _mask(profile: PartProfile, start: int) -> int:
    return ((1 << profile.num_slots) - 1) << start
