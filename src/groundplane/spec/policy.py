"""The sharing policy of a cluster as a person writes it: a tree of queues, and how long the past counts."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from groundplane.spec.errors import InputError, nearest_name
from groundplane.spec.quantity import Count, Name, PositiveInt, Seconds


class QueueSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One queue. Jobs name it; what is below it counts as its own.

    `guaranteed_devices` are served before those who have had theirs; `limit_devices` is never passed, none if
    not given; `weight` is its part beside its siblings of what is left.
    """

    name: Name
    parent: str = ""
    weight: PositiveInt = 1
    guaranteed_devices: Count = 0
    limit_devices: Count | None = None

    def __post_init__(self) -> None:
        if self.limit_devices is not None and self.limit_devices < self.guaranteed_devices:
            raise InputError(
                f"must be at least the guaranteed_devices ({self.guaranteed_devices})",
                field="limit_devices",
                value=self.limit_devices,
            )


class PolicySpec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="policy"):
    """All queues; one that is not listed has weight 1, no guarantee and no limit.

    `half_life` is the time after which past usage counts half as much as present usage; 0 forgets at once.
    The guarantees of queues below another must fit into its guarantee, where it has one.
    """

    queues: tuple[QueueSpec, ...]
    half_life_s: Seconds = msgspec.field(default=86_400.0, name="half_life")

    def __post_init__(self) -> None:
        by_name: dict[str, QueueSpec] = {}
        for index, queue in enumerate(self.queues):
            if queue.name in by_name:
                raise InputError("must be unique", field=f"queues[{index}].name", value=queue.name)
            by_name[queue.name] = queue
        for index, queue in enumerate(self.queues):
            self._check_parents(index, queue, by_name)
        for index, queue in enumerate(self.queues):
            below = sum(each.guaranteed_devices for each in self.queues if each.parent == queue.name)
            if queue.guaranteed_devices and below > queue.guaranteed_devices:
                raise InputError(
                    f"must be at least {below}, what the queues below are guaranteed",
                    field=f"queues[{index}].guaranteed_devices",
                    value=queue.guaranteed_devices,
                )

    @staticmethod
    def _check_parents(index: int, queue: QueueSpec, by_name: dict[str, QueueSpec]) -> None:
        above, num_steps = queue.parent, 0
        field = f"queues[{index}].parent"
        while above:
            if above not in by_name:
                near = nearest_name(above, list(by_name))
                raise InputError("no such queue", field=field, value=above, nearest=near)
            num_steps += 1
            if num_steps > len(by_name):
                raise InputError("must not be below the queue itself", field=field, value=queue.parent)
            above = by_name[above].parent
