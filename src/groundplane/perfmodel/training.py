"""Time of one training step: layers put together into stages, stages into a pipeline, replicas into a step.

One call prices any number of layouts of one model on one cluster under one software stack. What depends on
few parts of a layout is priced once for each combination of those. Knows nothing of memory, search or files.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from groundplane.perfmodel.collectives import Links, cluster_links, collective_time_s
from groundplane.perfmodel.estimate import STAGES
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.exchange import Exchange
from groundplane.perfmodel.kernels import memory_curve
from groundplane.perfmodel.offload import HostTransfer
from groundplane.perfmodel.operators import LayerPricer
from groundplane.perfmodel.passes import Pass, Precision
from groundplane.perfmodel.pipeline import StageKind, mirrored_kinds, pipeline_s, stage_kinds
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.strategy import SCHEDULES, Layouts
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.llm import LayerSpec, LlmSpec

HOST_SHARPNESS = 3.0
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


@dataclass(frozen=True)
class _Ranks:
    """What pipeline ranks hold: where the layouts are that hold it so, the kinds of stages, and of each kind
    of rank the two stages it holds by their places in `kinds`, the same twice where not `mirrored`."""

    here: npt.NDArray[np.intp]
    kinds: list[StageKind]
    pairs: list[tuple[int, int]]
    mirrored: bool


_LAYER_FIELDS = (
    "tp",
    "cp",
    "pp",
    "dp",
    "ep",
    "etp",
    "micro_batch",
    "sequence_parallel",
    "recompute",
    "recompute_share",
)


def price_training(
    job: TrainingJob, cluster: ClusterSpec, layouts: Layouts, profile: StackProfile
) -> TrainingPrices:
    """Seconds of one optimizer step of each layout."""
    return StepModel(job, cluster, layouts, profile).prices(profile)


class StepModel:
    """Benchmark times of some layouts, from which prices follow under any values of a profile's fitted
    numbers.

    Args:
        job: what is trained.
        cluster: where.
        layouts: N of them.
        facts: the stack; only what it does is taken from here (see `StackProfile`), its numbers are not.
    """

    def __init__(self, job: TrainingJob, cluster: ClusterSpec, layouts: Layouts, facts: StackProfile) -> None:
        self.job, self.layouts = job, layouts
        self.links: Links = cluster_links(cluster)
        curve = memory_curve(cluster.chip)
        self._memory_bytes_per_s = curve.memory_bytes_per_s * curve.efficiency
        few, self._own = layouts.unique_by(*_LAYER_FIELDS)
        layers = [layer for layer, _ in job.model.layer_groups()]
        pricer = LayerPricer(cluster.chip, self.links, job.model, job.seq, job.precision, facts, few)
        parts: list[Pass] = []
        for layer in layers:
            parts += [pricer.forward(layer), pricer.backward(layer)]
        self._layers = parts
        self._hides_experts = facts.overlaps_experts & (few.tp * few.ep > self.links.chips_per_domain)
        self._edges = [*pricer.embedding(), *pricer.head()]
        self._ranks = self._deal(facts, layers)
        self._exchange = Exchange(job, self.links, layouts, facts)
        self._hop_s = self._one_hop_s()
        element_bytes = job.precision.activation_bytes
        words = self._exchange.optimizer_words
        self._host = HostTransfer(job.model, job.seq, element_bytes, cluster, layouts, layers, words)

    def prices(self, profile: StackProfile) -> TrainingPrices:
        """Prices under a profile of the same facts."""
        layouts = self.layouts
        layers, edges = self._spent(profile)
        stages = {name: np.zeros(len(layouts)) for name in STAGES}
        for ranks in self._ranks:
            self._pipeline(ranks, layers, edges, profile, stages)
        stages["data_communication"] = self._exchange.exposed_s(profile, self._free_s(profile, stages))
        words = self._exchange.optimizer_words
        rate = self._memory_bytes_per_s * profile.small_share
        stages["optimizer"] = words * 4.0 * profile.optimizer_passes / rate
        if self._host.any:
            self._add_host(profile, stages)
        stages["launch"] += self.once_s(profile)
        step_s = np.sum([stages[name] for name in STAGES], axis=0)
        return TrainingPrices(np.asarray(step_s), stages)

    def _add_host(self, profile: StackProfile, stages: dict[str, FloatArray]) -> None:
        """What is kept in the host's memory: its optimizer takes the place of the chip's, and activations
        travel beside computing."""
        stages["optimizer"] = np.where(self.layouts.offloads_optimizer, 0.0, stages["optimizer"])
        computing = stages["matmul"] + stages["attention"] + stages["memory_bound"]
        travelling = shown(self._host.activations_s(), computing, profile)
        stages["host_transfer"] = self._host.optimizer_s(profile) + travelling

    def once_s(self, profile: StackProfile) -> FloatArray:
        """Seconds that a step costs beside its work: once, and each micro-batch that stalls."""
        stalls = np.where(
            (self.layouts.pp > 1) | (not profile.stalls_in_pipelines), self.layouts.num_micro, 0.0
        )
        return profile.step_overhead_s + profile.stall_s * stalls

    def stage_passes(self, profile: StackProfile) -> list[tuple[StageKind, FloatArray, FloatArray]]:
        """Of the first layout: kinds of pipeline stages with the seconds of a micro-batch's forward and
        backward pass in rows as in `SPENT`."""
        layers, edges = self._spent(profile)
        found = []
        for kind in next(ranks.kinds for ranks in self._ranks if 0 in ranks.here):
            down, up = _stage_passes(kind, layers, edges)
            found.append((kind, down[:, self._own[0]], up[:, self._own[0]]))
        return found

    def hop_s(self, profile: StackProfile) -> float:
        """Of the first layout: seconds of a micro-batch's way from one stage to the next."""
        return float(self._hop_s[0] / profile.link_share) if self.layouts.pp[0] > 1 else 0.0

    def _spent(self, profile: StackProfile) -> tuple[list[FloatArray], list[FloatArray]]:
        """Seconds of each kind of layer, forward and backward in turn, and of embedding and head."""
        hides = self._hides_experts
        layers = [spent(part, profile, hides, backward=bool(i % 2)) for i, part in enumerate(self._layers)]
        edges = [spent(part, profile, hides, backward=bool(i % 2)) for i, part in enumerate(self._edges)]
        return layers, edges

    def _free_s(self, profile: StackProfile, stages: dict[str, FloatArray]) -> FloatArray:
        """Seconds of a step beside which nothing else travels yet (see `spent`): computing, and gaps in which
        the chip waits for the host, so that a faster chip under the same host is never slower."""
        layouts = self.layouts
        free = stages["matmul"] + stages["attention"] + stages["memory_bound"]
        tied = (layouts.tp > 1) & profile.ties_tensor_backward
        free = free - np.where(tied, 0.5 * stages["matmul"], 0.0)
        free = free - np.where(layouts.cp > 1, stages["attention"], 0.0)
        free = np.where(self._hides_experts[self._own], 0.0, np.maximum(free, 0.0))
        return free + stages["launch"]

    def _deal(self, facts: StackProfile, layers: list[LayerSpec]) -> list[_Ranks]:
        """For each pipeline length and way of holding stages: where its layouts are, what ranks hold."""
        model, layouts = self.job.model, self.layouts
        kinds = tuple(layers.index(layer) for layer in model.layers)
        weights, head = None, 0.0
        if facts.balances_stages:
            per_kind = [layer_work(layer, model.hidden) for layer in layers]
            weights, head = tuple(per_kind[kind] for kind in kinds), float(model.vocab * model.hidden)
        mirrored = layouts.schedule == SCHEDULES.index("dualpipe")
        found = []
        for pp in np.unique(layouts.pp):
            dealt = (kinds, len(layers), int(pp), weights, head)
            held = stage_kinds(*dealt)
            alone = [(place, place) for place in range(len(held))]
            for both, pairs in ((False, alone), (True, mirrored_kinds(*dealt))):
                here = np.flatnonzero((mirrored == both) & (layouts.pp == pp))
                if len(here):
                    found.append(_Ranks(here, held, pairs, both))
        return found

    def _pipeline(
        self,
        ranks: _Ranks,
        layers: list[FloatArray],
        edges: list[FloatArray],
        profile: StackProfile,
        stages: dict[str, FloatArray],
    ) -> None:
        """Adds work, bubble and pipeline communication of layouts that share one `pp`."""
        here = ranks.here
        layouts, own = self.layouts.take(here), self._own[here]
        passes = [_stage_passes(kind, layers, edges) for kind in ranks.kinds]
        down, up = (np.array([one[back][:, own] for one in passes]) for back in (0, 1))
        stage_up_s = np.array([pace_s(part) for part in up])
        stage_s = np.array([pace_s(part) for part in down]) + stage_up_s
        # Of each rank: the mean of the stages it holds, which for all but DualPipe are one.
        one, other = (np.array(side) for side in zip(*ranks.pairs, strict=True))
        rank_s = (stage_s[one] + stage_s[other]) / 2.0
        slowest, columns = np.argmax(rank_s, axis=0), np.arange(len(here))
        one, other = one[slowest], other[slowest]
        peak = rank_s[slowest, columns]
        total = np.tensordot(np.array([float(kind.count) for kind in ranks.kinds]), stage_s, axes=1)
        up_s = (stage_up_s[one, columns] + stage_up_s[other, columns]) / 2.0
        work, bubble = pipeline_s(
            peak, total, up_s / peak, layouts.pp, layouts.vpp, layouts.num_micro, layouts.schedule
        )
        stages["pipeline_bubble"][here] = bubble
        both = down + up
        spent_s = both[one, :, columns].T
        if ranks.mirrored:
            spent_s = (spent_s + both[other, :, columns].T) / 2.0
        spent_s = spent_s * layouts.num_micro
        for row, name in enumerate(SPENT[:-1]):
            stages[name][here] = spent_s[row]
        stages["launch"][here] = np.maximum(work - spent_s[:-1].sum(axis=0), 0.0)
        crossings = 2.0 * layouts.vpp * layouts.num_micro + 2.0 * (layouts.pp - 1.0)
        hops = self._hop_s[here] / profile.link_share * crossings
        stages["pipeline_communication"][here] = np.where(layouts.pp > 1, hops, 0.0)

    def _one_hop_s(self) -> FloatArray:
        """Activations of one micro-batch from one stage to the next.

        Each tensor rank sends its part only; without sequence parallelism the parts are gathered behind the
        hop (Narayanan et al. 2021, section 4.1).
        """
        layouts = self.layouts
        size = layouts.micro_batch * self.job.seq / layouts.cp * self.job.model.hidden
        size = size * self.job.precision.activation_bytes
        stride = layouts.tp * layouts.cp * layouts.dp
        inside = 2.0 * stride <= self.links.chips_per_domain
        sent = collective_time_s(
            self.links,
            "send_recv",
            size / layouts.tp,
            np.where(inside, 2.0, 1.0),
            np.where(inside, 1.0, 2.0),
        )
        within = np.minimum(layouts.tp, float(self.links.chips_per_domain))
        gathered = collective_time_s(self.links, "all_gather", size, within, np.ceil(layouts.tp / within))
        whole = (layouts.sequence_parallel == 0) & (layouts.tp > 1)
        return np.asarray(sent + np.where(whole, gathered, 0.0))


def _stage_passes(
    kind: StageKind, layers: list[FloatArray], edges: list[FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Seconds of a stage's forward and backward pass, shape (len(SPENT), N)."""
    parts = [count * part for count, part in zip(kind.layers, layers[::2], strict=True)]
    back = [count * part for count, part in zip(kind.layers, layers[1::2], strict=True)]
    for held, first in ((kind.embedding, 0), (kind.head, 2)):
        if held:
            parts.append(edges[first])
            back.append(edges[first + 1])
    return np.sum(parts, axis=0), np.sum(back, axis=0)


SPENT = (
    "matmul",
    "attention",
    "memory_bound",
    "tensor_communication",
    "context_communication",
    "expert_communication",
    "launch",
)
"""Rows of what `spent` returns: seconds by stage of the breakdown, and last the host's time to launch it
all."""


def spent(
    part: Pass, profile: StackProfile, hides_experts: npt.NDArray[np.bool_], *, backward: bool
) -> FloatArray:
    """Seconds of a pass under a profile, shape (len(SPENT), N): shares reached, and communication that
    shows."""
    matmul = (part.matmul + part.scaled / profile.scaled_rate) / profile.sustained
    attention = part.attention / profile.sustained
    memory_bound = (part.memory_bound + profile.hidden_passes * part.hidden) / profile.small_share
    tensor, beside = part.tensor / profile.link_share, part.beside / profile.link_share
    # Every second of computing covers at most one kind of communication: else faster chips could be slower.
    window = matmul + memory_bound + np.where(part.context > 0, 0.0, attention)
    if backward and profile.ties_tensor_backward:
        window = window - np.where(part.tensor > 0, 0.75 * matmul, 0.0)
        tensor = shown(tensor, matmul * 0.5, profile) + shown(beside, matmul * 0.25, profile)
    else:
        tensor = tensor + beside
    context = shown(part.context / profile.link_share, attention, profile)
    expert = part.expert / profile.link_share
    if np.any(hides_experts):
        expert = np.where(hides_experts, shown(expert, window, profile), expert)
    host = part.operators * profile.host_s_per_operator + part.hops * profile.hop_s
    return np.array([matmul, attention, memory_bound, tensor, context, expert, host])


def shown(seconds: FloatArray, cover: FloatArray, profile: StackProfile) -> FloatArray:
    """What shows of communication beside computing that could cover it; what is covered slows the
    computing."""
    covered = np.minimum(seconds, cover)
    return np.asarray(seconds - covered + profile.exposed_share * covered)


def pace_s(seconds: FloatArray) -> FloatArray:
    """Seconds of a pass: the chip's time, or the host's where launching takes longer, meeting smoothly."""
    chip_s, host_s = seconds[:-1].sum(axis=0), seconds[-1]
    large = np.maximum(chip_s, host_s)
    ratio = np.minimum(chip_s, host_s) / np.maximum(large, 1e-30)
    return np.asarray(large * (1.0 + ratio**HOST_SHARPNESS) ** (1.0 / HOST_SHARPNESS))


def layer_work(layer: LayerSpec, hidden: int) -> float:
    """Parameters of a layer's matrices that one token passes."""
    work = float(layer.attention.projection_parameters(hidden))
    if layer.mlp is not None:
        work += layer.mlp.matrix_parameters(hidden)
    if layer.moe is not None:
        work += layer.moe.top_k * layer.moe.expert_parameters(hidden) + layer.moe.shared_parameters(hidden)
    return work
