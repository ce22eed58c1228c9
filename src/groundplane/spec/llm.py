"""What a language model is made of, whatever its config file calls it: layers, sizes, parameters, FLOPs.

An `LlmSpec` is made from a Hugging Face `config.json` by `groundplane.spec.huggingface`; this file only says
what is in one and counts it. Counts are exact: tests hold them equal to those of `transformers`. Knows
nothing of parallel layouts, number formats or hardware.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec
from msgspec import Struct

from groundplane.spec.errors import InputError

PositionKind = Literal["rope", "learned", "alibi", "none"]


class NormSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The normalisation used through the model; `bias` is the second vector of a LayerNorm."""

    kind: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    bias: bool = False

    def parameters(self, width: int) -> int:
        """Parameters of one norm over vectors of `width`."""
        return width * (2 if self.bias else 1)


class AttentionSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One attention block.

    `head_dim` is the width of a query or key head, `value_dim` of a value head. With multi-head latent
    attention (`kv_rank` > 0) keys and values are made from a latent of `kv_rank` plus `rope_dim` shared
    rotary dimensions, and `head_dim` includes `rope_dim`; `q_rank` > 0 factors the queries too.
    `window` limits attention to the last so many tokens (`chunked`: to the chunk of that length instead).
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    chunked: bool = False
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    latent_bias: bool = False
    qk_norm_parameters: int = 0
    sinks: bool = False
    softcap: bool = False

    @property
    def kind(self) -> Literal["mha", "gqa", "mqa", "mla"]:
        """The usual name of the arrangement of heads."""
        if self.kv_rank:
            return "mla"
        if self.kv_heads == self.heads:
            return "mha"
        return "mqa" if self.kv_heads == 1 else "gqa"

    def projection_parameters(self, hidden: int) -> int:
        """Parameters of the matrices, without biases and norms."""
        output = self.heads * self.value_dim * hidden
        if not self.kv_rank:
            return (
                hidden * (self.heads * self.head_dim + self.kv_heads * (self.head_dim + self.value_dim))
                + output
            )
        queries = self.heads * self.head_dim
        query_matrices = self.q_rank * (hidden + queries) if self.q_rank else hidden * queries
        latent = hidden * (self.kv_rank + self.rope_dim)
        keys_and_values = self.kv_rank * self.heads * (self.head_dim - self.rope_dim + self.value_dim)
        return query_matrices + latent + keys_and_values + output

    def bias_parameters(self, hidden: int) -> int:
        """Parameters of all biases and attention sinks."""
        biases = hidden if self.output_bias else 0
        if self.qkv_bias:
            biases += self.heads * self.head_dim + self.kv_heads * (self.head_dim + self.value_dim)
        if self.latent_bias:
            biases += self.q_rank + self.kv_rank + self.rope_dim
        return biases + (self.heads if self.sinks else 0)

    def norm_parameters(self) -> int:
        """Parameters of the norms inside the block (of queries, keys or latents)."""
        return self.qk_norm_parameters + self.q_rank + self.kv_rank

    def parameters(self, hidden: int) -> int:
        """All parameters of the block, norms inside it included."""
        return self.projection_parameters(hidden) + self.bias_parameters(hidden) + self.norm_parameters()

    def kv_values_per_token(self) -> int:
        """Numbers kept in the key-value cache for one token by this layer."""
        if self.kv_rank:
            return self.kv_rank + self.rope_dim
        return self.kv_heads * (self.head_dim + self.value_dim)

    def mean_context(self, seq: int, *, causal: bool = True) -> float:
        """Keys that a query sees, averaged over the positions of a sequence of `seq` tokens."""
        if not causal:
            return float(seq if self.window is None else min(seq, self.window))
        if self.window is None or self.window >= seq:
            return (seq + 1) / 2
        if self.chunked:
            full, rest = divmod(seq, self.window)
            return (full * self.window * (self.window + 1) / 2 + rest * (rest + 1) / 2) / seq
        return (self.window * (self.window + 1) / 2 + (seq - self.window) * self.window) / seq

    def score_flops_per_token(self, seq: int, *, causal: bool = True) -> float:
        """FLOPs of scores and weighted values for one token: 2 a multiply-add, masked work not counted."""
        return 2.0 * self.heads * (self.head_dim + self.value_dim) * self.mean_context(seq, causal=causal)


class MlpSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A dense feed-forward block; gated ones have two matrices in and one out."""

    ffn: int
    gated: bool = True
    activation: str = "silu"
    bias: bool = False

    def matrix_parameters(self, hidden: int) -> int:
        """Parameters of the matrices."""
        return (3 if self.gated else 2) * hidden * self.ffn

    def parameters(self, hidden: int) -> int:
        """All parameters of the block."""
        biases = (2 if self.gated else 1) * self.ffn + hidden if self.bias else 0
        return self.matrix_parameters(hidden) + biases


class MoeSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A mixture of experts: `top_k` of `experts` run for each token, and the shared ones always.

    `shared_ffn` is the width of all shared experts together (0 for none). Where experts form `groups`, a
    token only uses experts of its `top_groups` best groups, which bounds how many nodes it is sent to.
    """

    experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int = 0
    shared_gate: bool = False
    gated: bool = True
    activation: str = "silu"
    expert_bias: bool = False
    router_bias: bool = False
    groups: int = 1
    top_groups: int = 1

    def expert_parameters(self, hidden: int) -> int:
        """Parameters of one routed expert."""
        return MlpSpec(self.expert_ffn, self.gated, self.activation, self.expert_bias).parameters(hidden)

    def shared_parameters(self, hidden: int) -> int:
        """Parameters of the shared experts and their gate."""
        if not self.shared_ffn:
            return 0
        return MlpSpec(self.shared_ffn, self.gated).parameters(hidden) + (hidden if self.shared_gate else 0)

    def router_parameters(self, hidden: int) -> int:
        """Parameters of the router."""
        return hidden * self.experts + (self.experts if self.router_bias else 0)


class LayerSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One decoder layer: attention, then a dense block or a mixture of experts.

    `num_norms` counts the norms over the hidden width. `parallel` layers feed both blocks from the same
    input and add them together, so that tensor parallelism synchronises once and not twice.
    """

    attention: AttentionSpec
    mlp: MlpSpec | None = None
    moe: MoeSpec | None = None
    num_norms: int = 2
    parallel: bool = False


class ParameterCount(Struct, frozen=True):
    """Exact parameters by component; `active` are those that one token passes through."""

    embedding: int
    position: int
    attention: int
    mlp: int
    experts: int
    shared_experts: int
    router: int
    norms: int
    head: int
    active: int

    @property
    def total(self) -> int:
        """All parameters; a head tied to the embedding counts once."""
        return (
            self.embedding + self.position + self.attention + self.mlp + self.experts
            + self.shared_experts + self.router + self.norms + self.head
        )  # fmt: skip


class FlopCount(Struct, frozen=True):
    """Forward FLOPs of one token by component, 2 a multiply-add."""

    attention_matrices: float
    attention_scores: float
    mlp: float
    experts: float
    router: float
    head: float

    @property
    def total(self) -> float:
        """All of them."""
        return (
            self.attention_matrices
            + self.attention_scores
            + self.mlp
            + self.experts
            + self.router
            + self.head
        )


class LlmSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One decoder-only language model, layer by layer.

    `layers` has one entry a layer; equal layers are equal structs (see `layer_groups`). `position_rows` are
    rows of a learned position table. `embedding_dim` differs from `hidden` where a projection lies between.
    `unread` names fields of the config that were neither used nor known to be harmless; `left_out` names
    parts of the checkpoint that are not described (a vision tower, multi-token prediction).
    """

    name: str
    architecture: str
    hidden: int
    vocab: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec = NormSpec()
    max_positions: int | None = None
    position: PositionKind = "rope"
    position_rows: int = 0
    tied_embeddings: bool = False
    head_bias: bool = False
    embedding_dim: int = 0
    embedding_norm: bool = False
    final_norm: bool = True
    dtype: str = "bf16"
    unread: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(layer.moe is not None for layer in self.layers)

    def layer_groups(self) -> list[tuple[LayerSpec, int]]:
        """Each different layer with how often it occurs, in order of first occurrence."""
        return list(Counter(self.layers).items())

    def parameters(self) -> ParameterCount:
        """Exact counts, as `transformers` would count the causal language model."""
        hidden = self.hidden
        attention = mlp = experts = shared = router = norms = active = 0
        for layer, count in self.layer_groups():
            attention += count * layer.attention.parameters(hidden)
            norms += count * layer.num_norms * self.norm.parameters(hidden)
            if layer.mlp is not None:
                mlp += count * layer.mlp.parameters(hidden)
            if layer.moe is not None:
                one = layer.moe.expert_parameters(hidden)
                experts += count * layer.moe.experts * one
                active += count * layer.moe.top_k * one
                shared += count * layer.moe.shared_parameters(hidden)
                router += count * layer.moe.router_parameters(hidden)
        width = self.embedding_dim or hidden
        embedding = self.vocab * width + (2 * width * hidden if width != hidden else 0)
        norms += self.norm.parameters(hidden) * (int(self.embedding_norm) + int(self.final_norm))
        position = self.position_rows * hidden
        head = (0 if self.tied_embeddings else self.vocab * width) + (self.vocab if self.head_bias else 0)
        active += embedding + position + attention + mlp + shared + router + norms + head
        return ParameterCount(
            embedding, position, attention, mlp, experts, shared, router, norms, head, active
        )

    def forward_flops_per_token(self, seq: int, *, causal: bool = True) -> FlopCount:
        """Forward FLOPs of one token, averaged over a sequence of `seq` tokens.

        Matrix products only. Without `causal` every query sees all `seq` keys, as the literature's
        12 l h s term has it; with it masked scores are not counted.
        """
        hidden = self.hidden
        matrices = scores = mlp = experts = router = 0.0
        for layer, count in self.layer_groups():
            matrices += 2.0 * count * layer.attention.projection_parameters(hidden)
            scores += count * layer.attention.score_flops_per_token(seq, causal=causal)
            if layer.mlp is not None:
                mlp += 2.0 * count * layer.mlp.matrix_parameters(hidden)
            if layer.moe is not None:
                width = layer.moe.top_k * layer.moe.expert_ffn + layer.moe.shared_ffn
                experts += 2.0 * count * (3 if layer.moe.gated else 2) * hidden * width
                router += 2.0 * count * hidden * layer.moe.experts
        width = self.embedding_dim or hidden
        head = 2.0 * self.vocab * width + (4.0 * width * hidden if width != hidden else 0.0)
        return FlopCount(matrices, scores, mlp, experts, router, head)

    def kv_values_per_token(self) -> int:
        """Numbers that the key-value cache keeps for one token, all layers, windows not considered."""
        return sum(count * layer.attention.kv_values_per_token() for layer, count in self.layer_groups())

    def with_padded_vocab(self, multiple: int) -> LlmSpec:
        """The same model with the vocabulary rounded up to a multiple, as trainers pad it.

        Raises:
            InputError: `multiple` is not positive.
        """
        if multiple < 1:
            raise InputError("must be a positive integer", field="vocab multiple", value=multiple)
        return msgspec.structs.replace(self, vocab=-(-self.vocab // multiple) * multiple)
