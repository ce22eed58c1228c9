"""Memory of training at its peak, for many layouts at once: states, activations in flight, buffers, the loss.

Every pipeline stage that can be the fullest is priced in the two phases that can be the peak: a backward
pass, when all activations are live, and the optimizer step, when new weights are collected. Knows nothing of
time or search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from groundplane.perfmodel.estimate import MEMORY_PARTS
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.memory_layers import LayerMemory, layer_memory
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.memory_stages import (
    Stage,
    all_stages,
    full_stages,
    holds_two_stages,
    micro_batches_in_flight,
)
from groundplane.perfmodel.strategy import RECOMPUTE, Layouts
from groundplane.spec.llm import LayerSpec, LlmSpec

_LAYER_FIELDS = ("tp", "cp", "ep", "etp", "micro_batch", "sequence_parallel", "recompute", "recompute_share")
HOST_SHARPNESS: Final = 3.0
"""How abruptly the host gets ahead of the chip as layers take longer."""

_FULL = float(RECOMPUTE.index("full"))
_BLOCK = float(RECOMPUTE.index("block"))


@dataclass(frozen=True)
class TrainingMemory:
    """Peak of a rank under N layouts.

    Attributes:
        parts_bytes: by part (see `MEMORY_PARTS`), shape (N,) each; they add up to `needed_bytes`. Buffers are
            what a pass, the loss, a gather or an optimizer step needs for a while; runtime is what the stack
            holds beyond its tensors.
        needed_bytes: what must be there for the run to live.
        held_bytes: what the stack holds when memory is plentiful, as its tools report it: also tensors that
            wait for the communication stream.
        stage: place of the pipeline stage.
        host_bytes: what the rank keeps in the host's memory.
    """

    parts_bytes: dict[str, FloatArray]
    needed_bytes: FloatArray
    held_bytes: FloatArray
    stage: FloatArray
    host_bytes: FloatArray


def training_memory(
    model: LlmSpec,
    seq: float,
    layouts: Layouts,
    profile: MemoryProfile,
    *,
    activation_bytes: float = 2.0,
    expert_skew: float = 1.0,
    first_stage: bool = False,
) -> TrainingMemory:
    """Peak memory of the fullest rank of each layout (or of the first stage's, as some stacks report).

    Args:
        model: what is trained.
        seq: tokens of a sequence.
        layouts: N of them.
        profile: the software stack.
        activation_bytes: of one activation element.
        expert_skew: tokens of the rank with most tokens against the mean, in layers with experts.
        first_stage: price only the first stage.
    """
    few, own = layouts.unique_by(*_LAYER_FIELDS)
    kinds = [layer for layer, _ in model.layer_groups()]
    layers = [layer_memory(model, kind, seq, few, profile, activation_bytes, expert_skew) for kind in kinds]
    count = len(layouts)
    parts = {name: np.zeros(count) for name in MEMORY_PARTS}
    needed, waiting, place = np.full(count, -1.0), np.zeros(count), np.zeros(count)
    host = np.zeros(count)
    for pp in np.unique(layouts.pp):
        here = np.flatnonzero(layouts.pp == pp)
        pricer = _StagePricer(model, seq, layouts.take(here), profile, activation_bytes, layers, own[here])
        stages = _stages(model, kinds, int(pp), profile)
        for stage in stages[:1] if first_stage else full_stages(stages):
            found, late, down = pricer.peak(stage)
            total = np.sum([found[name] for name in MEMORY_PARTS], axis=0)
            better = total > needed[here]
            rows = here[better]
            for name in MEMORY_PARTS:
                parts[name][rows] = found[name][better]
            needed[rows], waiting[rows], place[rows] = total[better], late[better], stage.place
            host[rows] = down[better]
    return TrainingMemory(parts, needed, needed + waiting, place, host)


def usable_bytes(chip_memory_bytes: float, profile: MemoryProfile) -> float:
    """What a rank's tensors may take of a chip's memory."""
    return (chip_memory_bytes - profile.outside_bytes) * (1.0 - profile.fragment_share)


def stage_parameters(
    model: LlmSpec, layouts: Layouts, stage: Stage, profile: MemoryProfile
) -> tuple[FloatArray, FloatArray]:
    """Parameters of one rank of a stage: (outside experts, of routed experts)."""
    return _stage_pricer(model, layouts, profile).parameters(stage)


def stage_states(
    model: LlmSpec, layouts: Layouts, stage: Stage, profile: MemoryProfile
) -> dict[str, FloatArray]:
    """Bytes of weights, gradients and optimizer states of one rank of a stage, wherever they are kept."""
    pricer = _stage_pricer(model, layouts, profile)
    return pricer.states(*pricer.parameters(stage))


def _stage_pricer(model: LlmSpec, layouts: Layouts, profile: MemoryProfile) -> _StagePricer:
    kinds = [layer for layer, _ in model.layer_groups()]
    layers = [layer_memory(model, kind, 1.0, layouts, profile) for kind in kinds]
    return _StagePricer(model, 1.0, layouts, profile, 2.0, layers, np.arange(len(layouts)))


def pipeline_stages(model: LlmSpec, pp: int, profile: MemoryProfile) -> list[Stage]:
    """All stages of a pipeline of a model under a stack."""
    return _stages(model, [layer for layer, _ in model.layer_groups()], pp, profile)


def _stages(model: LlmSpec, kinds: list[LayerSpec], pp: int, profile: MemoryProfile) -> list[Stage]:
    places = {kind: index for index, kind in enumerate(kinds)}
    order = tuple(places[layer] for layer in model.layers)
    if not profile.balances_stages:
        return all_stages(order, len(kinds), pp)
    work = [_layer_work(kind, model.hidden) for kind in kinds]
    head = float(model.vocab * model.hidden)
    return all_stages(order, len(kinds), pp, tuple(work[kind] for kind in order), head)


def _layer_work(layer: LayerSpec, hidden: int) -> float:
    """Parameters of a layer's matrices that one token passes."""
    work = float(layer.attention.projection_parameters(hidden))
    if layer.mlp is not None:
        work += layer.mlp.matrix_parameters(hidden)
    if layer.moe is not None:
        work += layer.moe.top_k * layer.moe.expert_parameters(hidden) + layer.moe.shared_parameters(hidden)
    return work


class _StagePricer:
    """Stages of layouts that share the length of their pipeline."""

    def __init__(
        self,
        model: LlmSpec,
        seq: float,
        layouts: Layouts,
        profile: MemoryProfile,
        element: float,
        layers: list[LayerMemory],
        own: np.ndarray,
    ) -> None:
        self.model, self.layouts, self.profile, self.element = model, layouts, profile, element
        self.layers, self.own = layers, own
        self.tokens = layouts.micro_batch * seq / layouts.cp
        self.twice = holds_two_stages(layouts)
        self.replicas = layouts.cp * layouts.dp
        self.shard = np.minimum(layouts.shard, self.replicas)
        ratio = layouts.tp / (layouts.ep * layouts.etp)
        self.expert_replicas = np.maximum(self.replicas * ratio, 1.0)
        self.expert_shard = np.maximum(self.shard * ratio, 1.0)

    def parameters(self, stage: Stage) -> tuple[FloatArray, FloatArray]:
        """(outside experts, of routed experts) of one rank."""
        dense = np.zeros(len(self.layouts))
        experts = np.zeros(len(self.layouts))
        for count, layer in zip(stage.layers, self.layers, strict=True):
            if count:
                dense += count * layer.dense[self.own]
                experts += count * layer.experts[self.own]
        return dense + self._edges(stage), experts

    def _edges(self, stage: Stage) -> FloatArray:
        """Embedding, positions, head and final norm; a tied head is a copy of its own on another stage."""
        model = self.model
        counts = model.parameters()
        split = 0.0
        whole = 0.0
        if stage.embedding:
            split += counts.embedding
            whole += counts.position + (model.norm.parameters(model.hidden) if model.embedding_norm else 0)
        if stage.head:
            copied = model.tied_embeddings and not stage.embedding
            split += counts.embedding if copied else counts.head
            whole += model.norm.parameters(model.hidden) if model.final_norm else 0
        return split / self.layouts.tp + whole

    def peak(self, stage: Stage) -> tuple[dict[str, FloatArray], FloatArray, FloatArray]:
        """Bytes by part at the stage's peak, what waits for communication beside them, and what the host
        keeps."""
        profile = self.profile
        dense, experts = (self.twice * part for part in self.parameters(stage))
        states = self.states(dense, experts)
        flying = micro_batches_in_flight(stage.place, self.layouts)
        kept = np.zeros(len(self.layouts))
        for count, layer in zip(stage.layers, self.layers, strict=True):
            if count:
                kept += count * layer.kept[self.own]
        resident = self._resident(stage, kept * flying * self.twice)
        host = kept * flying * self.twice - resident
        activations = resident + self._edge_activations(stage, flying)
        host = host + np.where(self.layouts.offloads_optimizer, states["optimizer"], 0.0)
        states["optimizer"] = np.where(self.layouts.offloads_optimizer, 0.0, states["optimizer"])
        passing = self._passing(stage) + self._buckets(dense + experts)
        stepping = self._buckets(dense + experts) + self._step_gather(dense, experts)
        backward = activations * profile.activation_slack + passing
        is_step = stepping > backward
        # What a stack holds above or below the count of its tensors is shown where it is held.
        parts = {name: profile.state_slack * part for name, part in states.items()}
        parts["activations"] = np.where(is_step, 0.0, profile.activation_slack * activations)
        parts["buffers"] = np.where(is_step, stepping, passing)
        parts["runtime"] = np.full(len(self.layouts), profile.base_bytes)
        return parts, np.where(is_step, 0.0, self._waiting(stage, flying)), host

    def _resident(self, stage: Stage, kept: FloatArray) -> FloatArray:
        """Of the kept activations those on the chip: all; where the host keeps them those of two layers, one
        that computes and one on its way."""
        largest = np.zeros(len(self.layouts))
        for count, layer in zip(stage.layers, self.layers, strict=True):
            if count:
                largest = np.maximum(largest, layer.kept[self.own])
        return np.where(self.layouts.offloads_activations, np.minimum(kept, 2.0 * largest), kept)

    def states(self, dense: FloatArray, experts: FloatArray) -> dict[str, FloatArray]:
        """Weights, gradients, optimizer states as ZeRO 1 to 3 shard them (Rajbhandari et al. 2020)."""
        zero, profile = self.layouts.zero, self.profile

        def held(size: float, least_stage: int) -> FloatArray:
            sharded = zero >= least_stage
            return size * (
                np.where(sharded, dense / self.shard, dense)
                + np.where(sharded, experts / self.expert_shard, experts)
            )

        return {
            "weights": held(profile.weight_bytes, 3),
            "gradients": held(profile.gradient_bytes, 2),
            "optimizer": held(profile.optimizer_bytes, 1),
        }

    def _edge_activations(self, stage: Stage, flying: FloatArray) -> FloatArray:
        """The final norm's input and output; tokens are too small to count."""
        if not stage.head:
            return np.zeros(len(self.layouts))
        split = np.where(self.layouts.sequence_parallel > 0, self.layouts.tp, 1.0)
        return 2.0 * self.tokens / split * self.model.hidden * self.element * np.minimum(flying, 1.0)

    def _passing(self, stage: Stage) -> FloatArray:
        """What comes and goes while all activations are live: a layer that runs backward with its gradients,
        or the loss before it, whichever is larger; and weights gathered for either."""
        most = np.zeros(len(self.layouts))
        for count, layer in zip(stage.layers, self.layers, strict=True):
            if count:
                whole = layer.whole[self.own]
                again = np.where(
                    (self.layouts.recompute == _FULL) | (self.layouts.recompute == _BLOCK), whole, 0.0
                )
                most = np.maximum(most, again + self.profile.working_layers * whole + layer.buffers[self.own])
        held, gradients = self._gathers(stage)
        most = most + gradients
        if stage.head:
            most = np.maximum(most, self._loss())
        return most + held

    def _loss(self) -> FloatArray:
        """Logits in all their copies, each tensor rank with its share of the vocabulary."""
        profile = self.profile
        size = np.where(
            self.layouts.tp > 1, profile.logit_bytes + profile.split_logit_bytes, profile.logit_bytes
        )
        return self.tokens * self.model.vocab / self.layouts.tp * size

    def _gathers(self, stage: Stage) -> tuple[FloatArray, FloatArray]:
        """(held throughout, during a layer's backward pass): weights of two layers gathered at once, beside
        embedding and head; gradients of one layer before they are scattered, in both types. A pipeline that
        keeps them holds all of the stage's weights and gradients whole."""
        profile, layouts = self.profile, self.layouts
        largest = np.zeros(len(layouts))
        for count, layer in zip(stage.layers, self.layers, strict=True):
            if count:
                experts = layer.experts[self.own] * np.where(self.expert_shard > 1, 1.0, 0.0)
                largest = np.maximum(largest, layer.dense[self.own] + experts)
        parameters = np.sum(self.parameters(stage), axis=0)
        weights = profile.gathered_bytes * np.minimum(2.0 * largest + self._edges(stage), parameters)
        scattered = profile.gradient_bytes if profile.gathered_bytes else 0.0
        gradients = (profile.gathered_bytes + scattered) * largest
        whole = np.zeros(len(layouts))
        if profile.pipeline_keeps_gathered:
            kept = (layouts.pp > 1) & (layouts.num_micro > 1)
            weights = np.where(kept, profile.gathered_bytes * parameters, weights)
            gradients = np.where(kept, profile.gathered_bytes * largest, gradients)
            whole = np.where(kept, profile.gradient_bytes * parameters, 0.0)
        zero = np.where(self.shard > 1, layouts.zero, 0.0)
        held = np.where(zero >= 3, weights, 0.0) + np.where(zero >= 2, whole, 0.0)
        return held, np.where(zero >= 2, gradients, 0.0)

    def _buckets(self, parameters: FloatArray) -> FloatArray:
        """Buckets of gradients on their way to other replicas."""
        shared = (self.replicas > 1) & (self.layouts.zero < 3)
        return np.where(shared, self.profile.bucket_bytes * parameters, 0.0)

    def _step_gather(self, dense: FloatArray, experts: FloatArray) -> FloatArray:
        """New weights, the own shard and all of them, while a sharded optimizer step collects them."""
        sharded = (self.layouts.zero >= 1) & (self.layouts.zero < 3) & (self.shard > 1)
        size = self.profile.step_gather_bytes * (
            dense * (1.0 + 1.0 / self.shard) + experts * (1.0 + 1.0 / self.expert_shard)
        )
        return np.where(sharded, size, 0.0)

    def _waiting(self, stage: Stage, flying: FloatArray) -> FloatArray:
        """Full hidden states that cannot be used again before the communication stream has passed."""
        profile, held = self.profile, max(sum(stage.layers), 1)
        if not profile.waiting_alone and not profile.waiting_in_pipeline:
            return np.zeros(len(self.layouts))
        dense = sum(
            count * layer.dense[self.own] for count, layer in zip(stage.layers, self.layers, strict=True)
        )
        work = 2.0 * np.asarray(dense) / held * self.tokens
        slower = profile.host_ahead_flops / np.maximum(work, 1.0)
        ahead = 1.0 / (1.0 + slower**HOST_SHARPNESS)
        piped = np.maximum(flying - 2.0, 0.0) + ahead * np.minimum(flying, 2.0)
        alone = self.layouts.pp == 1
        tensors = np.where(alone, profile.waiting_alone * ahead, profile.waiting_in_pipeline * piped)
        tensors = np.where(self.layouts.tp > 1, tensors * held, 0.0)
        return tensors * self.tokens * self.model.hidden * self.element
