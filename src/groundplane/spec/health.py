"""Rules for nodes that fail, as a person writes them: when they go into quarantine, and how many stand by."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from groundplane.spec.quantity import Count, Fraction, PositiveInt, Seconds


class HealthSpec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="health"):
    """When nodes are distrusted, and how many stand by.

    A node goes into quarantine after `max_failures` (0: never) of at least `min_owners` jobs and services
    within `window`, for the time `quarantine` (none given: until an operator opens it), but never more than
    `most` of the nodes of a kind, or one. A straggler goes there at once if `replaces_stragglers`; its gang
    has `straggler_wait` to reach a checkpoint. `spares` maps kinds of device to numbers of nodes.
    """

    max_failures: Annotated[int, Meta(ge=0, le=64)] = 3
    min_owners: PositiveInt = 2
    window_s: Seconds = msgspec.field(default=3600.0, name="window")
    quarantine_s: Seconds | None = msgspec.field(default=None, name="quarantine")
    most: Fraction = 0.1
    replaces_stragglers: bool = True
    straggler_wait_s: Seconds = msgspec.field(default=600.0, name="straggler_wait")
    spares: dict[str, Count] = {}
