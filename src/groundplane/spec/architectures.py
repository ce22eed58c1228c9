"""How each architecture of Hugging Face `transformers` becomes layers: the gated (Llama-like) families.

One function a family, from a `ConfigReader` to an `LlmSpec`. Which fields matter and what their absence
means was learned from the published configs; the test suite compares every one with `transformers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from groundplane.spec.config_reader import ConfigReader
from groundplane.spec.llm import AttentionSpec, LayerSpec, LlmSpec, MlpSpec, MoeSpec, NormSpec

Builder = Callable[[ConfigReader], LlmSpec]


def plain_attention(read: ConfigReader, hidden: int, **options: Any) -> AttentionSpec:
    """Multi-head or grouped attention from the usual field names."""
    heads = read.integer("num_attention_heads")
    kv_heads = read.integer("num_key_value_heads", default=heads)
    read.require(heads % kv_heads == 0, f"must divide num_attention_heads ({heads})", "num_key_value_heads")
    if not read.has("head_dim"):
        read.require(
            hidden % heads == 0, f"must be divisible by num_attention_heads ({heads})", "hidden_size"
        )
    head_dim = read.integer("head_dim", default=max(1, hidden // heads))
    return AttentionSpec(heads, kv_heads, head_dim, head_dim, **options)


def assemble(
    read: ConfigReader, layers: Iterable[LayerSpec], *, tied: bool = False, **options: Any
) -> LlmSpec:
    """The model around its layers, from the usual field names."""
    return LlmSpec(
        name="",
        architecture="",
        hidden=read.integer("hidden_size"),
        vocab=read.integer("vocab_size"),
        layers=tuple(layers),
        max_positions=read.optional_integer("max_position_embeddings"),
        tied_embeddings=read.flag("tie_word_embeddings", default=tied),
        **options,
    )


def windows(read: ConfigReader, count: int, *, is_local: Callable[[int], bool]) -> list[int | None]:
    """The attention window of each layer: from `layer_types` where given, else where `is_local` says so.

    Raises:
        InputError: `layer_types` has the wrong length or an unknown kind, or the window is missing.
    """
    kinds = read.listed("layer_types")
    window = read.optional_integer("sliding_window")
    if kinds is None:
        return [window if is_local(index) else None for index in range(count)]
    read.require(len(kinds) == count, f"must have one entry a layer ({count})", "layer_types")
    known = {"full_attention", "sliding_attention"}
    read.require(known.issuperset(kinds), f"may only hold {' and '.join(sorted(known))}", "layer_types")
    read.require(window is not None or "sliding_attention" not in kinds, "is required", "sliding_window")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _same(base: AttentionSpec, window: Sequence[int | None]) -> list[AttentionSpec]:
    """One attention a layer, which differ in the window only."""
    kinds = {value: msgspec.structs.replace(base, window=value) for value in set(window)}
    return [kinds[value] for value in window]


def _mlp(read: ConfigReader, *, bias: bool = False, activation: str = "silu") -> MlpSpec:
    name = read.text("hidden_act", "hidden_activation", default=activation)
    return MlpSpec(read.integer("intermediate_size"), True, name, bias)


def llama(read: ConfigReader) -> LlmSpec:
    """Llama 1, 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024)."""
    bias = read.flag("attention_bias", default=False)
    attention = plain_attention(read, read.integer("hidden_size"), qkv_bias=bias, output_bias=bias)
    mlp = _mlp(read, bias=read.flag("mlp_bias", default=False))
    return assemble(read, [LayerSpec(attention, mlp)] * read.integer("num_hidden_layers"))


def mistral(read: ConfigReader) -> LlmSpec:
    """Mistral (Jiang et al. 2023): grouped attention with an optional sliding window in all layers."""
    attention = plain_attention(read, read.integer("hidden_size"))
    count = read.integer("num_hidden_layers")
    mlp = _mlp(read)
    window = windows(read, count, is_local=lambda _: True)
    return assemble(read, [LayerSpec(each, mlp) for each in _same(attention, window)])


def mixtral(read: ConfigReader) -> LlmSpec:
    """Mixtral (Jiang et al. 2024): every layer routes to `num_experts_per_tok` of its experts."""
    attention = plain_attention(read, read.integer("hidden_size"))
    count = read.integer("num_hidden_layers")
    moe = MoeSpec(
        read.integer("num_local_experts"),
        read.integer("num_experts_per_tok"),
        read.integer("intermediate_size"),
    )
    read.text("hidden_act", default="silu")
    _check_top_k(read, moe, "num_experts_per_tok")
    window = windows(read, count, is_local=lambda _: True)
    return assemble(read, [LayerSpec(each, moe=moe) for each in _same(attention, window)])


def _qwen_windows(read: ConfigReader, count: int) -> list[int | None]:
    """Qwen only slides where `use_sliding_window` is set, and only from layer `max_window_layers` on."""
    slides = read.flag("use_sliding_window", default=False)
    first = read.integer("max_window_layers", default=count, least=0)
    if not slides:
        read.optional_integer("sliding_window")
        kinds = read.listed("layer_types")
        read.require(
            "sliding_attention" not in (kinds or []),
            "has sliding layers but use_sliding_window is off",
            "layer_types",
        )
        return [None] * count
    return windows(read, count, is_local=lambda index: index >= first)


def qwen2(read: ConfigReader) -> LlmSpec:
    """Qwen 1.5, 2 and 2.5 (Yang et al. 2024): Llama with biases on queries, keys and values."""
    attention = plain_attention(read, read.integer("hidden_size"), qkv_bias=True)
    mlp = _mlp(read)
    window = _qwen_windows(read, read.integer("num_hidden_layers"))
    return assemble(read, [LayerSpec(each, mlp) for each in _same(attention, window)])


def _qwen3_attention(read: ConfigReader) -> AttentionSpec:
    bias = read.flag("attention_bias", default=False)
    attention = plain_attention(read, read.integer("hidden_size"), qkv_bias=bias, output_bias=bias)
    return msgspec.structs.replace(attention, qk_norm_parameters=2 * attention.head_dim)


def qwen3(read: ConfigReader) -> LlmSpec:
    """Qwen 3 (Yang et al. 2025): norms on the heads of queries and keys."""
    mlp = _mlp(read)
    window = _qwen_windows(read, read.integer("num_hidden_layers"))
    return assemble(read, [LayerSpec(each, mlp) for each in _same(_qwen3_attention(read), window)])


def _qwen_moe(read: ConfigReader, attention: AttentionSpec, moe: MoeSpec) -> LlmSpec:
    count = read.integer("num_hidden_layers")
    step = read.integer("decoder_sparse_step", default=1)
    dense = set(read.listed("mlp_only_layers") or [])
    mlp = _mlp(read)
    _check_top_k(read, moe, "num_experts_per_tok")
    layers = []
    for index, each in enumerate(_same(attention, _qwen_windows(read, count))):
        sparse = index not in dense and (index + 1) % step == 0
        layers.append(LayerSpec(each, moe=moe) if sparse else LayerSpec(each, mlp))
    return assemble(read, layers)


def qwen2_moe(read: ConfigReader) -> LlmSpec:
    """Qwen 1.5 and 2 MoE: routed experts beside one gated shared expert."""
    bias = read.flag("qkv_bias", default=True)
    attention = plain_attention(read, read.integer("hidden_size"), qkv_bias=bias)
    moe = MoeSpec(
        read.integer("num_experts"),
        read.integer("num_experts_per_tok"),
        read.integer("moe_intermediate_size"),
        shared_ffn=read.integer("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return _qwen_moe(read, attention, moe)


def qwen3_moe(read: ConfigReader) -> LlmSpec:
    """Qwen 3 MoE: many small experts, none shared."""
    moe = MoeSpec(
        read.integer("num_experts", "num_local_experts"),
        read.integer("num_experts_per_tok"),
        read.integer("moe_intermediate_size"),
    )
    return _qwen_moe(read, _qwen3_attention(read), moe)


def deepseek(read: ConfigReader) -> LlmSpec:
    """DeepSeek V2, V3 and R1 (DeepSeek-AI 2024): latent attention, shared experts, first layers dense."""
    heads = read.integer("num_attention_heads")
    rope_dim, value_dim = read.integer("qk_rope_head_dim"), read.integer("v_head_dim")
    bias = read.flag("attention_bias", default=False)
    read.optional_integer("num_key_value_heads")
    read.optional_integer("head_dim")
    q_rank = read.optional_integer("q_lora_rank") or 0
    attention = AttentionSpec(
        heads,
        heads,
        read.integer("qk_nope_head_dim") + rope_dim,
        value_dim,
        q_rank=q_rank,
        kv_rank=read.integer("kv_lora_rank"),
        rope_dim=rope_dim,
        latent_bias=bias,
        output_bias=bias,
    )
    return _shared_mixture(read, attention)


def _shared_mixture(read: ConfigReader, attention: AttentionSpec) -> LlmSpec:
    """Routed and shared experts behind some dense layers, as DeepSeek arranged them."""
    expert_ffn = read.integer("moe_intermediate_size")
    moe = MoeSpec(
        read.integer("n_routed_experts"),
        read.integer("num_experts_per_tok"),
        expert_ffn,
        shared_ffn=expert_ffn * read.integer("n_shared_experts", default=0, least=0),
        groups=read.integer("n_group", default=1),
        top_groups=read.integer("topk_group", default=1),
    )
    _check_top_k(read, moe, "num_experts_per_tok")
    dense = read.integer("first_k_dense_replace", default=0, least=0)
    frequency = read.integer("moe_layer_freq", default=1)
    mlp = _mlp(read)
    layers = [
        LayerSpec(attention, moe=moe)
        if index >= dense and index % frequency == 0
        else LayerSpec(attention, mlp)
        for index in range(read.integer("num_hidden_layers"))
    ]
    predicted = read.integer("num_nextn_predict_layers", default=0, least=0)
    return assemble(read, layers, left_out=_prediction(predicted))


def _prediction(layers: int) -> tuple[str, ...]:
    """What `left_out` says of layers that predict further tokens."""
    return (f"multi-token prediction ({layers} layer{'s' * (layers > 1)})",) if layers else ()


def gemma(read: ConfigReader) -> LlmSpec:
    """Gemma 1: wide heads, embedding tied to the head."""
    bias = read.flag("attention_bias", default=False)
    attention = plain_attention(read, read.integer("hidden_size"), qkv_bias=bias, output_bias=bias)
    mlp = _mlp(read, activation="gelu_pytorch_tanh")
    return assemble(read, [LayerSpec(attention, mlp)] * read.integer("num_hidden_layers"), tied=True)


def gemma2(read: ConfigReader) -> LlmSpec:
    """Gemma 2 (2024): local and global layers in turn, four norms a layer, capped scores."""
    bias = read.flag("attention_bias", default=False)
    attention = plain_attention(
        read,
        read.integer("hidden_size"),
        qkv_bias=bias,
        output_bias=bias,
        softcap=read.has("attn_logit_softcapping"),
    )
    mlp = _mlp(read, activation="gelu_pytorch_tanh")
    window = windows(read, read.integer("num_hidden_layers"), is_local=lambda index: index % 2 == 0)
    return assemble(read, [LayerSpec(each, mlp, num_norms=4) for each in _same(attention, window)], tied=True)


def gemma3(read: ConfigReader) -> LlmSpec:
    """Gemma 3 (2025): one global layer in six, norms on queries and keys."""
    bias = read.flag("attention_bias", default=False)
    attention = plain_attention(read, read.integer("hidden_size"), qkv_bias=bias, output_bias=bias)
    attention = msgspec.structs.replace(attention, qk_norm_parameters=2 * attention.head_dim)
    mlp = _mlp(read, activation="gelu_pytorch_tanh")
    pattern = read.integer("sliding_window_pattern", default=6)
    window = windows(
        read, read.integer("num_hidden_layers"), is_local=lambda index: (index + 1) % pattern != 0
    )
    return assemble(read, [LayerSpec(each, mlp, num_norms=4) for each in _same(attention, window)], tied=True)


def phi3(read: ConfigReader) -> LlmSpec:
    """Phi 3 and 4 (Abdin et al. 2024): Llama with fused matrices."""
    attention = plain_attention(read, read.integer("hidden_size"))
    mlp = _mlp(read)
    window = windows(read, read.integer("num_hidden_layers"), is_local=lambda _: True)
    return assemble(read, [LayerSpec(each, mlp) for each in _same(attention, window)])


def llama4(read: ConfigReader) -> LlmSpec:
    """Llama 4 (2025): one shared and one routed expert; chunked attention except where rope is off."""
    count = read.integer("num_hidden_layers")
    bias = read.flag("attention_bias", default=False)
    attention = plain_attention(read, read.integer("hidden_size"), qkv_bias=bias, output_bias=bias)
    chunk = read.optional_integer("attention_chunk_size")
    local = msgspec.structs.replace(attention, window=chunk, chunked=chunk is not None)
    expert_ffn = read.integer("intermediate_size")
    moe = MoeSpec(
        read.integer("num_local_experts"),
        read.integer("num_experts_per_tok", default=1),
        expert_ffn,
        shared_ffn=expert_ffn,
    )
    mlp = MlpSpec(read.integer("intermediate_size_mlp"), activation=read.text("hidden_act", default="silu"))
    read.flag("use_qk_norm", default=True)
    step = read.integer("interleave_moe_layer_step", default=1)
    routed = set(read.listed("moe_layers") or range(step - 1, count, step))
    kinds = read.listed("layer_types")
    rope = read.listed("no_rope_layers")
    every = read.integer("no_rope_layer_interval", default=4)
    # `no_rope_layers` holds 1 where rope is ON; published files also leave it out or empty.
    uses_rope = (
        [bool(flag) for flag in rope] if rope else [(index + 1) % every != 0 for index in range(count)]
    )
    if kinds:
        uses_rope = [kind == "chunked_attention" for kind in kinds]
    read.require(len(uses_rope) == count, f"must have one entry a layer ({count})", "no_rope_layers")
    layers = []
    for index in range(count):
        each = local if uses_rope[index] else attention
        layers.append(LayerSpec(each, moe=moe) if index in routed else LayerSpec(each, mlp))
    return assemble(read, layers)


def gpt_oss(read: ConfigReader) -> LlmSpec:
    """gpt-oss (2025): biases everywhere, attention sinks, windows in every other layer."""
    bias = read.flag("attention_bias", default=True)
    attention = plain_attention(
        read, read.integer("hidden_size"), qkv_bias=bias, output_bias=bias, sinks=True
    )
    moe = MoeSpec(
        read.integer("num_local_experts"),
        read.integer("num_experts_per_tok", "experts_per_token"),
        read.integer("intermediate_size"),
        expert_bias=True,
        router_bias=True,
    )
    read.text("hidden_act", default="silu")
    _check_top_k(read, moe, "num_experts_per_tok")
    window = windows(read, read.integer("num_hidden_layers"), is_local=lambda index: index % 2 == 0)
    return assemble(read, [LayerSpec(each, moe=moe) for each in _same(attention, window)])


def minimax_m2(read: ConfigReader) -> LlmSpec:
    """MiniMax M2 (2025): norms over all heads of queries and keys, every layer routes."""
    attention = plain_attention(read, read.integer("hidden_size"))
    width = (attention.heads + attention.kv_heads) * attention.head_dim
    read.flag("use_qk_norm", default=True)
    attention = msgspec.structs.replace(attention, qk_norm_parameters=width)
    moe = MoeSpec(
        read.integer("num_local_experts"),
        read.integer("num_experts_per_tok"),
        read.integer("intermediate_size"),
    )
    read.text("hidden_act", default="silu")
    _check_top_k(read, moe, "num_experts_per_tok")
    read.require(
        not any(kind == 0 for kind in read.listed("attn_type_list") or []), "must be all 1", "attn_type_list"
    )
    predicted = read.integer("num_mtp_modules", default=0, least=0) * read.integer(
        "mtp_transformer_layers", default=1
    )
    read.flag("use_mtp", default=False)
    layers = [LayerSpec(attention, moe=moe)] * read.integer("num_hidden_layers")
    return assemble(read, layers, left_out=_prediction(predicted))


def glm4_moe(read: ConfigReader) -> LlmSpec:
    """GLM 4.5 to 4.7 (2025): grouped attention, shared experts, first layers dense."""
    bias = read.flag("attention_bias", default=False)
    attention = plain_attention(read, read.integer("hidden_size"), qkv_bias=bias)
    if read.flag("use_qk_norm", default=False):
        attention = msgspec.structs.replace(attention, qk_norm_parameters=2 * attention.head_dim)
    return _shared_mixture(read, attention)


def nemotron(read: ConfigReader) -> LlmSpec:
    """Nemotron 3 and 4, Minitron (Parmar et al. 2024): squared ReLU without gate, LayerNorm."""
    bias = read.flag("attention_bias", default=False)
    attention = plain_attention(read, read.integer("hidden_size"), qkv_bias=bias, output_bias=bias)
    activation = read.text("hidden_act", default="relu2")
    mlp = MlpSpec(read.integer("intermediate_size"), False, activation, read.flag("mlp_bias", default=False))
    layers = [LayerSpec(attention, mlp)] * read.integer("num_hidden_layers")
    return assemble(read, layers, norm=NormSpec("layernorm", bias=True))


def _check_top_k(read: ConfigReader, moe: MoeSpec, name: str) -> None:
    read.require(moe.top_k <= moe.experts, f"must not exceed the number of experts ({moe.experts})", name)
