"""A whole cluster on simulated time: the control core over simulated nodes, a workload and faults.

The core is the one that runs real jobs. The world gives durations (`physics.py`), faults (`faults.py`) and
jobs (`workload.py`). A job goes on from its last checkpoint; what it did since is lost and done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from msgspec import Struct

from groundplane.control.actions import AnyAction, JobEnded, StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import (
    AnyEvent,
    CheckpointCommitted,
    JobSubmitted,
    NodeJoined,
    PolicySet,
    RestartPolicy,
    WorkGone,
)
from groundplane.control.state import Job
from groundplane.control.views import LedgerView, ledger_view
from groundplane.sim.agenda import LAST, Agenda
from groundplane.sim.driver import SimDriver
from groundplane.sim.engine import Script, SimEngine
from groundplane.sim.faults import FaultRates, Faults
from groundplane.sim.physics import Physics, UniformPhysics
from groundplane.sim.site import Site, equal_site
from groundplane.sim.timeline import MAX_SAMPLES, Timeline
from groundplane.sim.workload import SimJob
from groundplane.spec.errors import InvariantError

S = 1_000_000_000
DEVICE_KIND = "device"
MEMORY_BYTES = 1 << 50
"""Memory of a node: no limit, since generated jobs ask for none."""
RESTART = RestartPolicy(budget=1000, backoff_ns=10 * S, backoff_limit_ns=600 * S)
REPORT_DELAY_NS = 1_000_000
SNAPSHOT_EVERY = 2_000
"""Events between two snapshots, in a run with faults."""


class JobRecord(Struct, frozen=True, gc=False):
    """What became of one job. Times in simulated nanoseconds, -1 for never.

    `ideal_run_ns` is its work, in time where it is placed best; `num_preemptions` how often it was stopped
    for another's sake.
    """

    job_id: str
    queue: str
    num_devices: int
    submitted_ns: int
    first_started_ns: int
    ended_ns: int
    state: str
    restarts_used: int
    ideal_run_ns: int = 0
    num_preemptions: int = 0


@dataclass(frozen=True)
class ClusterRun:
    """What a finished run leaves; `jobs` in the order of their ends.

    `arrivals_ledger` is as of the last submission, `final_ledger` as of the end of the last job (or of the
    time that was given). `checkpoint_device_ns` is what devices stood still for checkpoints; it is within
    busy time. `journal` is empty unless it was asked for.
    """

    core: ControlCore
    jobs: list[JobRecord]
    num_nodes: int
    num_devices: int
    arrivals_ledger: LedgerView
    final_ledger: LedgerView
    num_events: int
    faults: dict[str, int]
    checkpoint_device_ns: int = 0
    timeline: Timeline | None = None
    journal: Sequence[bytes] = ()

    @property
    def devices_per_node(self) -> int:
        """Devices of a node, in the mean, rounded up."""
        return -(-self.num_devices // self.num_nodes)


@dataclass(frozen=True)
class World:
    """What a run is like, apart from its jobs.

    `physics` gives durations, uniform ones if not given. `fault_rates` None is a world without faults.
    `checkpoint_every_ns` is work between two checkpoints, in time on the best placement. The run ends with
    the last job, or at `until_ns` if that is given. `keeps_journal` keeps the records of all events.
    """

    site: Site
    physics: Physics = field(default_factory=UniformPhysics)
    policy: PolicySet | None = None
    fault_rates: FaultRates | None = None
    checkpoint_every_ns: int = 600 * S
    seed: int = 0
    until_ns: int = 0
    has_timeline: bool = False
    keeps_journal: bool = False


def run_cluster(
    *,
    num_nodes: int,
    devices_per_node: int,
    jobs: list[SimJob],
    seed: int = 0,
    fault_rates: FaultRates | None = None,
    physics: Physics | None = None,
    checkpoint_every_ns: int = 600 * S,
    policy: PolicySet | None = None,
) -> ClusterRun:
    """Runs a workload to its end on equal nodes without topology; `run_world` takes any cluster.

    Args:
        num_nodes, devices_per_node: the cluster.
        jobs: in the order of submission; at least one.
        seed: picks the faults.
        fault_rates, physics, checkpoint_every_ns, policy: as in `World`.

    Raises:
        InvariantError: a job never ends.
    """
    world = World(
        equal_site(num_nodes, devices_per_node),
        physics or UniformPhysics(),
        policy,
        fault_rates,
        checkpoint_every_ns,
        seed,
    )
    return run_world(world, jobs)


def run_world(world: World, jobs: Sequence[SimJob]) -> ClusterRun:
    """Runs a workload in a world.

    Args:
        jobs: in the order of submission; at least one.

    Raises:
        InvariantError: a job never ends.
    """
    return _Run(world, jobs).run()


class _Run:
    """Joins agenda, engine, driver and faults for one run."""

    def __init__(self, world: World, jobs: Sequence[SimJob]) -> None:
        self._world = world
        self._jobs = jobs
        self._physics = world.physics
        self._has_faults = world.fault_rates is not None
        self._loses_work = self._has_faults or (
            world.policy is not None and world.policy.preemption is not None
        )
        self._agenda = Agenda()
        self._engine = SimEngine(
            self._agenda, self._script, self._reported, self._conflict, keeps_gone=self._has_faults
        )
        self._driver = SimDriver(
            self._agenda,
            self._engine,
            watch=self._watch,
            keep_journal=self._has_faults or world.keeps_journal,
        )
        self._faults: Faults | None = None
        self._running: dict[str, tuple[SimJob, int]] = {}
        self._num_events = self._checkpoint_device_ns = 0
        self._records: list[JobRecord] = []
        self._held: dict[str, list[AnyEvent]] = {}
        self._waiting: list[AnyEvent] = []
        self._devices_of = {node.node_id: node for node in world.site}
        self._timeline: Timeline | None = None

    def run(self) -> ClusterRun:
        """From the joining of the nodes to the end of the last job."""
        world, jobs = self._world, self._jobs
        if world.policy is not None:
            self._give(world.policy)
        for node in world.site:
            self._engine.add_node(node.node_id, node.num_devices)
            self._give(self._offer(node.node_id, 1))
        self._submit_next(iter(jobs))
        if world.has_timeline:
            end_ns = world.until_ns or jobs[-1].submit_ns
            self._timeline = Timeline(end_ns // (MAX_SAMPLES // 2))
            self._agenda.at(0, self._sample, LAST)
        if world.fault_rates is not None:
            self._faults = Faults(
                self._agenda,
                self._engine,
                world.fault_rates,
                np.random.default_rng([world.seed, 1]),
                give=self._give,
                kill=self._driver.kill,
                restart=self._restart,
                offer=self._offer,
                reachable=self._reachable,
            )
        until_ns = world.until_ns or 1 << 62
        if world.until_ns:
            self._agenda.at(until_ns, lambda: None, LAST)  # so that there is a moment to stop at
        last_ns = min(jobs[-1].submit_ns, until_ns)
        self._run_while(lambda: self._agenda.now_ns < last_ns)
        arrivals_ledger = ledger_view(self._driver.core, self._agenda.now_ns)
        self._run_while(lambda: len(self._records) < len(jobs) and self._agenda.now_ns < until_ns)
        return self._finished(arrivals_ledger)

    def _finished(self, arrivals_ledger: LedgerView) -> ClusterRun:
        if self._timeline is not None:
            self._timeline.sample(self._agenda.now_ns, self._driver.core)
            self._timeline.finish(self._agenda.now_ns, self._driver.core)
        return ClusterRun(
            core=self._driver.core,
            jobs=self._records,
            num_nodes=len(self._world.site),
            num_devices=sum(node.num_devices for node in self._world.site),
            arrivals_ledger=arrivals_ledger,
            final_ledger=ledger_view(self._driver.core, self._agenda.now_ns),
            num_events=self._num_events,
            faults={} if self._faults is None else self._faults.counts,
            checkpoint_device_ns=self._checkpoint_device_ns,
            timeline=self._timeline,
            journal=self._driver.journal if self._world.keeps_journal else (),
        )

    def _sample(self) -> None:
        timeline = self._timeline
        if timeline is not None:
            timeline.sample(self._agenda.now_ns, self._driver.core)
            if len(self._agenda):  # else nothing will ever happen again, which is told elsewhere
                self._agenda.after(timeline.interval_ns, self._sample, LAST)

    def _submit_next(self, rest: Iterator[SimJob]) -> None:
        """Plans the next submission only, so that a million of them do not crowd the agenda."""
        job = next(rest, None)
        if job is not None:
            self._agenda.at(job.submit_ns, partial(self._submit, job, rest))

    def _submit(self, job: SimJob, rest: Iterator[SimJob]) -> None:
        ideal_ns = self._physics.ideal_run_ns(job)
        self._running[job.job_id] = (job, ideal_ns)
        self._give(_submission(job, job.predicted_run_ns or ideal_ns))
        self._submit_next(rest)

    def _run_while(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            if not self._agenda.step():
                raise InvariantError("the simulation stands still, but not all jobs have ended")

    def _script(self, action: StartWork) -> Script:
        """A job's attempt: the rest of its work since the last checkpoint, unless a rank fails before."""
        physics, every_ns = self._physics, self._world.checkpoint_every_ns
        job, ideal_ns = self._running[action.owner_id]
        if not self._loses_work:
            # Nothing can be lost, so the reports that only matter after a loss are left out.
            return Script(
                start_ns=physics.start_ns(action.placement),
                ready_ns=-1,
                run_ns=physics.run_ns(ideal_ns, job, action.placement),
                stop_ns=physics.stop_ns(action.placement),
            )
        slow = 1.0 if self._faults is None else self._faults.slowdown(action.placement)
        step = max(0, self._driver.core.state.jobs[action.owner_id].checkpoint_step)
        rest_ns = max(0, ideal_ns - step * every_ns)
        stall_ns = physics.checkpoint_ns(job)
        num_checkpoints = max(0, rest_ns - 1) // every_ns
        script = Script(
            start_ns=physics.start_ns(action.placement),
            run_ns=int(slow * physics.run_ns(rest_ns, job, action.placement)) + num_checkpoints * stall_ns,
            checkpoint_every_ns=int(slow * physics.run_ns(every_ns, job, action.placement)) + stall_ns,
            first_step=step,
            stop_ns=physics.stop_ns(action.placement),
        )
        if self._faults is not None:
            failure_ns = self._faults.seconds_to_rank_failure(job.num_devices) * S
            if failure_ns < script.run_ns:
                script.run_ns = int(failure_ns)
                script.outcome = "failed"
        return script

    def _reported(self, event: AnyEvent, nodes: tuple[str, ...]) -> None:
        for node_id in nodes:
            if not self._engine.nodes[node_id].is_reachable:
                self._held.setdefault(node_id, []).append(event)
                return
        self._agenda.after(REPORT_DELAY_NS, partial(self._driver.take, event))

    def _reachable(self, node_id: str) -> None:
        for event in self._held.pop(node_id, []):
            self._reported(event, ())

    def _give(self, event: AnyEvent) -> None:
        if self._driver.is_up:
            self._driver.take(event)
        else:
            self._waiting.append(event)

    def _restart(self) -> None:
        if self._driver.is_up:
            return
        self._driver.restart()
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._driver.take(event)

    def _watch(self, now_ns: int, event: AnyEvent, actions: list[AnyAction]) -> None:
        self._num_events += 1
        core = self._driver.core
        for action in actions:
            if isinstance(action, JobEnded):
                self._ended(core.state.jobs[action.job_id])
        if isinstance(event, WorkGone) and event.outcome == "failed" and self._faults is not None:
            self._faults.counts["rank failures"] += not self._engine.works[event.work_id].lost_nodes
        elif isinstance(event, CheckpointCommitted):
            job, _ = self._running.get(event.work_id.rpartition(".a")[0], (None, 0))
            if job is not None:
                self._checkpoint_device_ns += self._physics.checkpoint_ns(job) * job.num_devices
        if self._timeline is not None:
            self._timeline.note(now_ns, event, actions, core)
        if self._has_faults and self._num_events % SNAPSHOT_EVERY == 0:
            self._driver.take_snapshot()

    def _ended(self, job: Job) -> None:
        _, ideal_ns = self._running.pop(job.job_id)
        self._records.append(_record(job, ideal_ns))

    def _offer(self, node_id: str, boot: int) -> NodeJoined:
        node = self._devices_of[node_id]
        return NodeJoined(node_id, DEVICE_KIND, node.num_devices, MEMORY_BYTES, boot, node.topology)

    def _conflict(self, message: str) -> None:
        raise InvariantError(f"two works on one device: {message}")


def _record(job: Job, ideal_run_ns: int) -> JobRecord:
    return JobRecord(
        job_id=job.job_id,
        queue=job.queue,
        num_devices=job.gang.num_ranks * job.gang.devices_per_rank,
        submitted_ns=job.submitted_ns,
        first_started_ns=job.first_started_ns,
        ended_ns=job.ended_ns,
        state=job.state,
        restarts_used=job.restarts_used,
        ideal_run_ns=ideal_run_ns,
        num_preemptions=job.num_preemptions,
    )


def _submission(job: SimJob, predicted_run_ns: int) -> JobSubmitted:
    return JobSubmitted(
        job_id=job.job_id,
        name=job.job_id,
        queue=job.queue,
        priority=job.priority,
        gang=job.gang,
        restart=RESTART,
        stop_grace_ns=30 * S,
        predicted_run_ns=predicted_run_ns,
    )
