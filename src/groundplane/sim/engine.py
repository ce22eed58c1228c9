"""An engine made of simulated nodes and processes that obeys the engine contract to the letter.

It is the truth of a simulation: which process holds which device at which moment, whatever the control core
believes. Starts are idempotent by work and fence, an older fence is refused, a stop of something unknown is
remembered so that a start that comes later is refused too, and a work is reported gone only when no process
of it can be left: every rank has ended, or its node was fenced or has booted again.

How long things take and how they end is not decided here but by the `Script` that each start is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from groundplane.control.actions import DrainWork, PlacedPart, RankPlacement, StartWork, StopWork
from groundplane.control.events import (
    UNITS_PER_DEVICE,
    AnyEvent,
    CheckpointCommitted,
    WorkDrained,
    WorkGone,
    WorkReady,
    WorkStarted,
    WorkUnready,
)
from groundplane.sim.agenda import FIRST, Agenda

Outcome = Literal["succeeded", "failed", "stopped", "start_failed"]


@dataclass
class Script:
    """What will happen to one work if nobody interferes. Durations in nanoseconds; -1 for never."""

    start_ns: int
    ready_ns: int = 0
    run_ns: int = -1
    outcome: Outcome = "succeeded"
    checkpoint_every_ns: int = -1
    first_step: int = 0
    stop_ns: int = 0
    drain_ns: int = -1
    unready_after_ns: int = -1
    orphans_end_ns: int = -1
    """How long the ranks that outlive a lost node go on before they fail by themselves."""


@dataclass
class SimNode:
    """One node as it really is. `occupants[i]` is the work whose process holds device i, "" for none.

    `sharers` are the works whose processes hold parts of a device, by its index.
    """

    node_id: str
    occupants: list[str]
    sharers: dict[int, dict[str, PlacedPart]] = field(default_factory=dict)
    boot: int = 1
    is_powered: bool = True
    is_reachable: bool = True
    is_proven_dead: bool = False


@dataclass
class SimWork:
    """One work as it really is. `lost_nodes` are those that died under it, with the boot that died."""

    action: StartWork
    script: Script
    phase: Literal["starting", "running", "stopping", "gone"] = "starting"
    boots: dict[str, int] = field(default_factory=dict)
    lost_nodes: list[str] = field(default_factory=list)
    reports: list[AnyEvent] = field(default_factory=list)
    ended_as: Outcome | None = None
    step: int = 0


class SimEngine:
    """Nodes, processes and what they report.

    Args:
        agenda: simulated time.
        script_of: the script of a start, asked for once a work.
        report: takes an event and the nodes that it comes from.
        conflict: told when a process would start on a device that another one holds, and then nothing starts.
        keeps_gone: whether works that are gone are remembered, which only a world that loses messages needs.
    """

    def __init__(
        self,
        agenda: Agenda,
        script_of: Callable[[StartWork], Script],
        report: Callable[[AnyEvent, tuple[str, ...]], None],
        conflict: Callable[[str], None],
        *,
        keeps_gone: bool = True,
    ) -> None:
        self.nodes: dict[str, SimNode] = {}
        self.works: dict[str, SimWork] = {}
        self._agenda = agenda
        self._script_of = script_of
        self._report = report
        self._conflict = conflict
        self._keeps_gone = keeps_gone
        self._unproven: dict[str, list[SimWork]] = {}

    def add_node(self, node_id: str, num_devices: int) -> SimNode:
        """A node with free devices."""
        node = self.nodes[node_id] = SimNode(node_id, [""] * num_devices)
        return node

    # What a driver calls ---------------------------------------------------------------------------------

    def start(self, action: StartWork, boots: dict[str, int]) -> None:
        """Starts a gang, whole or not at all.

        Args:
            boots: the lives of the nodes that the start is meant for; another life refuses it.
        """
        if action.work_id in self.works:
            return
        work = self.works[action.work_id] = SimWork(action, self._script_of(action), boots=boots)
        nodes = [self.nodes[node_id] for node_id in boots]
        if any(not node.is_powered or node.boot != boots[node.node_id] for node in nodes):
            self._finish(work, "start_failed")
            return
        for rank in action.placement:
            for index in rank.devices:
                self._occupy(action.work_id, rank, index)
        self._then(work, work.script.start_ns, self._started, "starting")

    def stop(self, action: StopWork) -> None:
        """Ends a work within its grace; one that is gone, or was never seen, is gone."""
        work = self.works.get(action.work_id)
        if work is None:
            tombstone = StartWork(action.work_id, "attempt", "", action.fence, ())
            work = self.works[action.work_id] = SimWork(tombstone, Script(0))
            self._finish(work, "stopped")
        elif action.fence != work.action.fence:
            return
        elif work.phase == "gone":
            self._say(work, work.reports[-1])
        elif work.phase != "stopping":
            work.phase = "stopping"
            self._agenda.after(
                min(work.script.stop_ns, action.grace_ns), lambda: self._ranks_ended(work, "stopped"), FIRST
            )

    def drain(self, action: DrainWork) -> None:
        """A replica gets no new requests and reports when the last one has ended."""
        work = self.works.get(action.work_id)
        if work is not None and work.action.fence == action.fence and work.script.drain_ns >= 0:
            drained = WorkDrained(action.work_id, action.fence)
            self._then(work, work.script.drain_ns, lambda work: self._tell(work, drained), "running")

    def reattach(self, work_id: str) -> None:
        """Reports all of a work again, from its beginning."""
        work = self.works.get(work_id)
        if work is not None:
            for event in work.reports:
                self._say(work, event)

    # What the world does ---------------------------------------------------------------------------------

    def crash_rank(self, work_id: str) -> None:
        """A rank of a running work dies; the engine ends the others."""
        work = self.works[work_id]
        if work.phase in {"starting", "running"}:
            self._ranks_ended(work, "failed")

    def end_by_operator(self, work_id: str) -> None:
        """Somebody ends a running work without a word to the control plane, as `down` does."""
        work = self.works[work_id]
        if work.phase in {"starting", "running"} and not work.lost_nodes:
            self._ranks_ended(work, "stopped")

    def power_off(self, node_id: str) -> list[SimWork]:
        """The node dies with all that runs on it. Whether that can be proven is another matter."""
        node = self.nodes[node_id]
        sharers = (work_id for parts in node.sharers.values() for work_id in parts)
        hit = [self.works[work_id] for work_id in dict.fromkeys([*node.occupants, *sharers]) if work_id]
        node.is_powered = False
        node.is_proven_dead = False
        node.occupants = [""] * len(node.occupants)
        node.sharers.clear()
        for work in hit:
            work.lost_nodes.append(node_id)
            if all(other in work.lost_nodes for other in work.boots):
                self._ranks_ended(work, "failed")
            elif work.script.orphans_end_ns >= 0:
                orphans_end = partial(self._ranks_ended, work, "failed")
                self._agenda.after(work.script.orphans_end_ns, orphans_end, FIRST)
        return hit

    def prove_dead(self, node_id: str) -> None:
        """The node was fenced: from now on it is known that nothing of its life runs."""
        self.nodes[node_id].is_proven_dead = True
        self._settle_lost(node_id)

    def power_on(self, node_id: str) -> None:
        """The node boots again, empty."""
        node = self.nodes[node_id]
        node.boot += 1
        node.is_powered = True
        self._settle_lost(node_id)

    # Within ----------------------------------------------------------------------------------------------

    def _occupy(self, work_id: str, rank: RankPlacement, index: int) -> None:
        """A process takes a device, or its part of one; two at the same place are a conflict."""
        node = self.nodes[rank.node_id]
        sharers = node.sharers.setdefault(index, {})
        held_by = node.occupants[index]
        if rank.part is None:
            held_by = held_by or ", ".join(sharers)
            node.occupants[index] = work_id
        else:
            same = [other for other, part in sharers.items() if part.start == rank.part.start >= 0]
            is_full = rank.part.units + sum(part.units for part in sharers.values()) > UNITS_PER_DEVICE
            held_by = held_by or ", ".join(same or (sharers if is_full else ()))
            sharers[work_id] = rank.part
        if held_by:
            self._conflict(f"{work_id} starts on {rank.node_id}/{index}, held by {held_by}")

    def _started(self, work: SimWork) -> None:
        if work.lost_nodes:
            return
        work.phase = "running"
        script = work.script
        self._tell(work, WorkStarted(work.action.work_id, work.action.fence))
        if script.ready_ns >= 0:
            self._then(work, script.ready_ns, self._ready, "running")
        if script.run_ns >= 0:
            self._then(work, script.run_ns, lambda work: self._ranks_ended(work, script.outcome), "running")
        if script.checkpoint_every_ns > 0:
            work.step = script.first_step
            self._then(work, script.checkpoint_every_ns, self._checkpoint, "running")

    def _ready(self, work: SimWork) -> None:
        self._tell(work, WorkReady(work.action.work_id, work.action.fence))
        if work.script.unready_after_ns >= 0:
            unready = WorkUnready(work.action.work_id, work.action.fence)
            self._then(work, work.script.unready_after_ns, lambda work: self._tell(work, unready), "running")
            self._then(work, 2 * work.script.unready_after_ns, self._ready_again, "running")

    def _ready_again(self, work: SimWork) -> None:
        self._tell(work, WorkReady(work.action.work_id, work.action.fence))

    def _checkpoint(self, work: SimWork) -> None:
        if work.lost_nodes:
            return
        work.step += 1
        self._tell(work, CheckpointCommitted(work.action.work_id, work.action.fence, work.step))
        self._then(work, work.script.checkpoint_every_ns, self._checkpoint, "running")

    def _ranks_ended(self, work: SimWork, outcome: Outcome) -> None:
        """All ranks on living nodes are over; gone is said once the dead nodes are proven dead."""
        if work.phase == "gone":
            return
        self._vacate(work)
        if work.ended_as is None:
            work.ended_as = outcome if not work.lost_nodes or outcome != "succeeded" else "failed"
        unproven = [node_id for node_id in work.lost_nodes if not self._is_over(work, node_id)]
        if unproven:
            work.phase = "stopping"
            self._unproven.setdefault(unproven[0], []).append(work)
        else:
            self._finish(work, work.ended_as)

    def _is_over(self, work: SimWork, node_id: str) -> bool:
        node = self.nodes[node_id]
        return node.is_proven_dead or node.boot > work.boots[node_id]

    def _settle_lost(self, node_id: str) -> None:
        for work in self._unproven.pop(node_id, []):
            if work.ended_as is not None:
                self._ranks_ended(work, work.ended_as)

    def _vacate(self, work: SimWork) -> None:
        for rank in work.action.placement:
            node = self.nodes[rank.node_id]
            for index in rank.devices:
                if node.occupants[index] == work.action.work_id:
                    node.occupants[index] = ""
                node.sharers.get(index, {}).pop(work.action.work_id, None)

    def _finish(self, work: SimWork, outcome: Outcome) -> None:
        work.phase = "gone"
        work.ended_as = outcome
        exit_code = 1 if outcome == "failed" else 0
        self._tell(work, WorkGone(work.action.work_id, work.action.fence, outcome, exit_code))
        if not self._keeps_gone:
            del self.works[work.action.work_id]

    def _tell(self, work: SimWork, event: AnyEvent) -> None:
        work.reports.append(event)
        self._say(work, event)

    def _say(self, work: SimWork, event: AnyEvent) -> None:
        self._report(event, tuple(node_id for node_id in work.boots if node_id not in work.lost_nodes))

    def _then(self, work: SimWork, delay_ns: int, deed: Callable[[SimWork], None], phase: str) -> None:
        """Plans something for a work, to happen only if it is still in that phase."""
        self._agenda.after(delay_ns, lambda: deed(work) if work.phase == phase else None, FIRST)


def nodes_of(placement: tuple[RankPlacement, ...]) -> list[str]:
    """The nodes of a gang, each once, in the order of its ranks."""
    return list(dict.fromkeys(rank.node_id for rank in placement))
