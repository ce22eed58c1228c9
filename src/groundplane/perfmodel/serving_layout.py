"""How a model is laid out over chips for serving, and in which number formats: what an iteration depends on.

Knows nothing of engines, queues or time.
"""

from __future__ import annotations

from typing import Final

import msgspec

from groundplane.perfmodel.serving_kernels import STORED_BYTES
from groundplane.spec.cluster import ChipSpec
from groundplane.spec.errors import InputError, unknown_name
from groundplane.spec.llm import AttentionSpec, LlmSpec

WEIGHT_BYTES: Final = STORED_BYTES
"""Bytes of one weight by format, scales included."""

KV_BYTES: Final = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
"""Bytes of one number in the key-value cache."""


class ServingLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine over `num_chips` chips.

    `tp` splits the attention and dense blocks of one data-parallel rank, `attention_dp` ranks hold different
    requests, `pp` cuts the layers. Experts are spread over all chips of a stage: `expert_tp` x `expert_ep`.
    """

    tp: int = 1
    pp: int = 1
    attention_dp: int = 1
    expert_tp: int = 1
    expert_ep: int = 1

    @property
    def num_chips(self) -> int:
        """Chips of one engine."""
        return self.tp * self.attention_dp * self.pp

    def checked(self, model: LlmSpec) -> ServingLayout:
        """The layout, if it fits the model.

        Raises:
            InputError: a degree below one, experts over other chips than the stage has, more pipeline
                stages than layers.
        """
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise InputError("must be at least 1", field=name, value=getattr(self, name))
        if model.is_moe and self.expert_tp * self.expert_ep != self.tp * self.attention_dp:
            raise InputError(
                f"expert tp x expert ep must be tp x attention dp = {self.tp * self.attention_dp}",
                field="expert_ep",
                value=self.expert_tp * self.expert_ep,
            )
        if self.pp > model.num_layers:
            raise InputError(f"is more than the {model.num_layers} layers", field="pp", value=self.pp)
        heads = min(layer.attention.heads for layer in model.layers)
        if self.tp > heads:
            raise InputError(f"is more than the {heads} attention heads", field="tp", value=self.tp)
        return self


class ServingFormats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Number formats: of dense blocks, experts, attention's projections and head, and the cache."""

    linear: str = "bf16"
    experts: str = "bf16"
    projections: str = "bf16"
    cache: str = "bf16"


def formats_of(model: LlmSpec, weights: str, cache: str, experts: str = "") -> ServingFormats:
    """The formats of a checkpoint that is called "fp8", "fp4", ...

    Four-bit checkpoints of mixtures of experts quantise the experts and leave attention in bf16 (gpt-oss,
    DeepSeek-R1-NVFP4, Kimi-K2 int4); those of dense models quantise all linear layers.

    Raises:
        InputError: unknown format.
    """
    for name, value, known in (("weights", weights, WEIGHT_BYTES), ("cache", cache, KV_BYTES)):
        if value not in known:
            raise unknown_name(f"format of {name}", value, tuple(known))
    experts = experts or weights
    narrow = WEIGHT_BYTES[experts] < 1.0 and model.is_moe
    return ServingFormats(
        linear="bf16" if narrow and WEIGHT_BYTES[weights] < 1.0 else weights,
        experts=experts,
        projections="bf16" if narrow else weights,
        cache=cache,
    )


def cache_bytes_per_token(model: LlmSpec, layout: ServingLayout, formats: ServingFormats) -> float:
    """Bytes of cache that one more token takes on one chip, windows not considered.

    Heads are split over the tensor ranks; fewer key heads than ranks, and latents, are held by each.
    """
    total = 0.0
    for layer, count in model.layer_groups():
        if layer.attention.window is None:
            total += count * layer_cache_bytes(layer.attention, layout, formats)
    return total / layout.pp


def layer_cache_bytes(attention: AttentionSpec, layout: ServingLayout, formats: ServingFormats) -> float:
    """Bytes of one token in the cache of one layer on one chip."""
    share = 1.0 if attention.kv_rank else max(1.0 / layout.tp, 1.0 / attention.kv_heads)
    return attention.kv_values_per_token() * share * KV_BYTES[formats.cache]


def weight_bytes_per_chip(model: LlmSpec, layout: ServingLayout, formats: ServingFormats) -> float:
    """Bytes of weights on one chip."""
    count = model.parameters()
    experts = count.experts * WEIGHT_BYTES[formats.experts] / (layout.expert_tp * layout.expert_ep)
    dense = (count.mlp + count.shared_experts) * WEIGHT_BYTES[formats.linear]
    projections = count.attention * WEIGHT_BYTES[formats.projections]
    ends = (count.embedding + count.head + count.position) * 2.0 / layout.tp
    rest = (count.router + count.norms) * 2.0
    return (experts + (dense + projections) / layout.tp + rest) / layout.pp + ends


class CacheCapacity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left for the cache on each chip, and what it holds for one data-parallel rank."""

    weight_bytes: float
    cache_bytes: float
    bytes_per_token: float
    window_bytes_per_sequence: float
    block_tokens: int
    num_blocks: int

    @property
    def num_tokens(self) -> int:
        """Tokens that the blocks hold."""
        return self.num_blocks * self.block_tokens

    def num_sequences(self, tokens: float) -> float:
        """Sequences of so many tokens that fit at the same time."""
        blocks = -(-tokens // self.block_tokens)
        need = blocks * self.block_tokens * self.bytes_per_token + self.window_bytes_per_sequence
        return self.cache_bytes / need if need else float("inf")


def cache_capacity(
    chip: ChipSpec,
    model: LlmSpec,
    layout: ServingLayout,
    formats: ServingFormats,
    *,
    memory_share: float = 0.9,
    reserved_bytes: float = 3e9,
    block_tokens: int = 16,
) -> CacheCapacity:
    """Blocks of key-value cache of one data-parallel rank.

    Args:
        chip, model, layout, formats: what is served on what.
        memory_share: of the chip's memory that the engine takes.
        reserved_bytes: activations, graphs and communication buffers within it.
        block_tokens: tokens of one block.
    """
    weights = weight_bytes_per_chip(model, layout, formats)
    left = max(chip.memory_bytes * memory_share - reserved_bytes - weights, 0.0)
    per_token = cache_bytes_per_token(model, layout, formats)
    windows = sum(
        count * (layer.attention.window or 0) * layer_cache_bytes(layer.attention, layout, formats)
        for layer, count in model.layer_groups()
    )
    blocks = int(left // (per_token * block_tokens)) if per_token else 0
    return CacheCapacity(weights, left, per_token, windows / layout.pp, block_tokens, blocks)
