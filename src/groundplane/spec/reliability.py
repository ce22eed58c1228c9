"""How often the parts of a cluster fail and how long mending takes, as somebody states it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from groundplane.spec.quantity import Name, Seconds

Rate = Annotated[float, Meta(ge=0.0, le=1e6)]


class ReliabilitySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Rates per device-day, node-day or day, and times in the mean; what happens is exponential.

    A hardware failure takes a whole node until it is repaired; a rank failure (software) takes nothing but
    the gang. A node that dies or falls silent is noticed after `detection`, and a dead one is proven dead
    after `fencing`. Of all nodes `slow_node_share` are slow: a gang with one of them takes `slow_node_factor`
    times as long. `sources` as in the catalogue.
    """

    name: Name
    hardware_failures_per_node_day: Rate
    rank_failures_per_device_day: Rate
    silences_per_node_day: Rate = 0.0
    control_plane_deaths_per_day: Rate = 0.0
    detection_s: Seconds = msgspec.field(default=30.0, name="detection")
    fencing_s: Seconds = msgspec.field(default=120.0, name="fencing")
    repair_s: Seconds = msgspec.field(default=4 * 3600.0, name="repair")
    silence_s: Seconds = msgspec.field(default=120.0, name="silence")
    control_plane_back_s: Seconds = msgspec.field(default=5.0, name="control_plane_back")
    slow_node_share: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    slow_node_factor: Annotated[float, Meta(ge=1.0, le=100.0)] = 1.35
    sources: dict[str, str] = {}
