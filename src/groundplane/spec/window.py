"""A maintenance window or a reservation as a person writes it: which nodes, when, and for whom."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct

from groundplane.spec.errors import InputError
from groundplane.spec.quantity import Name, Seconds


class WindowSpec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="window"):
    """Nodes set aside for `duration`, from `begin_at` (with its zone) or `begin_in` from now; else at once.

    With a `queue` it is a reservation for jobs and services of that queue and of those below it; without one
    it is maintenance, and nothing runs there.
    """

    name: Name
    nodes: tuple[str, ...]
    duration_s: Seconds = msgspec.field(name="duration")
    begin_at: datetime | None = None
    begin_in_s: Seconds | None = msgspec.field(default=None, name="begin_in")
    queue: str = ""

    def __post_init__(self) -> None:
        if self.duration_s == 0:
            raise InputError("must be more than 0", field="duration", value=0)
        if not self.nodes:
            raise InputError("must name at least one node", field="nodes")
        for index, node in enumerate(self.nodes):
            if node in self.nodes[:index]:
                raise InputError("must name each node once", field=f"nodes[{index}]", value=node)
        if self.begin_at is not None and self.begin_in_s is not None:
            raise InputError("begin_at and begin_in cannot both be given", field="begin_at")
        if self.begin_at is not None and self.begin_at.tzinfo is None:
            rule = "must say its zone, as in 2026-12-05T22:00:00+01:00"
            raise InputError(rule, field="begin_at", value=str(self.begin_at))
