"""Which device a rank wants, as a person writes it: a kind or what it needs, and perhaps a part of one."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from groundplane.spec.errors import InputError
from groundplane.spec.quantity import Bytes, FlopsPerSecond, PositiveInt

MAX_TIME_SLICES = 1000


class PartSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of one device, in one of three ways.

    `profile` names an instance that the chip can be cut into ("1g.10gb"). `compute` is a fraction of the
    device (thousandths count). `time_slices: n` is the n-th part of its time. The last two share the device's
    memory: `memory` is what may be used of it, by default the same fraction.
    """

    profile: str = ""
    compute: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    time_slices: Annotated[int, Meta(ge=2, le=MAX_TIME_SLICES)] | None = None
    memory_bytes: Bytes | None = msgspec.field(default=None, name="memory")

    def __post_init__(self) -> None:
        given = [bool(self.profile), self.compute is not None, self.time_slices is not None]
        if sum(given) != 1:
            raise InputError("exactly one of profile, compute and time_slices must be given", field="profile")
        if self.profile and self.memory_bytes is not None:
            raise InputError("is given by the profile", field="memory")
        if self.compute is not None and self.compute < 0.0005:
            raise InputError("must be at least 0.001", field="compute", value=self.compute)

    @property
    def per_mille(self) -> int:
        """Thousandths of the device's compute; 0 where a profile says it."""
        if self.compute is not None:
            return round(self.compute * 1000)
        return 0 if self.time_slices is None else 1000 // self.time_slices


class DeviceSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """What every device of a job or service must be. Nothing given: any device will do.

    `kind` names one kind (a chip of the catalogue or the kind that a node offers). Otherwise what it needs:
    at least this dense `bf16` rate, `memory`, and `scaleup`, how many devices one scale-up domain joins. Of
    the kinds that will do, the least capable is tried first.
    """

    kind: str = ""
    bf16_flops_per_s: FlopsPerSecond | None = msgspec.field(default=None, name="bf16")
    memory_bytes: Bytes | None = msgspec.field(default=None, name="memory")
    scaleup: PositiveInt | None = None
    part: PartSpec | None = None

    def __post_init__(self) -> None:
        if self.kind and self.has_needs:
            raise InputError("must not be given together with what is needed of the device", field="kind")

    @property
    def has_needs(self) -> bool:
        """Whether the kind is to be found by what is needed of it."""
        return any(need is not None for need in (self.bf16_flops_per_s, self.memory_bytes, self.scaleup))


ANY_DEVICE = DeviceSpec()


def check_part(device: DeviceSpec, ranks: int, devices_per_rank: int, field: str) -> None:
    """Refuses a part of a device for more than one rank with one device.

    Raises:
        InputError: names `field`, the one that says so.
    """
    if device.part is not None and (ranks, devices_per_rank) != (1, 1):
        raise InputError("must be 1 device in all where only a part of a device is asked for", field=field)
