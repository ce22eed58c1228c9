"""The sharing policy of a cluster as a person writes it: a tree of queues, and how long the past counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from groundplane.spec.errors import InputError, nearest_name, unknown_name
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


class PreemptionSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may take devices from jobs that run. Written, if only as `preemption: {}`, it is on.

    With `reclaim` a queue below its guarantee takes back what others hold beyond theirs. A job or replica
    takes from jobs whose priority is lower by `priority_gap` or more (0: from none). A victim stops right
    after its next checkpoint, for which it has `checkpoint_wait`. Who has run for less than `min_run`, or was
    stopped `max_preemptions` times, is left alone.
    """

    reclaim: bool = True
    priority_gap: Count = 1
    checkpoint_wait_s: Seconds = msgspec.field(default=300.0, name="checkpoint_wait")
    min_run_s: Seconds = msgspec.field(default=60.0, name="min_run")
    max_preemptions: Count = 5


class PolicySpec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="policy"):
    """All queues, and the order within them. A queue that is not listed has weight 1, no guarantee, no limit;
    where none is listed all jobs stand in one order.

    `half_life` is the time after which past usage counts half as much as present usage; 0 forgets at once.
    The guarantees of queues below another must fit into its guarantee, where it has one. `patience` is how
    many times its own run time, over its devices, a job can wait: jobs go in the order of submission plus
    that (0: of submission); `unpredicted_run` stands for a run time that nobody predicted. `backfill` lets
    jobs pass the first that must wait, never delaying it; `pack_by_end` puts small jobs on nodes that will
    not be empty sooner anyway. Without `preemption` no running job is stopped for the sake of others.
    """

    queues: tuple[QueueSpec, ...] = ()
    half_life_s: Seconds = msgspec.field(default=86_400.0, name="half_life")
    backfill: bool = True
    patience: Annotated[float, Meta(ge=0.0, le=1000.0)] = 0.0
    unpredicted_run_s: Seconds = msgspec.field(default=3600.0, name="unpredicted_run")
    pack_by_end: bool = False
    preemption: PreemptionSpec | None = None

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


DEFAULT_POLICY: Final = "default"
POLICY_NAMES: Final = (DEFAULT_POLICY, "fifo", "backfill", "fair-share")
"""Policies that can be named where a file could be."""


def named_policy(name: str, queues: Sequence[str] = ()) -> PolicySpec:
    """A policy by its name.

    `fifo`: strict order of submission; nothing passes the first that must wait. `backfill`: the same with
    backfill beside a reservation for the first. `fair-share`: every queue has the same weight, a day's
    half-life, and backfill. `default`: one order by due time, backfill, and packing by ends.

    Args:
        name: one of `POLICY_NAMES`.
        queues: names that `fair-share` weighs.

    Raises:
        InputError: unknown name.
    """
    if name == "fifo":
        return PolicySpec(backfill=False)
    if name == "backfill":
        return PolicySpec()
    if name == "fair-share":
        return PolicySpec(tuple(QueueSpec(queue) for queue in sorted(queues)))
    if name == DEFAULT_POLICY:
        return PolicySpec(patience=4.0, pack_by_end=True)
    raise unknown_name("policy", name, POLICY_NAMES, field="policy")
