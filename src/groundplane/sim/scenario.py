"""One question to the cluster simulator, as a person asks it: which cluster, which jobs, which policies.

Looks names up and builds worlds; the command line is one user of it, benchmarks are another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from groundplane.catalog.reliability import resolve_reliability
from groundplane.catalog.resolve import is_file_name, resolve_cluster
from groundplane.control.events import PolicySet
from groundplane.control.policy import policy_event
from groundplane.sim.cluster import ClusterRun, World, run_world
from groundplane.sim.faults import FaultRates
from groundplane.sim.physics import Physics, PlacedPhysics
from groundplane.sim.site import Site, equal_site, site_of
from groundplane.sim.summary import ClusterSummary, Prices, summarise
from groundplane.sim.training_speed import TrainingSpeed
from groundplane.sim.workload import SimJob
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.errors import InputError
from groundplane.spec.load import load
from groundplane.spec.policy import POLICY_NAMES, PolicySpec, named_policy

MAX_DEVICES: Final = 200_000
S = 1_000_000_000


@dataclass(frozen=True)
class Place:
    """A cluster to simulate. `spec` is None where only its size is known."""

    site: Site
    spec: ClusterSpec | None

    @property
    def num_devices(self) -> int:
        """Devices of all nodes."""
        return sum(node.num_devices for node in self.site)

    @property
    def devices_per_node(self) -> int:
        """Devices of the largest node."""
        return max(node.num_devices for node in self.site)

    @property
    def device_w(self) -> float | None:
        """Watts of a device with its part of the server, where the description says."""
        if self.spec is None:
            return None
        server = self.spec.server
        return server.chip.tdp_w if server.power_w is None else server.power_w / server.num_chips


def place_of(cluster: str) -> Place:
    """A cluster from "NODESxDEVICES", a preset of the catalogue or a cluster file.

    Raises:
        InputError: no such cluster, or more than `MAX_DEVICES`.
    """
    match = re.fullmatch(r"(\d+)x(\d+)", cluster)
    if match is None:
        spec = resolve_cluster(cluster)
        _check_size(spec.num_chips, cluster)
        return Place(site_of(spec), spec)
    _check_size(int(match[1]) * int(match[2]), cluster)
    return Place(equal_site(int(match[1]), int(match[2])), None)


def policy_of(name_or_path: str, queues: Sequence[str]) -> PolicySet:
    """The policy of a name or a file.

    Args:
        queues: of the workload, for policies that weigh them.

    Raises:
        InputError: unknown name, or anything wrong in the file.
    """
    if is_file_name(name_or_path):
        return policy_event(load(name_or_path, PolicySpec))
    return policy_event(named_policy(name_or_path, queues))


@dataclass(frozen=True)
class Question:
    """What is simulated, for each policy of a list.

    `reliability` is a name of the catalogue or a file, "" for a world without faults; `fault_factor` is how
    many times as often they come.
    """

    place: Place
    jobs: Sequence[SimJob]
    policies: Sequence[str] = (POLICY_NAMES[0],)
    seed: int = 0
    reliability: str = ""
    fault_factor: float = 1.0
    checkpoint_every_s: float = 1800.0
    usd_per_device_hour: float | None = None
    has_timeline: bool = False
    keeps_journal: bool = False


@dataclass(frozen=True)
class Answer:
    """One policy's run and what it comes to."""

    run: ClusterRun
    summary: ClusterSummary


def ask(question: Question) -> list[Answer]:
    """Runs each policy in the same world, over the same jobs and misfortunes.

    Raises:
        InputError: an unknown name, or jobs that can never run on this cluster.
    """
    check_jobs(question.jobs, question.place)
    queues = sorted({job.queue for job in question.jobs})
    policies = [policy_of(name, queues) for name in question.policies]
    for policy in policies:
        _check_limits(question.jobs, policy)
    rates = None
    if question.reliability:
        found = resolve_reliability(question.reliability)
        rates = FaultRates.of(found).scaled(question.fault_factor)
    physics = physics_of(question.place)
    _check_models(question.jobs, physics)
    world = World(
        site=question.place.site,
        physics=physics,
        fault_rates=rates,
        checkpoint_every_ns=int(question.checkpoint_every_s * S),
        seed=question.seed,
        has_timeline=question.has_timeline,
        keeps_journal=question.keeps_journal,
    )
    prices = Prices(question.place.device_w, usd_per_device_hour=question.usd_per_device_hour)
    answers = []
    for name, policy in zip(question.policies, policies, strict=True):
        run = run_world(replace(world, policy=policy), question.jobs)
        answers.append(Answer(run, summarise(run, policy=name, seed=question.seed, prices=prices)))
    return answers


def physics_of(place: Place) -> Physics:
    """Speeds by placement: from the performance model where the cluster is described, else stated factors."""
    return PlacedPhysics(place.site, None if place.spec is None else TrainingSpeed(place.spec))


def check_jobs(jobs: Sequence[SimJob], place: Place) -> None:
    """Refuses jobs that would wait for ever, and steps that nothing says the time of.

    Raises:
        InputError: the first such job.
    """
    slots: dict[int, int] = {}
    for job in jobs:
        per_rank = job.gang.devices_per_rank
        if per_rank not in slots:
            slots[per_rank] = sum(node.num_devices // per_rank for node in place.site)
        if job.gang.num_ranks > slots[per_rank]:
            rule = f"must fit the cluster of {place.num_devices} devices"
            raise InputError(rule, field=f"{job.job_id}.devices", value=job.num_devices)
        if job.training is not None and job.training.steps and place.spec is None:
            rule = "needs a cluster of the catalogue or a cluster file: steps take as long as its chips need"
            raise InputError(rule, field=f"{job.job_id}.steps", value=job.training.steps)


def _check_models(jobs: Sequence[SimJob], physics: Physics) -> None:
    """Prices each kind of training job once, so that one that cannot be is refused before anything runs."""
    seen = set()
    for job in jobs:
        kind = (job.training, job.num_devices)
        if job.training is not None and kind not in seen:
            seen.add(kind)
            try:
                physics.ideal_run_ns(job)
                physics.checkpoint_ns(job)
            except InputError as error:
                raise error.at(field=f"{job.job_id}.model") from None


def _check_limits(jobs: Sequence[SimJob], policy: PolicySet) -> None:
    rules = {rule.queue_id: rule for rule in policy.queues}
    for job in jobs:
        name = job.queue
        while name in rules:
            if 0 <= rules[name].limit_devices < job.num_devices:
                rule = f"must not pass the limit of queue {name}, {rules[name].limit_devices} devices"
                raise InputError(rule, field=f"{job.job_id}.devices", value=job.num_devices)
            name = rules[name].parent


def _check_size(num_devices: int, cluster: str) -> None:
    if not 1 <= num_devices <= MAX_DEVICES:
        raise InputError(f"must have 1 to {MAX_DEVICES} devices", field="CLUSTER", value=cluster)
