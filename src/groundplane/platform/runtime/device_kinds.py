"""Devices at the edge: kinds as nodes offer them, what a job asks of them, and how a part is enforced.

The control core counts parts and knows where they lie; that a work uses no more than its part is the business
of whoever starts it.
"""

from __future__ import annotations

import msgspec

from groundplane.catalog.device_needs import kinds_for
from groundplane.catalog.resolve import resolve_chip
from groundplane.catalog.store import Catalog
from groundplane.control.actions import PlacedPart, StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import Gang, KindDescribed
from groundplane.control.kinds import PER_MILLE_UNITS, described, part_of
from groundplane.spec.device import DeviceSpec
from groundplane.spec.errors import InputError

MIB = 1 << 20


def describe_kind(device_kind: str) -> KindDescribed:
    """What is known of a kind: of a chip of the catalogue all of it, of others that their time can be shared.

    A core of a machine without accelerators is such a one: it has no memory of its own.
    """
    if Catalog.shipped().has("chips", device_kind):
        return described(device_kind, resolve_chip(device_kind))
    return KindDescribed(device_kind)


def gang_on(device: DeviceSpec, core: ControlCore, gang: Gang) -> Gang:
    """The gang on devices such as are asked for.

    Raises:
        InputError: no node offers them.
    """
    state = core.state
    kinds = kinds_for(device, dict.fromkeys(node.device_kind for node in state.nodes.values()))
    part = None
    if device.part is not None:
        part, kinds = part_of(device.part, kinds, state.kinds)
        if part.memory_bytes and not any(state.kinds[kind].memory_bytes for kind in kinds):
            raise InputError(
                "these devices have no memory of their own: give memory_per_rank instead",
                field="device.part.memory",
            )
    return msgspec.structs.replace(gang, kinds=kinds, part=part)


def placed_part(action: StartWork) -> PlacedPart | None:
    """The part of a device that a work has, if it has one."""
    return action.placement[0].part


def memory_cap_bytes(memory_bytes: int, action: StartWork) -> int:
    """Host memory that one rank may use."""
    part = placed_part(action)
    return memory_bytes if part is None or not part.memory_bytes else min(memory_bytes, part.memory_bytes)


def part_env(action: StartWork) -> dict[str, str]:
    """Environment by which a rank keeps to its part; none for whole devices.

    CUDA's multi-process service takes the limits of a fraction from these names (NVIDIA MPS documentation,
    "Environment Variables"); GROUNDPLANE_DEVICE_PART tells any program: "250/1000", or profile and start.
    """
    part = placed_part(action)
    if part is None:
        return {}
    if part.profile:
        return {"GROUNDPLANE_DEVICE_PART": f"{part.profile}@{part.start}"}
    per_mille = part.units // PER_MILLE_UNITS
    env = {
        "GROUNDPLANE_DEVICE_PART": f"{per_mille}/1000",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, per_mille // 10)),
    }
    if part.memory_bytes:
        device = action.placement[0].devices[0]
        env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"{device}={part.memory_bytes // MIB}M"
    return env
