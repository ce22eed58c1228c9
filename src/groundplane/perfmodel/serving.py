"""One iteration of a serving engine, operator by operator: decode, prefill, or both in one batch.

An iteration takes, on each data-parallel rank, one token of each of `decode` sequences and `prefill` tokens
of prompts. Products see all of them as rows; attention is priced apart for both. What host and engine add is
the profile's (`serving_profiles`); this file prices the chip's work and the links'. Shapes are those of the
busiest chip. Knows nothing of queues or arrivals.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from groundplane.perfmodel import kernels
from groundplane.perfmodel.collectives import CollectiveKind, Links, collective_time_s
from groundplane.perfmodel.evidence import FloatArray, Numbers
from groundplane.perfmodel.serving_kernels import ServingKernels
from groundplane.perfmodel.serving_layout import KV_BYTES, ServingFormats, ServingLayout, layer_cache_bytes
from groundplane.spec.cluster import ChipSpec
from groundplane.spec.llm import AttentionSpec, LayerSpec, LlmSpec, MoeSpec

_ELEMENT_BYTES: Final = 2.0
_HIDDEN_PASSES: Final = 5.0
"""Reads and writes of the hidden state a layer does outside of products: two norms with their residuals."""

_OPERATORS: Final = 10.0
"""Kernels of a layer beside products, attention and collectives, as engines fuse them."""

_SHOT_LATENCY_S: Final = 4e-6
_SHOT_RANK_S: Final = 3e-7
"""An all-reduce by the engines' own kernels: 3 to 6 us for the smallest messages on 2 to 8 NVLink ranks
(tables of TensorRT-LLM and vLLM in aiconfigurator-core)."""

_SHOT_SHARE: Final = 0.45
"""Share of the link's rate at which those kernels move a message."""

_PCIE_RANK_S: Final = 3e-6
_PCIE_SHARE: Final = 0.33
"""The same over PCIe: 6, 13 and 23 us on 2, 4 and 8 L40S, and 10 of 32 GB/s (tables of SGLang there)."""


@dataclass
class Iteration:
    """Seconds of the chip's work in an iteration, by kind, and how many layers and kernels it took.

    `products` are dense linear layers, `experts` routed ones, `attend` reads the cache for one query a
    sequence, `prompt` attends over prompts, `passing` all other passes over memory, `reduce` the collectives
    of tensor parallelism, `exchange` those of expert parallelism, `head` the vocabulary. `floors` is what the
    kernels of products, experts and decoding take however little they do; `kernels` counts all others.
    """

    products: FloatArray
    experts: FloatArray
    attend: FloatArray
    prompt: FloatArray
    passing: FloatArray
    reduce: FloatArray
    exchange: FloatArray
    head: FloatArray
    floors: FloatArray
    kernels: FloatArray

    @staticmethod
    def nothing(shape: tuple[int, ...]) -> Iteration:
        """An iteration that takes no time."""
        return Iteration(*(np.zeros(shape) for _ in fields(Iteration)))

    def add(self, other: Iteration, times: float) -> None:
        """Adds `times` another."""
        for field in fields(Iteration):
            setattr(self, field.name, getattr(self, field.name) + times * getattr(other, field.name))

    def stages(self) -> dict[str, FloatArray]:
        """Seconds by kind."""
        return {
            field.name: getattr(self, field.name) for field in fields(Iteration) if field.name != "kernels"
        }


class IterationPricer:
    """Prices iterations of one model in one layout on one chip.

    Args:
        chip, links: what computes, and what joins it.
        model: what is served.
        layout, formats: how.
        engine: whose kernels run (an engine of the calibration); those of any that was timed by default.
    """

    def __init__(
        self,
        chip: ChipSpec,
        links: Links,
        model: LlmSpec,
        layout: ServingLayout,
        formats: ServingFormats,
        *,
        engine: str = "",
    ) -> None:
        self.chip, self.links, self.model = chip, links, model
        self.layout, self.formats = layout, formats
        self._kernels = ServingKernels(chip, engine)
        memory = kernels.memory_curve(chip)
        self._rate = memory.memory_bytes_per_s * memory.efficiency

    def price(
        self, decode: Numbers, context: Numbers, prefill: Numbers = 0.0, prompt_context: Numbers = 0.0,
        prompts: Numbers = 1.0, queries: Numbers = 1.0,
    ) -> Iteration:  # fmt: skip
        """The iteration; arrays broadcast.

        Args:
            decode: sequences that get one token each, on one data-parallel rank.
            context: tokens each of them has in the cache, on average.
            prefill: prompt tokens in this iteration, on one data-parallel rank.
            prompt_context: tokens of those prompts already in the cache, on average.
            prompts: sequences that the prompt tokens belong to.
            queries: tokens each decoding sequence is tried on: 1, and the drafts of speculative decoding.
        """
        arrays = np.broadcast_arrays(
            *(
                np.asarray(value, dtype=np.float64)
                for value in (decode, context, prefill, prompt_context, prompts, queries)
            )
        )
        batch = _Batch(*arrays)
        total = Iteration.nothing(batch.decode.shape)
        for layer, count in self.model.layer_groups():
            total.add(self._layer(layer, batch), float(count))
        self._add_head(total, batch)
        self._add_hops(total, batch)
        return total

    # Layers
    # ------------------------------------------------------------------------------------------------

    def _layer(self, layer: LayerSpec, batch: _Batch) -> Iteration:
        result = Iteration.nothing(batch.decode.shape)
        rows, hidden, tp = batch.rows, float(self.model.hidden), float(self.layout.tp)
        for outputs, inputs in self._projections(layer.attention):
            self._add_product(result, self.formats.projections, rows, outputs, inputs)
        if layer.mlp is not None:
            gates = 2.0 if layer.mlp.gated else 1.0
            self._add_block(result, rows, layer.mlp.ffn / tp, gates)
        if layer.moe is not None:
            self._add_experts(result, layer.moe, batch)
        self._add_attention(result, layer.attention, batch)
        result.passing += rows * hidden * (_HIDDEN_PASSES * _ELEMENT_BYTES / self._rate)
        result.kernels += _OPERATORS
        synchronised = 1.0 if layer.parallel else 2.0
        if layer.moe is not None and self.layout.attention_dp > 1:
            synchronised = 1.0
        result.reduce += synchronised * self._all_reduce(rows * hidden * _ELEMENT_BYTES, tp)
        return result

    def _projections(self, attention: AttentionSpec) -> list[tuple[float, float]]:
        """(outputs, inputs) of the linear layers around attention, as one chip computes them."""
        tp, hidden = float(self.layout.tp), float(self.model.hidden)
        queries, values = (
            attention.heads * attention.head_dim / tp,
            attention.heads * attention.value_dim / tp,
        )
        if not attention.kv_rank:
            kv_heads = max(attention.kv_heads / tp, 1.0)
            both = float(attention.head_dim + attention.value_dim)
            return [(queries + kv_heads * both, hidden), (hidden, values)]
        latent = float(attention.kv_rank + attention.rope_dim)
        # Queries are taken into the latent space and results out of it: two small products a head.
        absorbed = attention.heads * (attention.head_dim - attention.rope_dim + attention.value_dim) / tp
        shapes = [(absorbed, float(attention.kv_rank)), (hidden, values)]
        if attention.q_rank:
            return [*shapes, (latent + attention.q_rank, hidden), (queries, float(attention.q_rank))]
        return [*shapes, (latent + queries, hidden)]

    def _add_block(self, result: Iteration, rows: FloatArray, inner: float, gates: float) -> None:
        hidden = float(self.model.hidden)
        result.kernels += 1.0
        result.passing += rows * inner * ((gates + 1.0) * _ELEMENT_BYTES / self._rate)
        self._add_product(result, self.formats.linear, rows, inner * gates, hidden)
        self._add_product(result, self.formats.linear, rows, hidden, inner)

    def _add_experts(self, result: Iteration, moe: MoeSpec, batch: _Batch) -> None:
        layout, hidden = self.layout, float(self.model.hidden)
        curve = self._kernels.experts(self.formats.experts)
        seconds = curve.time_s(
            self.chip, self.formats.experts, batch.rows * layout.attention_dp, hidden,
            moe.expert_ffn / layout.expert_tp, float(moe.top_k), float(moe.experts), float(layout.expert_ep),
        )  # fmt: skip
        result.experts += seconds - curve.floor_s
        result.floors += curve.floor_s
        self._add_product(result, "bf16", batch.rows, float(moe.experts), hidden)
        result.kernels += 2.0
        if moe.shared_ffn:
            self._add_block(result, batch.rows, moe.shared_ffn / layout.tp, 2.0)
        if layout.attention_dp > 1:
            self._add_exchange(result, moe, batch)

    def _add_exchange(self, result: Iteration, moe: MoeSpec, batch: _Batch) -> None:
        """Tokens go to their experts' ranks and come back; without expert parallelism, all go everywhere."""
        ranks = self.layout.tp * self.layout.attention_dp
        inside = min(ranks, self.links.chips_per_domain)
        domains = -(-ranks // inside)
        size = batch.rows / self.layout.tp * self.model.hidden
        if self.layout.expert_ep > 1:
            widths: dict[CollectiveKind, float] = {"moe_dispatch": 1.0, "moe_combine": _ELEMENT_BYTES}
            for kind, width in widths.items():
                result.exchange += collective_time_s(
                    self.links, kind, size * width, inside, domains, None, moe.top_k
                )
        else:
            whole = size * ranks * _ELEMENT_BYTES
            result.exchange += collective_time_s(self.links, "all_gather", whole, inside, domains)
            result.exchange += collective_time_s(self.links, "reduce_scatter", whole, inside, domains)
        result.kernels += 4.0

    def _add_product(
        self, result: Iteration, weights: str, rows: FloatArray, outputs: float, inputs: float
    ) -> None:
        curve = self._kernels.product(weights)
        result.products += curve.time_s(self.chip, weights, rows, outputs, inputs) - curve.floor_s
        result.floors += curve.floor_s

    # Attention
    # -----------------------------------------------------------------------------------------------

    def _add_attention(self, result: Iteration, attention: AttentionSpec, batch: _Batch) -> None:
        window = float(attention.window or np.inf)
        heads = max(attention.heads / self.layout.tp, 1.0)
        seen = np.minimum(batch.context, window)
        stored = layer_cache_bytes(attention, self.layout, self.formats)
        latent = bool(attention.kv_rank)
        kv_heads = 1.0 if latent else max(attention.kv_heads / self.layout.tp, 1.0)
        width = (
            (2.0 * attention.kv_rank + attention.rope_dim)
            if latent
            else (float(attention.head_dim + attention.value_dim))
        )
        curve = self._kernels.decode("fp8" if KV_BYTES[self.formats.cache] == 1.0 else "bf16", latent=latent)
        alone = curve.time_s(
            self.chip, batch.decode, seen, heads, kv_heads, stored / kv_heads, width, batch.queries
        )
        result.attend += np.where(batch.decode > 0, alone - curve.floor_s, 0.0)
        result.floors += np.where(batch.decode > 0, curve.floor_s, 0.0)
        if latent:
            kv_heads = heads
        queries = batch.prefill / np.maximum(batch.prompts, 1.0)
        keys = np.minimum(queries + batch.prompt_context, np.maximum(window, queries / 2.0))
        fused = kernels.attention_curve(self.chip, "bf16")
        whole = fused.time_s(
            np.maximum(batch.prompts, 1.0), np.maximum(queries, 1.0), np.maximum(keys, 1.0), heads, kv_heads,
            attention.head_dim, value_dim=attention.value_dim, causal=True, cache_write=True,
        )  # fmt: skip
        inside = window < float("inf")
        if inside:
            near = fused.time_s(
                np.maximum(batch.prompts, 1.0), np.maximum(queries, 1.0), np.minimum(keys, window), heads,
                kv_heads, attention.head_dim, value_dim=attention.value_dim, causal=False, cache_write=True,
            )  # fmt: skip
            whole = np.minimum(whole, near)
        result.prompt += np.where(batch.prefill > 0, whole, 0.0)
        written = batch.rows * stored / KV_BYTES[self.formats.cache] * (KV_BYTES[self.formats.cache] + 2.0)
        result.passing += written / self._rate
        result.kernels += 2.0

    # Ends and links
    # -----------------------------------------------------------------------------------------------

    def _add_head(self, total: Iteration, batch: _Batch) -> None:
        vocab = np.ceil(self.model.vocab / self.layout.tp)
        rows = np.maximum(batch.decode * batch.queries + np.where(batch.prefill > 0, batch.prompts, 0.0), 1.0)
        curve = self._kernels.product("bf16")
        total.head += curve.time_s(self.chip, "bf16", rows, vocab, float(self.model.hidden))
        # Logits are gathered, turned into probabilities and drawn from, in float32.
        total.head += rows * self.model.vocab * (4.0 * 4.0 / self._rate)
        total.kernels += 6.0

    def _add_hops(self, total: Iteration, batch: _Batch) -> None:
        if self.layout.pp > 1:
            size = batch.rows * self.model.hidden * _ELEMENT_BYTES
            hop = collective_time_s(self.links, "send_recv", size, 2)
            total.reduce += (self.layout.pp - 1) * hop

    def _all_reduce(self, message_bytes: FloatArray, ranks: float) -> FloatArray:
        """One all-reduce among the tensor ranks: the engine's own kernel, or the library's if quicker."""
        if ranks <= 1:
            return np.zeros_like(message_bytes)
        inside = min(ranks, float(self.links.chips_per_domain))
        domains = np.ceil(ranks / inside)
        library = collective_time_s(self.links, "all_reduce", message_bytes, inside, domains)
        if domains > 1:
            return library
        moved = 2.0 * (ranks - 1.0) / ranks * message_bytes
        if self.chip.scaleup_bytes_per_s is None:
            return np.asarray(
                ranks * _PCIE_RANK_S + moved / (self.links.scaleup.bytes_per_s * _PCIE_SHARE),
                dtype=np.float64,
            )
        own = _SHOT_LATENCY_S + ranks * _SHOT_RANK_S + moved / (self.links.scaleup.bytes_per_s * _SHOT_SHARE)
        return np.asarray(np.minimum(own, library), dtype=np.float64)


@dataclass(frozen=True)
class _Batch:
    """What one data-parallel rank computes in an iteration; see `IterationPricer.price`."""

    decode: FloatArray
    context: FloatArray
    prefill: FloatArray
    prompt_context: FloatArray
    prompts: FloatArray
    queries: FloatArray

    @property
    def rows(self) -> FloatArray:
        """Rows of every product."""
        return self.decode * self.queries + self.prefill
