"""From what people write of devices to what the core counts: kinds, and parts in units.

The only place where a chip of the catalogue and a `device:` of a job become events of the core.
"""

from __future__ import annotations

from collections.abc import Mapping

from groundplane.control.events import UNITS_PER_DEVICE, DevicePart, KindDescribed, PartProfile
from groundplane.spec.cluster import ChipSpec
from groundplane.spec.device import PartSpec
from groundplane.spec.errors import InputError, nearest_name

PER_MILLE_UNITS = UNITS_PER_DEVICE // 1000


def described(device_kind: str, chip: ChipSpec) -> KindDescribed:
    """A chip as a kind of device. An instance has the fraction of the memory that its slices are."""
    num_slices = max((max(p.starts) + p.memory_slices for p in chip.partitions), default=0)
    most_compute = max((p.compute_slices for p in chip.partitions), default=0)
    profiles = tuple(
        PartProfile(
            name=each.name,
            units=each.compute_slices * UNITS_PER_DEVICE // most_compute,
            memory_bytes=each.memory_slices * chip.memory_bytes // num_slices,
            num_slots=each.memory_slices,
            starts=each.starts,
            max_instances=each.max_instances or 0,
        )
        for each in chip.partitions
    )
    return KindDescribed(device_kind, chip.memory_bytes, profiles)


def part_of(
    spec: PartSpec, kinds: tuple[str, ...], described_kinds: Mapping[str, KindDescribed]
) -> tuple[DevicePart, tuple[str, ...]]:
    """A part in the core's units, and the kinds that can give it.

    Args:
        spec: what was written.
        kinds: kinds that will do; () for any.
        described_kinds: what is known of each kind.

    Raises:
        InputError: no such kind can be shared, or none has this profile (with the nearest), or the memory.
    """
    will_do = {kind: described_kinds[kind] for kind in kinds or described_kinds if kind in described_kinds}
    if not will_do:
        raise InputError("no node offers devices that can be shared", field="device.part")
    if spec.profile:
        units = {
            kind: profile.units
            for kind, each in will_do.items()
            for profile in each.profiles
            if profile.name == spec.profile
        }
        if not units:
            names = [profile.name for each in will_do.values() for profile in each.profiles]
            rule = (
                f"must be one of {', '.join(dict.fromkeys(names))}"
                if names
                else "none of these devices has any"
            )
            near = nearest_name(spec.profile, names)
            raise InputError(rule, field="device.part.profile", value=spec.profile, nearest=near)
        part = DevicePart(next(iter(units.values())), 0, spec.profile)
        return part, tuple(kind for kind in units if units[kind] == part.units)
    most_bytes = max(each.memory_bytes for each in will_do.values())
    if spec.memory_bytes is not None and spec.memory_bytes > most_bytes > 0:
        rule = f"must be at most {most_bytes} bytes, the largest device that will do"
        raise InputError(rule, field="device.part.memory", value=spec.memory_bytes)
    memory_bytes = spec.memory_bytes
    if memory_bytes is None:
        memory_bytes = min(each.memory_bytes for each in will_do.values()) * spec.per_mille // 1000
    return DevicePart(spec.per_mille * PER_MILLE_UNITS, memory_bytes), tuple(will_do)
