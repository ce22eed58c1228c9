"""How each architecture of Hugging Face `transformers` becomes layers: the families before gated blocks.

As `groundplane.spec.architectures`, for GPT-2 and those shaped like it: LayerNorm, plain blocks, biases.
"""

from __future__ import annotations

from groundplane.spec.architectures import assemble, plain_attention
from groundplane.spec.config_reader import ConfigReader
from groundplane.spec.llm import AttentionSpec, LayerSpec, LlmSpec, MlpSpec, NormSpec

LAYER_NORM = NormSpec("layernorm", bias=True)


def _heads(read: ConfigReader, hidden: int, *names: str) -> tuple[int, int]:
    heads = read.integer(*names)
    read.require(hidden % heads == 0, f"must divide the hidden size ({hidden})", names[0])
    return heads, hidden // heads


def gpt2(read: ConfigReader) -> LlmSpec:
    """GPT-2 and GPT-3 (Radford et al. 2019; Brown et al. 2020): learned positions, tied head."""
    hidden = read.integer("n_embd", "hidden_size")
    heads, head_dim = _heads(read, hidden, "n_head", "num_attention_heads")
    attention = AttentionSpec(heads, heads, head_dim, head_dim, qkv_bias=True, output_bias=True)
    ffn = read.optional_integer("n_inner") or 4 * hidden
    mlp = MlpSpec(ffn, False, read.text("activation_function", default="gelu_new"), bias=True)
    rows = read.integer("n_positions", "n_ctx", "max_position_embeddings")
    read.optional_integer("n_ctx")
    read.require(
        not read.has("add_cross_attention"), "cross attention is not described", "add_cross_attention"
    )
    return LlmSpec(
        name="",
        architecture="",
        hidden=hidden,
        vocab=read.integer("vocab_size"),
        layers=(LayerSpec(attention, mlp),) * read.integer("n_layer", "num_hidden_layers"),
        norm=LAYER_NORM,
        max_positions=rows,
        position="learned",
        position_rows=rows,
        tied_embeddings=read.flag("tie_word_embeddings", default=True),
    )


def gpt_j(read: ConfigReader) -> LlmSpec:
    """GPT-J (Wang and Komatsuzaki 2021): one norm, parallel blocks, biases only in the block and the head."""
    hidden = read.integer("n_embd", "hidden_size")
    heads, head_dim = _heads(read, hidden, "n_head", "num_attention_heads")
    ffn = read.optional_integer("n_inner") or 4 * hidden
    mlp = MlpSpec(ffn, False, read.text("activation_function", default="gelu_new"), bias=True)
    layer = LayerSpec(AttentionSpec(heads, heads, head_dim, head_dim), mlp, num_norms=1, parallel=True)
    return LlmSpec(
        name="",
        architecture="",
        hidden=hidden,
        vocab=read.integer("vocab_size"),
        layers=(layer,) * read.integer("n_layer", "num_hidden_layers"),
        norm=LAYER_NORM,
        max_positions=read.optional_integer("n_positions"),
        tied_embeddings=read.flag("tie_word_embeddings", default=False),
        head_bias=True,
    )


def gpt_neox(read: ConfigReader) -> LlmSpec:
    """GPT-NeoX and Pythia (Black et al. 2022): parallel blocks, partial rotary."""
    bias = read.flag("attention_bias", default=True)
    attention = plain_attention(read, read.integer("hidden_size"), qkv_bias=bias, output_bias=bias)
    mlp = MlpSpec(
        read.integer("intermediate_size"), False, read.text("hidden_act", default="gelu"), bias=True
    )
    layer = LayerSpec(attention, mlp, parallel=read.flag("use_parallel_residual", default=True))
    return assemble(read, [layer] * read.integer("num_hidden_layers"), norm=LAYER_NORM)


def falcon(read: ConfigReader) -> LlmSpec:
    """Falcon (Almazrouei et al. 2023): one key-value head, or a few in the newer arrangement."""
    hidden = read.integer("hidden_size")
    heads, head_dim = _heads(read, hidden, "num_attention_heads", "n_head")
    newer = read.flag("new_decoder_architecture", default=False)
    multi_query = read.flag("multi_query", default=True)
    stated = read.integer("num_kv_heads", "n_head_kv", default=heads)
    kv_heads = stated if newer else (1 if multi_query else heads)
    bias = read.flag("bias", default=False)
    parallel = read.flag("parallel_attn", default=True)
    attention = AttentionSpec(heads, kv_heads, head_dim, head_dim, qkv_bias=bias, output_bias=bias)
    ffn = read.integer("ffn_hidden_size", default=4 * hidden)
    mlp = MlpSpec(ffn, False, read.text("activation", default="gelu"), bias=bias)
    norms_in_parallel = read.integer("num_ln_in_parallel_attn", default=2 if newer else 1)
    num_norms = norms_in_parallel if newer or parallel else 2
    layer = LayerSpec(attention, mlp, num_norms=num_norms, parallel=parallel or newer)
    return LlmSpec(
        name="",
        architecture="",
        hidden=hidden,
        vocab=read.integer("vocab_size"),
        layers=(layer,) * read.integer("num_hidden_layers", "n_layer"),
        norm=LAYER_NORM,
        max_positions=read.optional_integer("max_position_embeddings"),
        position="alibi" if read.flag("alibi", default=False) else "rope",
        tied_embeddings=read.flag("tie_word_embeddings", default=True),
    )


def bloom(read: ConfigReader) -> LlmSpec:
    """BLOOM (Le Scao et al. 2022): alibi, a norm after the embedding."""
    hidden = read.integer("hidden_size", "n_embed", "n_embd")
    heads, head_dim = _heads(read, hidden, "n_head", "num_attention_heads")
    attention = AttentionSpec(heads, heads, head_dim, head_dim, qkv_bias=True, output_bias=True)
    layer = LayerSpec(attention, MlpSpec(4 * hidden, False, "gelu", bias=True))
    stated = read.optional_integer("n_inner")
    read.require(stated in (None, 4 * hidden), "must be 4 x the hidden size", "n_inner")
    return LlmSpec(
        name="",
        architecture="",
        hidden=hidden,
        vocab=read.integer("vocab_size"),
        layers=(layer,) * read.integer("n_layer", "num_hidden_layers"),
        norm=LAYER_NORM,
        max_positions=read.optional_integer("seq_length"),
        position="alibi",
        tied_embeddings=read.flag("tie_word_embeddings", default=True),
        embedding_norm=True,
    )


def mpt(read: ConfigReader) -> LlmSpec:
    """MPT (MosaicML 2023): alibi, no biases, tied head."""
    hidden = read.integer("d_model")
    heads, head_dim = _heads(read, hidden, "n_heads")
    inner = read.inner("attn_config")
    kv_heads = inner.integer("kv_n_heads", default=heads)
    kind = inner.text("attn_type", default="multihead_attention")
    read.require(
        kind == "multihead_attention" and kv_heads == heads, "must be multi-head attention", "attn_config"
    )
    inner.require(
        not inner.flag("qk_ln", default=False), "norms on queries and keys are not described", "qk_ln"
    )
    alibi = inner.flag("alibi", default=True)
    bias = not read.flag("no_bias", default=True)
    attention = AttentionSpec(heads, heads, head_dim, head_dim, qkv_bias=bias, output_bias=bias)
    mlp = MlpSpec(hidden * read.integer("expansion_ratio", default=4), False, "gelu", bias=bias)
    longest = read.integer("max_seq_len")
    learned = read.flag("learned_pos_emb", default=True) and not alibi
    return LlmSpec(
        name="",
        architecture="",
        hidden=hidden,
        vocab=read.integer("vocab_size"),
        layers=(LayerSpec(attention, mlp),) * read.integer("n_layers"),
        norm=NormSpec("layernorm", bias=bias),
        max_positions=longest,
        position="alibi" if alibi else "learned",
        position_rows=longest if learned else 0,
        tied_embeddings=read.flag("tie_word_embeddings", default=True),
    )


def opt(read: ConfigReader) -> LlmSpec:
    """OPT (Zhang et al. 2022): learned positions with two spare rows, tied head."""
    hidden = read.integer("hidden_size")
    heads, head_dim = _heads(read, hidden, "num_attention_heads")
    bias = read.flag("enable_bias", default=True)
    attention = AttentionSpec(heads, heads, head_dim, head_dim, qkv_bias=bias, output_bias=bias)
    activation = read.text("activation_function", default="relu")
    mlp = MlpSpec(read.integer("ffn_dim"), False, activation, bias=bias)
    longest = read.integer("max_position_embeddings")
    before = read.flag("do_layer_norm_before", default=True)
    removed = read.flag("_remove_final_layer_norm", default=False)
    read.require(
        read.flag("layer_norm_elementwise_affine", default=True),
        "must be true",
        "layer_norm_elementwise_affine",
    )
    return assemble(
        read,
        [LayerSpec(attention, mlp)] * read.integer("num_hidden_layers"),
        tied=True,
        norm=LAYER_NORM,
        position="learned",
        position_rows=longest + 2,
        embedding_dim=read.integer("word_embed_proj_dim", default=hidden),
        final_norm=before and not removed,
    )


def phi(read: ConfigReader) -> LlmSpec:
    """Phi 1, 1.5 and 2 (Gunasekar et al. 2023): one norm, parallel blocks, a bias on the head."""
    attention = plain_attention(read, read.integer("hidden_size"), qkv_bias=True, output_bias=True)
    read.require(
        not read.flag("qk_layernorm", default=False),
        "norms on queries and keys are not described",
        "qk_layernorm",
    )
    mlp = MlpSpec(
        read.integer("intermediate_size"), False, read.text("hidden_act", default="gelu_new"), bias=True
    )
    layer = LayerSpec(attention, mlp, num_norms=1, parallel=True)
    return assemble(read, [layer] * read.integer("num_hidden_layers"), norm=LAYER_NORM, head_bias=True)
