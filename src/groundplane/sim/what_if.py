"""What if: the production core on a copy of its state, with something changed, run ahead on predictions.

The copy is made of a snapshot, so that nothing that is done to it can reach the core it was taken of; when
the answer is there it is thrown away. Both copies, one with the change and one without, are run ahead the
same way (`control/forecast.py`). What differs between the two is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from groundplane.control.actions import AnyAction, JobEnded, StartWork, StopWork
from groundplane.control.core import ControlCore
from groundplane.control.events import (
    AnyEvent,
    NodeFenced,
    NodeSilent,
    PolicySet,
    QueueRule,
)
from groundplane.control.forecast import Forecast, JobForecast
from groundplane.control.state import CoreState
from groundplane.spec.errors import InputError, nearest_name

S = 1_000_000_000
DEFAULT_HORIZON_NS: Final = 7 * 86_400 * S


class Difference(Struct, frozen=True):
    """One job whose forecast the change alters; `before` is None for a job that the change brings."""

    job_id: str
    before: JobForecast | None
    after: JobForecast | None


class WhatIf(Struct, frozen=True):
    """The answer. `at_once` are the actions that the change itself leads to, in words."""

    changes: tuple[str, ...]
    now_ns: int
    horizon_ns: int
    at_once: tuple[str, ...]
    differences: tuple[Difference, ...]
    num_jobs: int
    digest_before: str
    digest_after: str


@dataclass(frozen=True)
class Change:
    """One change: what it is called, and the events that it is made of, given the state."""

    words: str
    events: Callable[[CoreState], Sequence[AnyEvent]]


def what_if(
    core: ControlCore,
    changes: Sequence[Change],
    *,
    horizon_ns: int = DEFAULT_HORIZON_NS,
    assumed_run_ns: int = 0,
) -> WhatIf:
    """Runs two copies of `core` ahead, one of them changed, and compares.

    Args:
        core: is left as it is; its digest before and after is part of the answer.
        changes: made one after the other, now.
        horizon_ns: how far to look.
        assumed_run_ns: run time of jobs of which nothing is predicted; 0 for no end in sight.

    Raises:
        InputError: a change that cannot be.
    """
    digest, snapshot = core.digest(), core.snapshot()
    now_ns = core.state.now_ns
    plain = Forecast(ControlCore.restore(snapshot), assumed_run_ns)
    changed = Forecast(ControlCore.restore(snapshot), assumed_run_ns)
    at_once: list[str] = []
    for change in changes:
        for event in change.events(changed.core.state):
            at_once += [words for action in changed.give(now_ns, event) if (words := _words(action))]
    end_ns = now_ns + horizon_ns
    before, after = plain.run(end_ns), changed.run(end_ns)
    differences = tuple(
        Difference(job_id, before.get(job_id), after.get(job_id))
        for job_id in dict.fromkeys([*after, *before])
        if before.get(job_id) != after.get(job_id)
    )
    return WhatIf(
        changes=tuple(change.words for change in changes),
        now_ns=now_ns,
        horizon_ns=horizon_ns,
        at_once=tuple(at_once),
        differences=differences,
        num_jobs=len(after),
        digest_before=digest,
        digest_after=core.digest(),
    )


def nodes_down(num_nodes: int, names: Sequence[str] = ()) -> Change:
    """Nodes die: those named, else so many of those that hold most, which is the worst case."""

    def events(state: CoreState) -> list[AnyEvent]:
        for name in names:
            if name not in state.nodes:
                raise InputError(
                    "no such node", field="node", value=name, nearest=nearest_name(name, state.nodes)
                )
        alive = [node for node in state.nodes.values() if node.state != "fenced"]
        if num_nodes > len(alive):
            raise InputError(
                f"must be at most the {len(alive)} nodes there are", field="down", value=num_nodes
            )
        fullest = sorted(alive, key=lambda node: (node.num_free - node.num_devices, node.index))
        chosen = names or [node.node_id for node in fullest[:num_nodes]]
        found: list[AnyEvent] = []
        for name in chosen:
            found += [NodeSilent(name), NodeFenced(name, state.nodes[name].boot)]
        return found

    return Change(f"{', '.join(names) or f'{num_nodes} nodes'} down", events)


def quota_changed(queue: str, factor: float | None, devices: int | None) -> Change:
    """A queue's guarantee and limit times a factor; or its guarantee anew in devices, the limit no less."""

    def changed(rule: QueueRule) -> QueueRule:
        if factor is None:
            guaranteed = devices or 0
            limit = rule.limit_devices if rule.limit_devices < 0 else max(rule.limit_devices, guaranteed)
            return msgspec.structs.replace(rule, guaranteed_devices=guaranteed, limit_devices=limit)
        limit = rule.limit_devices if rule.limit_devices < 0 else int(rule.limit_devices * factor)
        guaranteed = int(rule.guaranteed_devices * factor)
        return msgspec.structs.replace(rule, guaranteed_devices=guaranteed, limit_devices=limit)

    def events(state: CoreState) -> list[AnyEvent]:
        if queue not in state.queues:
            known = ", ".join(state.queues) or "none"
            rule = f"is no queue of the policy in force; known: {known}"
            raise InputError(rule, field="quota", value=queue, nearest=nearest_name(queue, state.queues))
        rules = tuple(changed(rule) if rule.queue_id == queue else rule for rule in state.queues.values())
        return [PolicySet(rules, state.half_life_ns, order=state.order, preemption=state.preemption)]

    amount = f"x {factor:g}" if factor is not None else f"of {devices} devices"
    return Change(f"quota of {queue} {amount}", events)


def submitted(event: AnyEvent, words: str) -> Change:
    """A job is submitted."""
    return Change(words, lambda state: [event])  # noqa: ARG005 - the state does not matter


def _words(action: AnyAction) -> str:
    """An action in words; "" for those that change nothing for a person."""
    match action:
        case StartWork():
            nodes = len(dict.fromkeys(rank.node_id for rank in action.placement))
            return f"start {action.work_id} on {nodes} nodes"
        case StopWork():
            return f"stop {action.work_id}: {action.reason}"
        case JobEnded():
            return f"{action.job_id} ends: {action.outcome} {action.reason}".rstrip()
    return ""
