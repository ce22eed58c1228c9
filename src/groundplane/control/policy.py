"""From rules for queues and nodes, and windows, as a person writes them to the events that set them."""

from __future__ import annotations

from groundplane.control.events import (
    HealthSet,
    OrderRules,
    PolicySet,
    PreemptionRules,
    QueueRule,
    SpareRule,
    WindowSet,
)
from groundplane.spec.health import HealthSpec
from groundplane.spec.policy import PolicySpec, PreemptionSpec
from groundplane.spec.window import WindowSpec

S = 1_000_000_000


def policy_event(spec: PolicySpec) -> PolicySet:
    """The event that brings the core to follow `spec`; nothing of an earlier policy stays."""
    rules = tuple(
        QueueRule(
            queue_id=queue.name,
            parent=queue.parent,
            weight=queue.weight,
            guaranteed_devices=queue.guaranteed_devices,
            limit_devices=-1 if queue.limit_devices is None else queue.limit_devices,
        )
        for queue in spec.queues
    )
    order = OrderRules(
        is_backfilling=spec.backfill,
        patience_percent=round(spec.patience * 100),
        unpredicted_run_ns=round(spec.unpredicted_run_s * S),
        packs_by_end=spec.pack_by_end,
    )
    return PolicySet(rules, round(spec.half_life_s * S), order, _preemption(spec.preemption))


def health_event(spec: HealthSpec) -> HealthSet:
    """The event that brings the core to follow `spec`; nothing of earlier rules stays."""
    return HealthSet(
        max_failures=spec.max_failures,
        min_owners=spec.min_owners,
        window_ns=round(spec.window_s * S),
        quarantine_ns=round((spec.quarantine_s or 0) * S),
        most_per_mille=round(spec.most * 1000),
        replaces_stragglers=spec.replaces_stragglers,
        straggler_wait_ns=round(spec.straggler_wait_s * S),
        spares=tuple(SpareRule(kind, number) for kind, number in sorted(spec.spares.items())),
    )


def _preemption(spec: PreemptionSpec | None) -> PreemptionRules | None:
    if spec is None:
        return None
    return PreemptionRules(
        reclaims=spec.reclaim,
        priority_gap=spec.priority_gap,
        checkpoint_wait_ns=round(spec.checkpoint_wait_s * S),
        min_run_ns=round(spec.min_run_s * S),
        max_preemptions=spec.max_preemptions,
    )


def window_event(spec: WindowSpec, now_ns: int) -> WindowSet:
    """The event that announces a window.

    Args:
        now_ns: the clock that the core's events are stamped with, nanoseconds since 1970.
    """
    begin_ns = now_ns + round((spec.begin_in_s or 0) * S)
    if spec.begin_at is not None:
        begin_ns = max(0, round(spec.begin_at.timestamp() * 1_000_000) * 1000)
    return WindowSet(spec.name, spec.nodes, begin_ns, begin_ns + round(spec.duration_s * S), spec.queue)
