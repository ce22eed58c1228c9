"""The judge of a simulation: its own books, kept from events, actions and the real processes only.

It shares no code with the control core's ledger. After every event it compares its books with the core's:
no device in two works that may be alive, whole gangs only, no lease lost or leaked, fences that only grow,
budgets kept, every accelerator-nanosecond in exactly one account, each job ended once and truthfully.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import structs

from groundplane.control.actions import (
    PREEMPTED,
    AnyAction,
    JobEnded,
    StartWork,
    StopWork,
)
from groundplane.control.core import ControlCore
from groundplane.control.elastic import RESIZED
from groundplane.control.events import (
    UNITS_PER_DEVICE,
    AnyEvent,
    CheckpointCommitted,
    Gang,
    JobSubmitted,
    KindDescribed,
    NodeBack,
    NodeCordoned,
    NodeDrainRequested,
    NodeFenced,
    NodeJoined,
    NodeSilent,
    NodeUncordoned,
    PolicySet,
    RestartPolicy,
    ServiceDeployed,
    TimerFired,
    WindowRemoved,
    WindowSet,
    WorkGone,
    WorkReady,
    WorkStarted,
)
from groundplane.control.state import Accounts
from groundplane.sim.books import Books, Expected, Place
from groundplane.sim.engine import SimEngine
from groundplane.sim.held_parts import Holders, is_twice, units_of
from groundplane.sim.kept_rules import KeptRules
from groundplane.sim.promises import Promises
from groundplane.sim.promises import ViolationError as ViolationError  # noqa: PLC0414

NO_FAULT = (PREEMPTED, RESIZED, "window ")
"""How reasons of stops begin that are no fault of the job."""
NO_FAULT_ENDS = (" is drained", " is slow")
"""How others of them end."""


_ACCOUNTS = ("idle_ns", "busy_ns", "wasted_ns", "maintenance_ns", "open_ns")


@dataclass
class _Node:
    """What the news so far allow to believe of a node."""

    boot: int
    num_devices: int
    memory_bytes: int
    joined_ns: int
    is_silent: bool = False
    is_fenced: bool = False
    is_cordoned: bool = False
    free_memory_bytes: int = 0
    kind: str = ""
    why_closed: str = ""
    holders: list[Holders] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return not (self.is_silent or self.is_fenced or self.is_cordoned or self.why_closed)


@dataclass
class _Job:
    gang: Gang
    restart: RestartPolicy
    larger_ranks: tuple[int, ...] = ()
    after: tuple[str, ...] = ()
    num_starts: int = 0
    num_interruptions: int = 0
    not_before_ns: int = 0
    ended: str = ""


@dataclass
class _Work:
    action: StartWork
    gang: Gang
    places: list[Place]
    has_run: bool = False
    is_stopping: bool = False
    is_no_fault: bool = False

    @property
    def units(self) -> int:
        """Of each of its devices."""
        part = self.action.placement[0].part
        return UNITS_PER_DEVICE if part is None else part.units


class Checker:
    """Watches one control plane; raises `ViolationError` at the first thing that is wrong."""

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine
        self._nodes: dict[str, _Node] = {}
        self._jobs: dict[str, _Job] = {}
        self._replica_gangs: dict[tuple[str, int], Gang] = {}
        self._works: dict[str, _Work] = {}
        self._seen_works: dict[str, int] = {}
        self._last_fence = 0
        self._kept = KeptRules(self._nodes)
        self._kinds: dict[str, KindDescribed] = {}
        self._started_on: list[str] = []
        self._books = Books()
        self._promises = Promises()
        self._ends: dict[str, JobEnded] = {}

    @property
    def open_jobs(self) -> list[str]:
        """Jobs that were submitted and have not ended."""
        return [job_id for job_id, job in self._jobs.items() if not job.ended]

    def check(self, now_ns: int, event: AnyEvent, actions: list[AnyAction], core: ControlCore) -> None:
        """Takes note of an event and its actions, then compares all books.

        Raises:
            ViolationError: something is wrong.
        """
        self._ends = {action.job_id: action for action in actions if isinstance(action, JobEnded)}
        self._started_on.clear()
        self._books.pass_time(now_ns, self._unleased())
        self._note_event(now_ns, event)
        self._books.note_event(event)
        for action in actions:
            self._books.note_action(action)
            if isinstance(action, StartWork):
                self._note_start(now_ns, action)
            elif isinstance(action, JobEnded):
                self._note_end(action)
            elif isinstance(action, StopWork):
                self._works[action.work_id].is_stopping = True
                self._works[action.work_id].is_no_fault = action.reason.startswith(
                    NO_FAULT
                ) or action.reason.endswith(NO_FAULT_ENDS)
        self._compare(now_ns, core)
        self._kept.check_usage(core.state.usage, self._held())
        self._promises.check(event, actions, core)

    def _unleased(self) -> list[tuple[Place, int, bool]]:
        return [
            ((node_id, index), UNITS_PER_DEVICE - sum(units_of(holders).values()), node.is_open)
            for node_id, node in self._nodes.items()
            for index, holders in enumerate(node.holders)
        ]

    def conflict(self, message: str) -> None:
        """The engine was told to start a process on a device that another process holds."""
        raise ViolationError(f"two works on one device: {message}")

    def check_over(self, core: ControlCore) -> None:
        """After the world has healed: all jobs have ended, all leases are back, nothing is left waiting.

        Raises:
            ViolationError: there was no progress, or something was left behind.
        """
        if self.open_jobs:
            states = {job_id: core.state.jobs[job_id].state for job_id in self.open_jobs}
            raise ViolationError(f"no progress: jobs have not ended: {states}")
        if self._works or core.state.works:
            raise ViolationError(f"works were left behind: {sorted(self._works)}, {sorted(core.state.works)}")
        running = [o for node in self._engine.nodes.values() for o in node.occupants if o]
        if running:
            raise ViolationError(f"processes were left behind: {running}")
        if core.state.timers or len(core.queue) or core.state.head_id:
            raise ViolationError("timers, queue entries or a plan were left behind")

    # Books -----------------------------------------------------------------------------------------------

    def _note_event(self, now_ns: int, event: AnyEvent) -> None:
        match event:
            case NodeJoined():
                self._note_joined(now_ns, event)
            case NodeFenced(node_id, boot):
                if node_id in self._nodes and self._nodes[node_id].boot == boot:
                    self._note_fenced(now_ns, node_id)
            case NodeSilent(node_id):
                if node_id in self._nodes:
                    self._nodes[node_id].is_silent = True
            case NodeBack(node_id):
                if node_id in self._nodes:
                    self._nodes[node_id].is_silent = False
            case NodeCordoned(node_id) | NodeUncordoned(node_id) | NodeDrainRequested(node_id):
                if node_id in self._nodes:
                    self._nodes[node_id].is_cordoned = not isinstance(event, NodeUncordoned)
            case KindDescribed():
                self._kinds[event.device_kind] = event
            case WindowSet() | WindowRemoved() | TimerFired():
                self._kept.note_window(now_ns, event)
            case PolicySet():
                self._kept.note_policy(event)
            case JobSubmitted():
                self._kept.queue_of.setdefault(event.job_id, event.queue)
                self._jobs.setdefault(
                    event.job_id, _Job(event.gang, event.restart, event.larger_ranks, event.after)
                )
            case ServiceDeployed():
                self._kept.queue_of.setdefault(event.service_id, event.queue)
                self._replica_gangs.setdefault((event.service_id, event.generation), event.gang)
            case (
                WorkStarted(work_id, fence) | WorkReady(work_id, fence) | CheckpointCommitted(work_id, fence)
            ):
                work = self._works.get(work_id)
                if work is not None and work.action.fence == fence:
                    work.has_run = True
            case WorkGone(work_id, fence):
                work = self._works.get(work_id)
                if work is not None and work.action.fence == fence:
                    self._note_gone(now_ns, work, event.outcome)

    def _note_joined(self, now_ns: int, event: NodeJoined) -> None:
        node = self._nodes.get(event.node_id)
        if node is None:
            num = event.num_devices
            self._nodes[event.node_id] = _Node(
                event.boot, num, event.memory_bytes, now_ns,
                free_memory_bytes=event.memory_bytes, kind=event.device_kind,
                holders=[{} for _ in range(num)],
            )  # fmt: skip
            self._books.devices |= {(event.node_id, index): Expected() for index in range(num)}
        elif event.boot > node.boot:
            self._note_fenced(now_ns, event.node_id)
            node.boot = event.boot
            node.is_fenced = node.is_silent = False

    def _note_fenced(self, now_ns: int, node_id: str) -> None:
        self._nodes[node_id].is_fenced = True
        for work in list(self._works.values()):
            here = [place for place in work.places if place[0] == node_id]
            if here:
                self._give_back(work, here, is_failure=work.action.kind == "attempt")
                if not work.places:
                    self._forget(now_ns, work)

    def _note_gone(self, now_ns: int, work: _Work, outcome: str) -> None:
        truth = self._engine.works.get(work.action.work_id)
        if truth is not None and truth.phase != "gone":
            raise ViolationError(f"the engine says that {work.action.work_id} is gone, and it is not")
        end = self._ends.get(work.action.owner_id)
        was_wanted = end is not None and (
            end.outcome != "failed" or end.reason in {"time limit reached", "deadline reached"}
        )
        is_failure = work.action.kind == "attempt" and outcome != "succeeded" and not was_wanted
        self._give_back(work, list(work.places), is_failure=is_failure)
        if outcome == "stopped" and work.has_run and not work.is_stopping:
            work.is_no_fault = True  # an operator ended it
        self._forget(now_ns, work)

    def _give_back(self, work: _Work, places: list[Place], *, is_failure: bool) -> None:
        self._books.give_back(work.action.work_id, places, work.units, is_failure=is_failure)
        for node_id, index in places:
            node = self._nodes[node_id]
            del node.holders[index][work.action.work_id]
            work.places.remove((node_id, index))
        # A rank is on one node, so the devices that come back there are those of whole ranks.
        for node_id in dict.fromkeys(node_id for node_id, _ in places):
            ranks = sum(place[0] == node_id for place in places) // work.gang.devices_per_rank
            self._nodes[node_id].free_memory_bytes += ranks * work.gang.memory_bytes_per_rank

    def _forget(self, now_ns: int, work: _Work) -> None:
        del self._works[work.action.work_id]
        self._books.forget(work.action.work_id)
        if work.action.kind == "attempt":
            job = self._jobs[work.action.owner_id]
            job.not_before_ns = now_ns
            if work.is_no_fault:
                job.num_interruptions += 1
            else:
                job.not_before_ns += min(job.restart.backoff_ns, job.restart.backoff_limit_ns)

    def _note_start(self, now_ns: int, action: StartWork) -> None:
        if action.work_id in self._seen_works:
            raise ViolationError(f"work id {action.work_id} is used twice")
        if action.fence <= self._last_fence:
            raise ViolationError(f"fence {action.fence} of {action.work_id} is not above {self._last_fence}")
        self._seen_works[action.work_id] = self._last_fence = action.fence
        if action.kind == "attempt":
            gang = self._note_attempt(now_ns, action)
        else:
            gang = self._replica_gangs[action.owner_id, action.generation]
        if len(action.placement) != gang.num_ranks:
            raise ViolationError(f"{action.work_id} starts {len(action.placement)} of {gang.num_ranks} ranks")
        work = _Work(action, gang, [])
        for rank in action.placement:
            node = self._nodes[rank.node_id]
            self._started_on.append(rank.node_id)
            if not node.is_open and not node.why_closed:
                raise ViolationError(f"{action.work_id} is placed on closed node {rank.node_id}")
            if len(set(rank.devices)) != gang.devices_per_rank:
                raise ViolationError(f"a rank of {action.work_id} gets devices {rank.devices}")
            node.free_memory_bytes -= gang.memory_bytes_per_rank
            if node.free_memory_bytes < 0:
                raise ViolationError(f"memory of {rank.node_id} is given away twice, to {action.work_id}")
            for index in rank.devices:
                node.holders[index][action.work_id] = rank.part
                if (rank.part is None) != (gang.part is None) or is_twice(
                    self._kinds.get(node.kind), node.holders[index]
                ):
                    raise ViolationError(
                        f"{rank.node_id}/{index} goes to {action.work_id}, but these may live: "
                        f"{node.holders[index]}"
                    )
                work.places.append((rank.node_id, index))
        self._works[action.work_id] = work
        self._kept.check_start(now_ns, action, self._held())

    def _held(self) -> Iterator[tuple[str, int]]:
        """Owner and units of devices of each work."""
        for work in self._works.values():
            yield work.action.owner_id, work.gang.num_ranks * work.gang.devices_per_rank * work.units

    def _note_attempt(self, now_ns: int, action: StartWork) -> Gang:
        job = self._jobs[action.owner_id]
        if job.ended:
            raise ViolationError(f"{action.work_id} starts after its job has ended as {job.ended}")
        if any(other.action.owner_id == action.owner_id for other in self._works.values()):
            raise ViolationError(f"{action.work_id} starts while an attempt of its job may live")
        for needed_id in job.after:
            if self._jobs[needed_id].ended != "succeeded":
                raise ViolationError(f"{action.work_id} starts before {needed_id} has succeeded")
        job.num_starts += 1
        if job.num_starts > job.restart.budget + 1 + job.num_interruptions:
            raise ViolationError(f"{action.work_id} exceeds the budget of {job.restart.budget} restarts")
        if now_ns < job.not_before_ns:
            raise ViolationError(f"{action.work_id} starts before its back-off is over")
        if len(action.placement) in job.larger_ranks:
            return structs.replace(job.gang, num_ranks=len(action.placement))
        return job.gang

    def _note_end(self, action: JobEnded) -> None:
        job = self._jobs[action.job_id]
        if job.ended:
            raise ViolationError(f"{action.job_id} ends twice: {job.ended}, then {action.outcome}")
        if any(work.action.owner_id == action.job_id for work in self._works.values()):
            raise ViolationError(f"{action.job_id} ends while an attempt of it may live")
        if action.outcome == "succeeded" and not self._has_succeeded(action.job_id):
            raise ViolationError(f"{action.job_id} ends as succeeded, but no attempt of it did")
        num_failures = job.num_starts - job.num_interruptions
        if action.reason.startswith("failed after") and num_failures <= job.restart.budget:
            budget = job.restart.budget
            raise ViolationError(f"{action.job_id} fails after {num_failures} failures, of {budget} allowed")
        job.ended = action.outcome

    def _has_succeeded(self, job_id: str) -> bool:
        return any(
            work.action.owner_id == job_id and work.ended_as == "succeeded"
            for work in self._engine.works.values()
        )

    # Comparison --------------------------------------------------------------------------------------------

    def _compare(self, now_ns: int, core: ControlCore) -> None:
        for node_id, mine in self._nodes.items():
            node = core.state.nodes[node_id]
            if node.free_memory_bytes != mine.free_memory_bytes:
                raise ViolationError(
                    f"{node_id} has {mine.free_memory_bytes} free bytes, not {node.free_memory_bytes}"
                )
            theirs: dict[int, Holders] = {
                index: {work_id: None} for work_id, held in node.leases.items() for index in held
            }
            theirs |= {shared.device: dict(shared.parts) for shared in node.shared}
            truth = self._engine.nodes[node_id]
            sums = Expected()
            for index, holders in enumerate(mine.holders):
                if theirs.get(index, {}) != holders or (index in node.free) == bool(holders):
                    raise ViolationError(
                        f"{node_id}/{index} is held by {holders}, the core says "
                        f"{theirs.get(index)}, free are {node.free}"
                    )
                for occupant in (truth.occupants[index], *truth.sharers.get(index, ())):
                    if occupant and occupant not in holders:
                        raise ViolationError(f"{occupant} runs on {node_id}/{index} without a lease")
                sums.add(self._books.expected((node_id, index), units_of(holders)))
            self._compare_accounts(node_id, core.ledger.read_node(node, now_ns), sums)
            mine.why_closed = node.closed_for
            if node.closed_for and node_id in self._started_on:
                raise ViolationError(f"a work starts on {node_id}, which is closed: {node.closed_for}")
            alive_ns = (now_ns - mine.joined_ns) * mine.num_devices * UNITS_PER_DEVICE
            if sums.total_ns() != alive_ns:
                raise ViolationError(f"{node_id}: {sums.total_ns()} of {alive_ns} ns are accounted for")

    def _compare_accounts(self, node_id: str, books: Accounts, expected: Expected) -> None:
        found = Expected(
            idle_ns=books.allocated_idle_ns,
            busy_ns=books.busy_ns,
            wasted_ns=books.wasted_by_failure_ns,
            maintenance_ns=books.maintenance_ns,
            open_ns=books.free_ns + books.fragmentation_ns,
        )
        pairs = [(getattr(found, name), getattr(expected, name)) for name in _ACCOUNTS]
        # The ledger tells of parts in whole device-nanoseconds, and rounds free and fragmented time apart.
        rounding = 2 * UNITS_PER_DEVICE if any(theirs % UNITS_PER_DEVICE for _, theirs in pairs) else 0
        is_close = all(abs(mine * UNITS_PER_DEVICE - theirs) <= rounding for mine, theirs in pairs)
        is_whole = found.total_ns() * UNITS_PER_DEVICE == expected.total_ns()
        if not (is_close and is_whole) or min(books.free_ns, books.fragmentation_ns) < 0:
            raise ViolationError(f"{node_id}: the ledger says {found}, but it was {expected} in units")
