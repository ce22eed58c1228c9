"""Time of one training step: layers put together into stages, stages into a pipeline, replicas into a step.

One call prices any number of layouts of one model on one cluster under one software stack. What depends on few
parts of a layout is priced once for each combination of those. Knows nothing of memory, search or files.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from groundplane.perfmodel.collectives import Links, cluster_links, collective_time_s
from groundplane.perfmodel.estimate import STAGES
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.kernels import memory_curve
from groundplane.perfmodel.operators import LayerPricer, Pass, Precision
from groundplane.perfmodel.pipeline import pipeline_s, stage_kinds
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.strategy import Layouts
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.llm import LayerSpec, LlmSpec

HOST_SHARPNESS = 6.0
"""How abruptly the slower of host and chip sets the pace of a pass."""


class TrainingJob(msgspec.Struct, frozen=True):
    """What is trained: the model, tokens of a sequence, number formats."""

    model: LlmSpec
    seq: int
    precision: Precision = Precision()


@dataclass(frozen=True)
class TrainingPrices:
    """Prices of N layouts: seconds of a step and of each of its stages, shape (N,) each."""

    step_s: FloatArray
    stages_s: dict[str, FloatArray]


_LAYER_FIELDS = ("tp", "cp", "ep", "etp", "micro_batch", "sequence_parallel", "recompute", "recompute_share")


def price_training(
    job: TrainingJob, cluster: ClusterSpec, layouts: Layouts, profile: StackProfile
) -> TrainingPrices:
    """Seconds of one optimizer step of each layout."""
    return _StepPricer(job, cluster, layouts, profile).prices()


class _StepPricer:
    def __init__(
        self, job: TrainingJob, cluster: ClusterSpec, layouts: Layouts, profile: StackProfile
    ) -> None:
        self.job, self.layouts, self.profile = job, layouts, profile
        self.chip = cluster.chip
        self.links: Links = cluster_links(cluster)
        groups = job.model.layer_groups()
        self.layers = [layer for layer, _ in groups]
        self.kinds = tuple(self.layers.index(layer) for layer in job.model.layers)

    def prices(self) -> TrainingPrices:
        layouts = self.layouts
        few, own = layouts.unique_by(*_LAYER_FIELDS)
        pricer = LayerPricer(
            self.chip, self.links, self.job.model, self.job.seq, self.job.precision, self.profile, few
        )
        forward = [pricer.forward(layer).take(own) for layer in self.layers]
        backward = [pricer.backward(layer).take(own) for layer in self.layers]
        head_forward, head_backward = (part.take(own) for part in pricer.head())
        first_forward, first_backward = (part.take(own) for part in pricer.embedding())
        stages = {name: np.zeros(len(layouts)) for name in STAGES}
        edges = (first_forward, first_backward, head_forward, head_backward)
        for pp in np.unique(layouts.pp):
            here = np.flatnonzero(layouts.pp == pp)
            self._pipelines(
                here,
                [part.take(here) for part in forward],
                [part.take(here) for part in backward],
                tuple(part.take(here) for part in edges),
                stages,
            )
        self._once_a_step(stages)
        step_s = np.sum([stages[name] for name in STAGES], axis=0)
        return TrainingPrices(np.asarray(step_s), stages)

    def _pipelines(
        self,
        here: np.ndarray,
        forward: list[Pass],
        backward: list[Pass],
        edges: tuple[Pass, ...],
        stages: dict[str, FloatArray],
    ) -> None:
        """Adds work, bubble and pipeline communication of the layouts at `here`, which share one `pp`."""
        layouts = self.layouts.take(here)
        pp = int(layouts.pp[0])
        weights, head = self._work() if self.profile.balances_stages else (None, 0.0)
        times, counts, passes = [], [], []
        for kind in stage_kinds(self.kinds, len(self.layers), pp, weights, head):
            down, up = Pass.nothing(len(layouts)), Pass.nothing(len(layouts))
            for index, count in enumerate(kind.layers):
                down, up = down.plus(forward[index], count), up.plus(backward[index], count)
            if kind.embedding:
                down, up = down.plus(edges[0]), up.plus(edges[1])
            if kind.head:
                down, up = down.plus(edges[2]), up.plus(edges[3])
            passes.append((down, up))
            times.append((self._pass_s(down), self._pass_s(up)))
            counts.append(kind.count)
        both = np.array([down + up for down, up in times])
        slowest = np.argmax(both, axis=0)
        columns = np.arange(len(layouts))
        peak = both[slowest, columns]
        total = np.tensordot(np.array(counts, dtype=np.float64), both, axes=1)
        backward_s = np.array([up for _, up in times])[slowest, columns]
        work, bubble = pipeline_s(
            peak, total, backward_s / peak, layouts.pp, layouts.vpp, layouts.num_micro, layouts.schedule
        )
        stages["pipeline_bubble"][here] += bubble
        self._split(here, work, [down.plus(up) for down, up in passes], slowest, stages)
        if pp > 1:
            stages["pipeline_communication"][here] += self._hops_s(layouts)

    def _split(
        self,
        here: np.ndarray,
        work: FloatArray,
        passes: list[Pass],
        slowest: np.ndarray,
        stages: dict[str, FloatArray],
    ) -> None:
        """Shares the slowest stage's work out to the stages of the breakdown; what is left is launch overhead."""
        num_micro = self.layouts.num_micro[here]
        columns = np.arange(len(here))
        named = {
            "matmul": "matmul",
            "attention": "attention",
            "memory_bound": "memory_bound",
            "tensor_communication": "tensor",
            "context_communication": "context",
            "expert_communication": "expert",
        }
        left = work.copy()
        for stage, field in named.items():
            seconds = np.array([getattr(part, field) for part in passes])[slowest, columns] * num_micro
            stages[stage][here] += seconds
            left -= seconds
        stages["launch"][here] += np.maximum(left, 0.0)

    def _pass_s(self, part: Pass) -> FloatArray:
        """Seconds of a pass: the chip's time, or the host's where launching takes longer, meeting smoothly."""
        chip_s = part.matmul + part.attention + part.memory_bound + part.tensor + part.context + part.expert
        host_s = part.operators * self.profile.host_s_per_operator
        large = np.maximum(chip_s, host_s)
        ratio = np.minimum(chip_s, host_s) / np.maximum(large, 1e-30)
        return np.asarray(large * (1.0 + ratio**HOST_SHARPNESS) ** (1.0 / HOST_SHARPNESS))

    def _work(self) -> tuple[tuple[float, ...], float]:
        """Parameters that a token passes in each layer and in the head, by which stacks balance stages."""
        model = self.job.model
        per_kind = [_layer_work(layer, model.hidden) for layer in self.layers]
        return tuple(per_kind[kind] for kind in self.kinds), float(model.vocab * model.hidden)

    def _hops_s(self, layouts: Layouts) -> FloatArray:
        """Activations and their gradients between stages: one hop each way a micro-batch and model chunk."""
        split = np.where(layouts.sequence_parallel > 0, layouts.tp, 1.0)
        size = layouts.micro_batch * self.job.seq / layouts.cp * self.job.model.hidden
        size = size * self.job.precision.activation_bytes / split
        stride = layouts.tp * layouts.cp * layouts.dp
        inside = 2.0 * stride <= self.links.chips_per_domain
        hop = collective_time_s(
            self.links, "send_recv", size, np.where(inside, 2.0, 1.0), np.where(inside, 1.0, 2.0)
        )
        crossings = 2.0 * layouts.vpp * layouts.num_micro + 2.0 * (layouts.pp - 1.0)
        return hop / self.profile.link_share * crossings

    def _once_a_step(self, stages: dict[str, FloatArray]) -> None:
        layouts, profile = self.layouts, self.profile
        dense, experts = self._stage_parameters()
        dense_rank, expert_rank = dense / layouts.tp, experts / (layouts.ep * layouts.etp)
        stages["data_communication"] += self._replicas_s(stages, dense_rank, expert_rank)
        sharded = np.where(layouts.zero >= 1, layouts.shard, 1.0)
        expert_replicas = np.maximum(layouts.tp * layouts.cp * layouts.dp / (layouts.ep * layouts.etp), 1.0)
        expert_shard = np.where(layouts.zero >= 1, np.minimum(sharded, expert_replicas), 1.0)
        words = dense_rank / sharded + expert_rank / expert_shard
        curve = memory_curve(self.chip)
        rate = curve.memory_bytes_per_s * curve.efficiency * profile.small_share
        stages["optimizer"] += words * 4.0 * profile.optimizer_passes / rate
        stages["launch"] += profile.step_overhead_s

    def _stage_parameters(self) -> tuple[FloatArray, FloatArray]:
        """Parameters of the fullest pipeline stage, those of experts apart."""
        model, pp = self.job.model, self.layouts.pp
        hidden = model.hidden
        experts = float(
            sum(
                layer.moe.experts * layer.moe.expert_parameters(hidden) for layer in model.layers if layer.moe
            )
        )
        table = float(model.vocab * hidden)
        layers = float(model.parameters().total) - experts - table * (1.0 if model.tied_embeddings else 2.0)
        # A stage at an end holds a table; without a pipeline one rank holds both, unless they are the same.
        tables = np.where(pp > 1, table, table * (1.0 if model.tied_embeddings else 2.0))
        share = np.ceil(model.num_layers / pp) / model.num_layers
        return layers * share + tables, experts * share

    def _replicas_s(
        self, stages: dict[str, FloatArray], dense_rank: FloatArray, expert_rank: FloatArray
    ) -> FloatArray:
        """Exposed communication between replicas: gradients, and weights where they are sharded."""
        layouts, profile = self.layouts, self.profile
        replicas = layouts.cp * layouts.dp
        reduced = self._over_replicas(
            "reduce_scatter", dense_rank * profile.gradient_bytes, replicas, layouts.tp
        )
        word = 4.0 if profile.gathers_in_fp32 else 2.0
        gathered = self._over_replicas("all_gather", dense_rank * word, replicas, layouts.tp)
        twice = self._over_replicas("all_gather", dense_rank * profile.gradient_bytes, replicas, layouts.tp)
        expert_replicas = np.maximum(layouts.tp * replicas / (layouts.ep * layouts.etp), 1.0)
        stride = np.minimum(layouts.ep * layouts.etp, float(self.links.chips_per_domain))
        for part, kind, width in (
            (0, "reduce_scatter", profile.gradient_bytes),
            (1, "all_gather", word),
            (2, "all_gather", profile.gradient_bytes),
        ):
            more = self._over_replicas(kind, expert_rank * width, expert_replicas, stride)
            reduced, gathered, twice = (
                value + more if part == index else value
                for index, value in enumerate((reduced, gathered, twice))
            )
        compute = stages["matmul"] + stages["attention"] + stages["memory_bound"]
        backward = compute * 2.0 / 3.0 / layouts.num_micro
        # FSDP gathers for every micro-batch, forward and backward, and reduces in each backward pass.
        rounds = layouts.num_micro
        sharded_s = self._hidden(rounds * 2.0 * gathered, compute, profile.gathers_ahead) + self._hidden(
            rounds * reduced, compute * 2.0 / 3.0, profile.overlaps_backward
        )
        plain = self._hidden(reduced, backward, profile.overlaps_backward) + np.where(
            layouts.zero >= 1,
            self._hidden(gathered, backward / 2.0, profile.gathers_ahead),
            self._hidden(twice, backward, profile.overlaps_backward),
        )
        return np.where(layouts.zero >= 3, sharded_s, plain)

    def _hidden(self, seconds: FloatArray, cover: FloatArray, overlaps: bool) -> FloatArray:
        """What shows of communication beside computing that could cover it."""
        if not overlaps:
            return seconds
        covered = np.minimum(seconds, cover)
        return seconds - covered + self.profile.exposed_share * covered

    def _over_replicas(
        self, kind: str, size: FloatArray, replicas: FloatArray, stride: FloatArray
    ) -> FloatArray:
        """A collective over ranks that lie `stride` apart, as replicas do."""
        inside = np.clip(np.floor(self.links.chips_per_domain / stride), 1.0, replicas)
        domains = np.ceil(replicas / inside)
        return collective_time_s(self.links, kind, size, inside, domains) / self.profile.link_share  # type: ignore[arg-type]


def _layer_work(layer: LayerSpec, hidden: int) -> float:
    """Parameters of a layer's matrices that one token passes."""
    work = float(layer.attention.projection_parameters(hidden))
    if layer.mlp is not None:
        work += layer.mlp.matrix_parameters(hidden)
    if layer.moe is not None:
        work += layer.moe.top_k * layer.moe.expert_parameters(hidden) + layer.moe.shared_parameters(hidden)
    return work
