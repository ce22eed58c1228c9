"""What if: the production core on a copy of its state, with something changed, run ahead on predictions.

The copy is made of a snapshot, so that nothing that is done to it can reach the core it was taken of; when
the answer is there it is thrown away. Both copies, one with the change and one without, are run ahead the
same way: a job ends when its predicted run time is over (one that nobody predicted, after `assumed_run_ns`,
or never), a stop takes its grace at most, a start takes no time. What differs between the two is the answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from groundplane.control.actions import AnyAction, DrainWork, JobEnded, SetTimer, StartWork, StopWork
from groundplane.control.core import ControlCore
from groundplane.control.events import (
    AnyEvent,
    NodeFenced,
    NodeSilent,
    PolicySet,
    QueueRule,
    TimerFired,
    WorkDrained,
    WorkGone,
    WorkReady,
    WorkStarted,
)
from groundplane.control.lifecycle.job import JOB
from groundplane.control.state import CoreState, Work
from groundplane.spec.errors import InputError, nearest_name

S = 1_000_000_000
OVERDUE_NS: Final = 60 * S
"""A job that has run for longer than was predicted is taken to end so much later."""
MAX_EVENTS: Final = 200_000
"""A forecast that needs more events ends there."""
DEFAULT_HORIZON_NS: Final = 7 * 86_400 * S


class JobForecast(Struct, frozen=True):
    """What is expected of one job. Times in nanoseconds of the core's clock, -1 for not within the horizon.

    `num_stops` counts how often it is stopped, or loses its node, while it runs.
    """

    job_id: str
    queue: str
    num_devices: int
    start_ns: int
    end_ns: int
    num_stops: int


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
    plain = _Ahead(ControlCore.restore(snapshot), assumed_run_ns)
    changed = _Ahead(ControlCore.restore(snapshot), assumed_run_ns)
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


class _Ahead:
    """One copy, and what is expected to happen to it."""

    def __init__(self, core: ControlCore, assumed_run_ns: int) -> None:
        self.core = core
        self._assumed_run_ns = assumed_run_ns
        self._agenda: list[tuple[int, int, AnyEvent]] = []
        self._number = 0
        self._seen: dict[str, list[int]] = {}
        self._num_stops: dict[str, int] = {}
        for work in list(core.state.works.values()):
            self._expect_end(work)
        for timer_id, timer in core.state.timers.items():
            self._expect(timer.at_ns, TimerFired(timer_id))
        for job in core.state.jobs.values():
            if job.state not in JOB.final:
                self._seen[job.job_id] = [job.first_started_ns, -1]

    def give(self, now_ns: int, event: AnyEvent) -> list[AnyAction]:
        """Handles one event, and notes what is to be expected of its actions."""
        core, state = self.core, self.core.state
        running = {work.owner_id for work in state.works.values() if work.kind == "attempt"}
        actions = core.handle(now_ns, event)
        for action in actions:
            match action:
                case StartWork(kind="attempt", owner_id=job_id):
                    start_end = self._seen.setdefault(job_id, [-1, -1])
                    start_end[0] = state.now_ns if start_end[0] < 0 else start_end[0]
                    self._expect(state.now_ns, WorkStarted(action.work_id, action.fence))
                    self._expect_end(state.works[action.work_id])
                case StartWork():
                    self._expect(state.now_ns, WorkReady(action.work_id, action.fence))
                case StopWork():
                    owner_id = state.works[action.work_id].owner_id
                    self._num_stops[owner_id] = self._num_stops.get(owner_id, 0) + 1
                    gone = WorkGone(action.work_id, action.fence, "stopped")
                    self._expect(state.now_ns + action.grace_ns, gone)
                case DrainWork():
                    self._expect(state.now_ns, WorkDrained(action.work_id, action.fence))
                case SetTimer():
                    self._expect(action.at_ns, TimerFired(action.timer_id))
                case JobEnded(job_id=job_id):
                    self._seen.setdefault(job_id, [-1, -1])[1] = state.now_ns
        if isinstance(event, NodeFenced):
            for job_id in running - {work.owner_id for work in state.works.values()}:
                self._num_stops[job_id] = self._num_stops.get(job_id, 0) + 1
        for job in state.jobs.values():
            if job.job_id not in self._seen and job.state not in JOB.final:
                self._seen[job.job_id] = [-1, -1]
        return actions

    def run(self, end_ns: int) -> dict[str, JobForecast]:
        """What becomes of every job that has not ended yet."""
        gangs = {job_id: self.core.state.jobs[job_id] for job_id in self._seen}
        num_events = 0
        while self._agenda and num_events < MAX_EVENTS:
            at_ns, _, event = heapq.heappop(self._agenda)
            if at_ns > end_ns:
                break
            if isinstance(event, WorkGone) and event.work_id not in self.core.state.works:
                continue  # it was to end, but is gone already
            num_events += 1
            self.give(max(self.core.state.now_ns, at_ns), event)
        return {
            job_id: JobForecast(
                job_id=job_id,
                queue=gangs[job_id].queue,
                num_devices=gangs[job_id].gang.num_ranks * gangs[job_id].gang.devices_per_rank,
                start_ns=start_ns,
                end_ns=job_end_ns,
                num_stops=self._num_stops.get(job_id, 0),
            )
            for job_id, (start_ns, job_end_ns) in self._seen.items()
        }

    def _expect(self, at_ns: int, event: AnyEvent) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (at_ns, self._number, event))

    def _expect_end(self, work: Work) -> None:
        state = self.core.state
        if work.stop_intent or work.state == "stopping":
            gone = WorkGone(work.work_id, work.fence, "stopped")
            self._expect(state.now_ns + work.stop_grace_ns, gone)
        elif work.kind == "attempt":
            run_ns = state.jobs[work.owner_id].predicted_run_ns or self._assumed_run_ns
            if run_ns:
                end_ns = max(work.leased_ns + run_ns, state.now_ns)
                end_ns += OVERDUE_NS if work.leased_ns + run_ns < state.now_ns else 0
                if work.state == "starting":
                    self._expect(state.now_ns, WorkStarted(work.work_id, work.fence))
                self._expect(end_ns, WorkGone(work.work_id, work.fence, "succeeded"))


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
