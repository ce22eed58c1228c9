"""Speed of training jobs in a simulated cluster, from the performance model and the actual placement.

A placement is priced as a cluster of its own: as many nodes as it has, with as many of them under one leaf as
it has on average, and the latency of the switches that it passes. Above a leaf (or a spine block) each node
has its fair share of the links there, one over the oversubscription of its own rate. A ring leaves a domain
once, so k nodes in it give the ring k shares: a gang that is scattered thinly is slowed, one that fills its
leaves is not. The layout is the fastest that fits among a few usual ones (`TENSOR`, `PIPELINE`), since a
trace says nothing of it.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np

from groundplane.catalog import resolve_llm
from groundplane.perfmodel.memory_profile import memory_profile
from groundplane.perfmodel.memory_training import training_memory, usable_bytes
from groundplane.perfmodel.profiles import stack_profile
from groundplane.perfmodel.strategy import RECOMPUTE, Layouts
from groundplane.perfmodel.training import TrainingJob, price_training
from groundplane.sim.workload import SimJob, Training
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.errors import InputError
from groundplane.spec.llm import LlmSpec

TENSOR: Final = (1, 2, 4, 8)
PIPELINE: Final = (1, 2, 4, 8, 16)
USUAL_SEQ: Final = 4096
SEQUENCES_PER_DEVICE: Final = 4
"""Global batch per device where a trace states none."""
STATE_BYTES_PER_PARAMETER: Final = 14
"""What a checkpoint holds: weights in two bytes, and in four each the master copy and Adam's two moments."""
DEFAULT_WRITE_BYTES_PER_S: Final = 2e9
"""What one node writes to shared storage where the cluster describes none; assumed."""


class TrainingSpeed:
    """Steps and checkpoints of jobs on one cluster.

    Args:
        cluster: chips, fabric and storage.
        stack: software stack whose times are taken.
    """

    def __init__(self, cluster: ClusterSpec, stack: str = "megatron-core") -> None:
        self._cluster = cluster
        self._profile = stack_profile(stack)
        self._memory = memory_profile(self._profile.name)
        self._layout_of: dict[tuple[Training, int], Layouts] = {}
        self._models: dict[str, LlmSpec] = {}

    def step_s(self, job: SimJob, num_nodes: int, num_domains: tuple[int, ...]) -> float:
        """Seconds of one optimizer step.

        Args:
            job: with its training.
            num_nodes: nodes it is on.
            num_domains: how many domains of each level it touches, the widest first.

        Raises:
            InputError: the job's model is not known, or no usual layout of it fits the devices.
        """
        layout = self._layout(job)
        prices = price_training(self._work(job), self._placed(num_nodes, num_domains), layout, self._profile)
        return float(prices.step_s[0])

    def checkpoint_s(self, job: SimJob) -> float:
        """Seconds of writing the whole state, all nodes at once; the job stands still for it.

        Raises:
            InputError: the job's model is not known.
        """
        training = _training(job)
        state_bytes = self._model(training.model).parameters().total * STATE_BYTES_PER_PARAMETER
        num_nodes = max(1, math.ceil(job.num_devices / self._cluster.server.num_chips))
        storage = self._cluster.storage
        if storage is None:
            return state_bytes / (DEFAULT_WRITE_BYTES_PER_S * num_nodes)
        each = storage.per_node_bytes_per_s or storage.write_bytes_per_s
        return storage.latency_s + state_bytes / min(storage.write_bytes_per_s, each * num_nodes)

    def _model(self, name: str) -> LlmSpec:
        if name not in self._models:
            self._models[name] = resolve_llm(name)
        return self._models[name]

    def _work(self, job: SimJob) -> TrainingJob:
        training = _training(job)
        model = self._model(training.model)
        return TrainingJob(model, training.seq or min(model.max_positions or USUAL_SEQ, USUAL_SEQ))

    def _placed(self, num_nodes: int, num_domains: tuple[int, ...]) -> ClusterSpec:
        """The part of the cluster that a placement has, as a cluster."""
        fabric, nics = self._cluster.fabric, self._cluster.server.nics
        passed = [num_nodes / domains for domains in num_domains if domains > 1]
        link = fabric.link_bytes_per_s or (None if nics is None else nics.rate_bytes_per_s)
        if link is not None and passed:
            link *= min(1.0, min(passed) / fabric.oversubscription)
        placed = msgspec.structs.replace(
            fabric,
            # Each level of domains that is left behind is two more switches on the way, one up and one down.
            latency_s=fabric.latency_s + 2 * len(passed) * fabric.hop_latency_s,
            link_bytes_per_s=link,
            nodes_per_leaf=max(1, num_nodes // (num_domains[-1] if num_domains else 1)),
        )
        return msgspec.structs.replace(self._cluster, num_nodes=num_nodes, fabric=placed)

    def _layout(self, job: SimJob) -> Layouts:
        training = _training(job)
        key = (training, job.num_devices)
        if key not in self._layout_of:
            self._layout_of[key] = self._fastest(job)
        return self._layout_of[key]

    def _fastest(self, job: SimJob) -> Layouts:
        training, work, devices = _training(job), self._work(job), job.num_devices
        batch = training.global_batch or devices * SEQUENCES_PER_DEVICE
        heads = math.gcd(*(layer.attention.heads for layer in work.model.layers))
        rows = [
            (tp, pp, devices // (tp * pp), recompute)
            for tp in TENSOR
            for pp in PIPELINE
            for recompute in ("selective", "full")
            if devices % (tp * pp) == 0 and heads % tp == 0 and pp <= work.model.num_layers
        ]
        tp, pp, dp = (np.array([row[place] for row in rows], dtype=np.float64) for place in range(3))
        layouts = Layouts.of(
            tp=tp,
            pp=pp,
            dp=dp,
            num_micro=np.maximum(1.0, np.ceil(batch / dp)),
            zero=1.0,
            sequence_parallel=np.where(tp > 1, 1.0, 0.0),
            recompute=np.array([float(RECOMPUTE.index(row[3])) for row in rows]),
        )
        needed = training_memory(work.model, work.seq, layouts, self._memory).needed_bytes
        fits = np.flatnonzero(needed <= usable_bytes(self._cluster.chip.memory_bytes, self._memory))
        if not len(fits):
            rule = f"{training.model} does not fit {devices} x {self._cluster.chip.name} in any usual layout"
            raise InputError(rule)
        few = layouts.take(fits)
        num_nodes = -(-devices // self._cluster.server.num_chips)
        times_s = price_training(work, self._placed(num_nodes, ()), few, self._profile).step_s
        return few.take(np.array([int(np.argmin(times_s))]))


def _training(job: SimJob) -> Training:
    if job.training is None:
        raise InputError("has no model", field=job.job_id)
    return job.training
