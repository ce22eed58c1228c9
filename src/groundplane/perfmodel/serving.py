"""One iteration of a serving engine, operator by operator: decode, prefill, or both in one batch.

An iteration takes, on each data-parallel rank, one token of each of `decode` sequences and `prefill` tokens
of prompts. Products see all of them as rows; attention is priced apart for both. What host and engine add is
the profile's (`serving_profiles`); this file prices the chip's work and the links'. Shapes are those of the
busiest chip. Knows nothing of queues or arrivals.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel import kernels
from groundplane.perfmodel.collectives import CollectiveKind, Links, collective_time_s
from groundplane.perfmodel.curves import MatmulCurve, smooth_max
from groundplane.perfmodel.evidence import FloatArray, Numbers
from groundplane.perfmodel.serving_layout import (
    KV_BYTES,
    WEIGHT_BYTES,
    ServingFormats,
    ServingLayout,
    compute_format,
    layer_cache_bytes,
)
from groundplane.spec.cluster import ChipSpec
from groundplane.spec.llm import AttentionSpec, LayerSpec, LlmSpec, MoeSpec

_ELEMENT_BYTES: Final = 2.0
_HIDDEN_PASSES: Final = 5.0
"""Reads and writes of the hidden state a layer does outside of products: two norms with their residuals."""

_OPERATORS: Final = 10.0
"""Kernels of a layer beside products, attention and collectives, as engines fuse them."""

_LEAN_ROWS: Final = 32.0
_FULL_ROWS: Final = 256.0
"""Rows up to which a product is priced by its bytes alone, and from which by the tables' curve."""

_LATENT_SHARE: Final = 0.5
"""Share of peak that products with a shared latent reach at one query a sequence."""

_SHOT_LATENCY_S: Final = 4e-6
_SHOT_RANK_S: Final = 3e-7
"""An all-reduce by the engines' own kernels: 3 to 6 us for the smallest messages on 2 to 8 NVLink ranks
(tables of TensorRT-LLM and vLLM in aiconfigurator-core)."""

_SHOT_SHARE: Final = 0.45
"""Share of the link's rate at which those kernels move a message."""


@dataclass
class Iteration:
    """Seconds of the chip's work in an iteration, by kind, and how many layers and kernels it took.

    `products` are dense linear layers, `experts` routed ones (`narrow` in four bits, `widened` where the chip
    has no units for the weights' format), `attend` reads the cache for one query a
    sequence, `prompt` attends over prompts, `passing` all other passes over memory, `reduce` the collectives
    of tensor parallelism, `exchange` those of expert parallelism, `head` the vocabulary.
    """

    products: FloatArray
    experts: FloatArray
    narrow: FloatArray
    widened: FloatArray
    attend: FloatArray
    prompt: FloatArray
    passing: FloatArray
    reduce: FloatArray
    exchange: FloatArray
    head: FloatArray
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
        skew: how much more than the mean the busiest expert rank receives, where there are several.
    """

    def __init__(
        self,
        chip: ChipSpec,
        links: Links,
        model: LlmSpec,
        layout: ServingLayout,
        formats: ServingFormats,
        *,
        skew: float = 0.2,
    ) -> None:
        self.chip, self.links, self.model = chip, links, model
        self.layout, self.formats, self.skew = layout, formats, skew
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
            result.products += self._product(self.formats.projections, rows, outputs, inputs)
            result.kernels += 1.0
        if layer.mlp is not None:
            gates = 2.0 if layer.mlp.gated else 1.0
            result.products += self._block(rows, layer.mlp.ffn / tp, gates, result)
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

    def _block(self, rows: FloatArray, inner: float, gates: float, result: Iteration) -> FloatArray:
        hidden = float(self.model.hidden)
        result.kernels += 3.0
        result.passing += rows * inner * ((gates + 1.0) * _ELEMENT_BYTES / self._rate)
        first = self._product(self.formats.linear, rows, inner * gates, hidden)
        return first + self._product(self.formats.linear, rows, hidden, inner)

    def _add_experts(self, result: Iteration, moe: MoeSpec, batch: _Batch) -> None:
        layout, hidden = self.layout, float(self.model.hidden)
        gates = 2.0 if moe.gated else 1.0
        tokens = batch.rows * layout.attention_dp
        active = active_experts(tokens, moe)
        peak = 1.0 + self.skew * (1.0 - 1.0 / layout.expert_ep)
        local = np.maximum(np.minimum(active / layout.expert_ep * peak, moe.experts / layout.expert_ep), 1.0)
        load = tokens * moe.top_k / layout.expert_ep * peak
        rows = np.maximum(load / local, 1.0)
        inner = moe.expert_ffn / layout.expert_tp
        seconds = self._product(self.formats.experts, rows, inner * gates, hidden, local)
        seconds = seconds + self._product(self.formats.experts, rows, hidden, inner, local)
        if compute_format(self.chip, self.formats.experts)[1] is not None:
            result.widened += seconds
        elif WEIGHT_BYTES[self.formats.experts] < 1.0:
            result.narrow += seconds
        else:
            result.experts += seconds
        # Rows are gathered by expert, gated, and added up again.
        moved = load * (3.0 * hidden + (gates + 1.0) * inner) * _ELEMENT_BYTES
        result.passing += moved / self._rate
        result.products += kernels.matmul_time_s(self.chip, "bf16", batch.rows, moe.experts, hidden)
        result.kernels += 7.0
        if moe.shared_ffn:
            result.products += self._block(batch.rows, moe.shared_ffn / layout.tp, 2.0, result)
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

    def _product(
        self, weights: str, rows: Numbers, outputs: Numbers, inputs: Numbers, batch: Numbers = 1.0
    ) -> FloatArray:
        """Products; those with few rows are bound by reading weights, whatever a table of many rows says.

        The tables begin at 64 rows: below 32 the roofline holds alone, from 256 the table's curve, between
        them the geometric mean shifts from one to the other.
        """
        name, weight_bytes = compute_format(self.chip, weights)
        curve: MatmulCurve = kernels.matmul_curve(self.chip, name)
        if weight_bytes is not None:
            # Widened as they are read: weights are what a product at few rows moves.
            curve = msgspec.structs.replace(curve, input_bytes=weight_bytes, correction=None)
        m, n, k, count = (np.asarray(value, dtype=np.float64) for value in (rows, outputs, inputs, batch))
        moved = count * (n * k * WEIGHT_BYTES[weights] + m * (n + k) * _ELEMENT_BYTES)
        flops_s = 2.0 * count * m * n * k / (curve.peak_flops_per_s * curve.efficiency)
        lean = smooth_max(flops_s, moved / self._rate, 4.0)
        full = curve.time_s(m, n, k, count) - curve.floor_s
        share = np.clip(np.log2(m / _LEAN_ROWS) / np.log2(_FULL_ROWS / _LEAN_ROWS), 0.0, 1.0)
        return np.asarray(lean ** (1.0 - share) * full**share, dtype=np.float64)

    # Attention
    # -----------------------------------------------------------------------------------------------

    def _add_attention(self, result: Iteration, attention: AttentionSpec, batch: _Batch) -> None:
        window = float(attention.window or np.inf)
        heads = max(attention.heads / self.layout.tp, 1.0)
        seen = np.minimum(batch.context, window)
        stored = layer_cache_bytes(attention, self.layout, self.formats)
        # One query a sequence: reading the cache decides, and the products of all heads on a latent.
        width = 2.0 * attention.kv_rank + attention.rope_dim if attention.kv_rank else 0.0
        flops_s = (
            batch.decode
            * batch.queries
            * seen
            * 2.0
            * heads
            * width
            / (self.chip.peak("bf16") * _LATENT_SHARE)
        )
        result.attend += smooth_max(batch.decode * seen * stored / self._rate, flops_s, 4.0)
        kv_heads = heads if attention.kv_rank else max(attention.kv_heads / self.layout.tp, 1.0)
        queries = batch.prefill / np.maximum(batch.prompts, 1.0)
        keys = np.minimum(queries + batch.prompt_context, np.maximum(window, queries / 2.0))
        curve = kernels.attention_curve(self.chip, "bf16")
        whole = curve.time_s(
            np.maximum(batch.prompts, 1.0), np.maximum(queries, 1.0), np.maximum(keys, 1.0), heads, kv_heads,
            attention.head_dim, value_dim=attention.value_dim, causal=True, cache_write=True,
        )  # fmt: skip
        inside = window < float("inf")
        if inside:
            near = curve.time_s(
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
        total.head += self._product("bf16", rows, vocab, float(self.model.hidden))
        # Logits are gathered, turned into probabilities and drawn from, in float32.
        total.head += rows * self.model.vocab * (4.0 * 4.0 / self._rate)
        total.kernels += 8.0

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


def active_experts(tokens: FloatArray, moe: MoeSpec) -> FloatArray:
    """Experts of a layer that get at least one of `tokens`, drawn evenly: E (1 - (1 - k/E)^t)."""
    return np.asarray(moe.experts * (1.0 - (1.0 - moe.top_k / moe.experts) ** tokens), dtype=np.float64)
