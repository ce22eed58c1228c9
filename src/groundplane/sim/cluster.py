"""A whole cluster on simulated time: the control core over simulated nodes, a workload and faults.

The core is the one that runs real jobs. The world gives durations (`physics.py`), faults (`faults.py`) and
jobs (`workload.py`). A job goes on from its last checkpoint; what it did since is lost and done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from msgspec import Struct

from groundplane.control.actions import AnyAction, JobEnded, StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import AnyEvent, JobSubmitted, NodeJoined, RestartPolicy
from groundplane.control.state import Job
from groundplane.control.views import LedgerView, ledger_view
from groundplane.sim.agenda import Agenda
from groundplane.sim.driver import SimDriver
from groundplane.sim.engine import Script, SimEngine
from groundplane.sim.faults import FaultRates, Faults
from groundplane.sim.physics import Physics, UniformPhysics
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
    """What became of one job. Times in simulated nanoseconds, -1 for never."""

    job_id: str
    queue: str
    num_devices: int
    submitted_ns: int
    first_started_ns: int
    ended_ns: int
    state: str
    restarts_used: int


@dataclass(frozen=True)
class ClusterRun:
    """What a finished run leaves; `jobs` in the order of their ends.

    `arrivals_ledger` is as of the last submission, `final_ledger` as of the end of the last job.
    """

    core: ControlCore
    jobs: list[JobRecord]
    num_nodes: int
    devices_per_node: int
    arrivals_ledger: LedgerView
    final_ledger: LedgerView
    num_events: int
    faults: dict[str, int]


def run_cluster(
    *,
    num_nodes: int,
    devices_per_node: int,
    jobs: list[SimJob],
    seed: int = 0,
    fault_rates: FaultRates | None = None,
    physics: Physics | None = None,
    checkpoint_every_ns: int = 600 * S,
) -> ClusterRun:
    """Runs a workload to its end.

    Args:
        num_nodes, devices_per_node: the cluster, of equal nodes.
        jobs: in the order of submission; at least one.
        seed: picks the faults.
        fault_rates: None for a world without faults.
        physics: durations; uniform ones if not given.
        checkpoint_every_ns: work between two checkpoints, in time on the best placement.

    Raises:
        InvariantError: a job never ends.
    """
    world = _World(num_nodes, devices_per_node, physics or UniformPhysics(), checkpoint_every_ns, fault_rates)
    return world.run(jobs, seed, fault_rates)


class _World:
    """Joins agenda, engine, driver and faults for one run."""

    def __init__(
        self,
        num_nodes: int,
        devices_per_node: int,
        physics: Physics,
        checkpoint_every_ns: int,
        fault_rates: FaultRates | None,
    ) -> None:
        self._num_nodes = num_nodes
        self._devices_per_node = devices_per_node
        self._physics = physics
        self._checkpoint_every_ns = checkpoint_every_ns
        self._agenda = Agenda()
        self._engine = SimEngine(
            self._agenda, self._script, self._reported, self._conflict, keeps_gone=fault_rates is not None
        )
        self._driver = SimDriver(
            self._agenda, self._engine, watch=self._watch, keep_journal=fault_rates is not None
        )
        self._faults: Faults | None = None
        self._run_ns: dict[str, int] = {}
        self._num_events = 0
        self._records: list[JobRecord] = []
        self._held: dict[str, list[AnyEvent]] = {}
        self._waiting: list[AnyEvent] = []

    def run(self, jobs: list[SimJob], seed: int, fault_rates: FaultRates | None) -> ClusterRun:
        """From the joining of the nodes to the end of the last job."""
        for number in range(self._num_nodes):
            self._engine.add_node(f"n{number}", self._devices_per_node)
            self._give(self._offer(f"n{number}", 1))
        self._submit_next(iter(jobs))
        if fault_rates is not None:
            self._faults = Faults(
                self._agenda,
                self._engine,
                fault_rates,
                np.random.default_rng([seed, 1]),
                give=self._give,
                kill=self._driver.kill,
                restart=self._restart,
                offer=self._offer,
                reachable=self._reachable,
            )
        self._run_while(lambda: self._agenda.now_ns < jobs[-1].submit_ns)
        arrivals_ledger = ledger_view(self._driver.core, self._agenda.now_ns)
        self._run_while(lambda: len(self._records) < len(jobs))
        return ClusterRun(
            core=self._driver.core,
            jobs=self._records,
            num_nodes=self._num_nodes,
            devices_per_node=self._devices_per_node,
            arrivals_ledger=arrivals_ledger,
            final_ledger=ledger_view(self._driver.core, self._agenda.now_ns),
            num_events=self._num_events,
            faults={} if self._faults is None else self._faults.counts,
        )

    def _submit_next(self, rest: Iterator[SimJob]) -> None:
        """Plans the next submission only, so that a million of them do not crowd the agenda."""
        job = next(rest, None)
        if job is not None:
            self._agenda.at(job.submit_ns, partial(self._submit, job, rest))

    def _submit(self, job: SimJob, rest: Iterator[SimJob]) -> None:
        self._run_ns[job.job_id] = job.run_ns
        self._give(_submission(job))
        self._submit_next(rest)

    def _run_while(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            if not self._agenda.step():
                raise InvariantError("the simulation stands still, but not all jobs have ended")

    def _script(self, action: StartWork) -> Script:
        """A job's attempt: the rest of its work since the last checkpoint, unless a rank fails before."""
        physics, every_ns = self._physics, self._checkpoint_every_ns
        step = max(0, self._driver.core.state.jobs[action.owner_id].checkpoint_step)
        rest_ns = max(0, self._run_ns[action.owner_id] - step * every_ns)
        if self._faults is None:
            # Nothing can be lost, so the reports that only matter after a loss are left out.
            return Script(
                start_ns=physics.start_ns(action.placement),
                ready_ns=-1,
                run_ns=physics.run_ns(self._run_ns[action.owner_id], action.placement),
                stop_ns=physics.stop_ns(action.placement),
            )
        script = Script(
            start_ns=physics.start_ns(action.placement),
            run_ns=physics.run_ns(rest_ns, action.placement),
            checkpoint_every_ns=physics.run_ns(every_ns, action.placement),
            first_step=step,
            stop_ns=physics.stop_ns(action.placement),
        )
        num_devices = sum(len(rank.devices) for rank in action.placement)
        failure_ns = self._faults.seconds_to_rank_failure(num_devices) * S
        if failure_ns < script.run_ns:
            script.run_ns = int(failure_ns)
            script.outcome = "failed"
            self._faults.counts["rank failures"] += 1
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

    def _watch(self, now_ns: int, event: AnyEvent, actions: list[AnyAction]) -> None:  # noqa: ARG002
        self._num_events += 1
        for action in actions:
            if isinstance(action, JobEnded):
                self._records.append(_record(self._driver.core.state.jobs[action.job_id]))
                del self._run_ns[action.job_id]
        if self._faults is not None and self._num_events % SNAPSHOT_EVERY == 0:
            self._driver.take_snapshot()

    def _offer(self, node_id: str, boot: int) -> NodeJoined:
        return NodeJoined(node_id, DEVICE_KIND, self._devices_per_node, MEMORY_BYTES, boot)

    def _conflict(self, message: str) -> None:
        raise InvariantError(f"two works on one device: {message}")


def _record(job: Job) -> JobRecord:
    return JobRecord(
        job_id=job.job_id,
        queue=job.queue,
        num_devices=job.gang.num_ranks * job.gang.devices_per_rank,
        submitted_ns=job.submitted_ns,
        first_started_ns=job.first_started_ns,
        ended_ns=job.ended_ns,
        state=job.state,
        restarts_used=job.restarts_used,
    )


def _submission(job: SimJob) -> JobSubmitted:
    return JobSubmitted(
        job_id=job.job_id,
        name=job.job_id,
        queue="default",
        priority=0,
        gang=job.gang,
        restart=RESTART,
        stop_grace_ns=30 * S,
        predicted_run_ns=job.predicted_run_ns,
    )
