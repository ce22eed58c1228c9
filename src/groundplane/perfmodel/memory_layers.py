"""Weights and activations of one layer on one rank, operator by operator, for many layouts at once.

What an operator needs in its backward pass is kept: inputs of norms and products, queries, keys, values and
output of attention, inputs of activations, tokens sent to experts. Counts follow Korthikanti et al. 2022,
section 4, written out for gated blocks, grouped and latent attention, and experts. Knows one layer; nothing
of pipelines, states or loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.strategy import RECOMPUTE, Layouts
from groundplane.spec.llm import AttentionSpec, LayerSpec, LlmSpec, MoeSpec

SCORE_BYTES: Final = 5.0
"""Of one attention score where attention is not fused: softmax output 2, dropout mask 1, dropped output 2
(Korthikanti et al. 2022, equation 1)."""

_SELECTIVE, _FULL, _BLOCK = (float(RECOMPUTE.index(name)) for name in ("selective", "full", "block"))


@dataclass(frozen=True)
class LayerMemory:
    """One layer on one rank, shape (N,) each.

    Attributes:
        dense: parameters of the rank outside routed experts.
        experts: parameters of the routed experts that the rank holds.
        kept: bytes of one micro-batch kept from the forward to the backward pass.
        whole: bytes of one micro-batch kept without any recompute: what a layer that runs backward has live.
        buffers: bytes that communication of the layer needs while it runs (experts' exchange, context ring).
    """

    dense: FloatArray
    experts: FloatArray
    kept: FloatArray
    whole: FloatArray
    buffers: FloatArray


def layer_memory(
    model: LlmSpec,
    layer: LayerSpec,
    seq: float,
    layouts: Layouts,
    profile: MemoryProfile,
    activation_bytes: float = 2.0,
    expert_skew: float = 1.0,
) -> LayerMemory:
    """What one layer takes.

    Args:
        model, layer: whose.
        seq: tokens of a sequence.
        layouts: N of them.
        profile: the software stack.
        activation_bytes: of one activation.
        expert_skew: tokens of the rank with most tokens against the mean, with experts (1: balanced).
    """
    rank = _Rank(model, seq, layouts, profile, activation_bytes, expert_skew)
    dense, experts = rank.parameters(layer)
    core = rank.core(layer.attention)
    whole = rank.hidden(layer) + rank.attention(layer.attention) + core + rank.feed_forward(layer)
    boundary = rank.boundary()
    less = whole - core if profile.selective == "core" else rank.every_second_product(layer)
    kept = np.select(
        [layouts.recompute == _SELECTIVE, layouts.recompute == _FULL, layouts.recompute == _BLOCK],
        [
            less,
            boundary,
            layouts.recompute_share * boundary + (1.0 - layouts.recompute_share) * whole,
        ],
        whole,
    )
    return LayerMemory(dense, experts, kept, whole, rank.buffers(layer))


class _Rank:
    """Token counts and widths of one rank."""

    def __init__(
        self,
        model: LlmSpec,
        seq: float,
        layouts: Layouts,
        profile: MemoryProfile,
        element: float,
        skew: float,
    ) -> None:
        self.model, self.seq, self.layouts, self.profile = model, seq, layouts, profile
        self.element, self.skew = element, skew
        self.tokens = layouts.micro_batch * seq / layouts.cp
        """Tokens of a micro-batch between the collectives of tensor parallelism."""
        self.own_tokens = self.tokens / np.where(layouts.sequence_parallel > 0, layouts.tp, 1.0)
        """Tokens whose hidden state the rank holds outside of them."""

    def parameters(self, layer: LayerSpec) -> tuple[FloatArray, FloatArray]:
        """Parameters: products are split over tensor ranks; norms, latents and routers are not."""
        hidden, layouts = self.model.hidden, self.layouts
        attention = layer.attention
        whole = layer.num_norms * self.model.norm.parameters(hidden) + attention.norm_parameters()
        split = attention.projection_parameters(hidden) + attention.bias_parameters(hidden)
        if attention.kv_rank:
            latent = hidden * (attention.kv_rank + attention.rope_dim + attention.q_rank)
            split, whole = split - latent, whole + latent
        experts = np.zeros(len(layouts))
        if layer.mlp is not None:
            split += layer.mlp.parameters(hidden)
        if layer.moe is not None:
            split += layer.moe.shared_parameters(hidden)
            whole += layer.moe.router_parameters(hidden)
            routed = float(layer.moe.experts * layer.moe.expert_parameters(hidden))
            experts = routed / (layouts.ep * layouts.etp)
        return split / layouts.tp + whole, experts

    def boundary(self) -> FloatArray:
        """The layer's input."""
        return self.own_tokens * self.model.hidden * self.element

    def hidden(self, layer: LayerSpec) -> FloatArray:
        """Inputs of all norms, and their outputs where products read them."""
        products = 1 if layer.parallel and layer.num_norms == 1 else 2
        return (layer.num_norms + products) * self.boundary()

    def attention(self, attention: AttentionSpec) -> FloatArray:
        """Queries, keys, values, output, and the softmax statistics of fused attention."""
        heads = attention.heads / self.layouts.tp
        wide = heads * (attention.head_dim + attention.value_dim)
        if attention.kv_rank:
            wide = wide + heads * (attention.head_dim + attention.value_dim)
        else:
            kv_heads = np.maximum(attention.kv_heads / self.layouts.tp, 1.0)
            wide = wide + kv_heads * (attention.head_dim + attention.value_dim)
        latent = 2 * (attention.q_rank + attention.kv_rank) + (attention.rope_dim if attention.kv_rank else 0)
        statistics = self.tokens * heads * 4.0
        return self.element * (self.tokens * wide + self.own_tokens * latent) + statistics

    def core(self, attention: AttentionSpec) -> FloatArray:
        """Scores, where attention is not fused."""
        if self.profile.fused_attention:
            return np.zeros(len(self.layouts))
        return self.tokens * attention.heads / self.layouts.tp * self.seq * SCORE_BYTES

    def feed_forward(self, layer: LayerSpec) -> FloatArray:
        """Inputs of the activation and of the product after it; in layers with experts also routed tokens."""
        kept = np.zeros(len(self.layouts))
        if layer.mlp is not None:
            kept += self.tokens * self._inner(layer.mlp.ffn, layer.mlp.gated) / self.layouts.tp
        if layer.moe is not None:
            kept += self._experts(layer.moe)
        return kept

    def every_second_product(self, layer: LayerSpec) -> FloatArray:
        """Selective recompute by operator: kept are the layer's input, the output of every second product and
        of attention (torchtitan's default policy)."""
        attention = layer.attention
        heads = attention.heads / self.layouts.tp
        kv_heads = np.maximum(attention.kv_heads / self.layouts.tp, 1.0)
        wide = heads * (attention.head_dim + attention.value_dim) + kv_heads * attention.value_dim
        kept: FloatArray = (
            2.0 * self.boundary() + self.element * self.tokens * wide + self.tokens * heads * 4.0
        )
        if layer.mlp is not None:
            kept += self.tokens * self.element * layer.mlp.ffn / self.layouts.tp
        if layer.moe is not None:
            kept += self._experts(layer.moe) / 2.0
        return kept

    def buffers(self, layer: LayerSpec) -> FloatArray:
        """The hidden state and its gradient as tensor ranks gather them, keys and values that travel round a
        context ring with their gradients, and tokens on their way to experts and back."""
        layouts, attention = self.layouts, layer.attention
        gathered = (layouts.tp > 1) & (layouts.sequence_parallel > 0)
        hidden = np.where(gathered, 2.0, 0.0) * self.tokens * self.model.hidden * self.element
        width = np.maximum(attention.kv_heads / layouts.tp, 1.0) * (attention.head_dim + attention.value_dim)
        ring = np.where(layouts.cp > 1, 2.0, 0.0) * self.tokens * width * self.element
        passing: FloatArray = hidden + ring
        if layer.moe is not None:
            passing = passing + 2.0 * self._routed(layer.moe) * self.model.hidden * self.element
        return passing

    def _inner(self, ffn: float, gated: bool) -> float:
        """Bytes of one token inside a feed-forward block."""
        if not gated:
            return 2.0 * ffn * self.element
        return (3.0 if self.profile.fused_activation else 4.0) * ffn * self.element

    def _routed(self, moe: MoeSpec) -> FloatArray:
        """Tokens that the experts of a rank compute, each counted once for every expert that it goes to.

        Without a second tensor split inside experts the tensor ranks share a micro-batch's tokens among them.
        """
        tokens = self.tokens / self.layouts.tp * self.layouts.etp
        skew = np.where(self.layouts.ep > 1, self.skew, 1.0)
        return tokens * moe.top_k * skew

    def _experts(self, moe: MoeSpec) -> FloatArray:
        """Routed tokens as the experts read them and inside the experts; router scores; shared experts."""
        routed = self._routed(moe)
        inner = routed * self._inner(moe.expert_ffn, moe.gated) / self.layouts.etp
        kept = routed * self.model.hidden * self.element + inner
        kept = kept + self.own_tokens * moe.experts * 4.0
        if moe.shared_ffn:
            kept = kept + self.tokens * self._inner(moe.shared_ffn, moe.gated) / self.layouts.tp
        return kept
