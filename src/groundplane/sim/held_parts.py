"""Who holds what of one device, for the checker: by slices and by sums, without the rules of the core."""

from __future__ import annotations

from groundplane.control.actions import PlacedPart
from groundplane.control.events import UNITS_PER_DEVICE, KindDescribed

Holders = dict[str, PlacedPart | None]
"""Works that hold a device: None for all of it."""


def is_twice(kind: KindDescribed | None, holders: Holders) -> bool:
    """Whether anything of a device of this kind is held twice."""
    parts = [part for part in holders.values() if part is not None]
    if len(parts) < len(holders):
        return len(holders) > 1
    if kind is None:
        return True
    sizes = {profile.name: profile.num_slots for profile in kind.profiles}
    starts = {profile.name: profile.starts for profile in kind.profiles}
    instances = [part for part in parts if part.profile]
    if any(part.start not in starts.get(part.profile, ()) for part in instances):
        return True
    slices = [slot for part in instances for slot in range(part.start, part.start + sizes[part.profile])]
    if sum(part.units for part in parts) > UNITS_PER_DEVICE or len(slices) != len(set(slices)):
        return True
    if 0 < len(instances) < len(parts):
        return True  # cut into instances, and shared by fractions besides
    return 0 < kind.memory_bytes < sum(part.memory_bytes for part in parts)


def units_of(holders: Holders) -> dict[str, int]:
    """How many units of a device each of its holders has."""
    return {work_id: UNITS_PER_DEVICE if part is None else part.units for work_id, part in holders.items()}
