"""Layers, parameters and FLOPs, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.spec.errors import InputError
from groundplane.spec.huggingface import llm_from_config
from groundplane.spec.llm import AttentionSpec, LlmSpec, MlpSpec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}


def _llama(**changes: Any) -> LlmSpec:
    return llm_from_config({**LLAMA, **changes})


def test_parameters_of_a_small_llama_by_hand() -> None:
    count = _llama().parameters()
    attention = 64 * 64 + 2 * 64 * 16 + 64 * 64
    assert count.embedding == count.head == 6400
    assert count.attention == 3 * attention
    assert count.mlp == 3 * 3 * 64 * 96
    assert count.norms == 3 * 2 * 64 + 64
    assert count.total == count.active == 2 * 6400 + 3 * (attention + 3 * 64 * 96 + 128) + 64


def test_a_tied_head_counts_once() -> None:
    assert _llama(tie_word_embeddings=True).parameters().total == _llama().parameters().total - 6400


def test_flops_are_two_a_parameter_of_every_matrix() -> None:
    spec = _llama()
    flops = spec.forward_flops_per_token(16)
    count = spec.parameters()
    assert flops.attention_matrices == 2 * count.attention
    assert flops.mlp == 2 * count.mlp
    assert flops.head == 2 * count.head
    # 3 layers x 8 heads x (8 + 8) x 2 FLOPs x mean context (1 + ... + 16) / 16 = 8.5
    assert flops.attention_scores == 3 * 8 * 16 * 2 * 8.5
    assert spec.forward_flops_per_token(16, causal=False).attention_scores == 3 * 8 * 16 * 2 * 16


def test_gpt3_forward_flops_agree_with_the_published_formula() -> None:
    # Narayanan et al. 2021, equation 3, without recompute: 72 B s l h^2 (1 + s/6h + V/12lh) for a whole step,
    # of which forward is a third.
    layers, hidden, seq, vocab = 96, 12288, 2048, 51200
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": 96,
        "n_positions": seq,
        "vocab_size": vocab,
    }
    published = 24 * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (12 * layers * hidden))
    ours = seq * llm_from_config(config).forward_flops_per_token(seq, causal=False).total
    assert ours == pytest.approx(published, rel=1e-12)


def test_kv_cache_of_grouped_and_latent_attention() -> None:
    assert _llama().kv_values_per_token() == 3 * 2 * 2 * 8
    latent = AttentionSpec(128, 128, 192, 128, q_rank=1536, kv_rank=512, rope_dim=64)
    assert latent.kv_values_per_token() == 576
    assert latent.kind == "mla"


@pytest.mark.parametrize(("kv_heads", "kind"), [(8, "mha"), (2, "gqa"), (1, "mqa")])
def test_kinds_of_attention(kv_heads: int, kind: str) -> None:
    assert AttentionSpec(8, kv_heads, 8, 8).kind == kind


@settings(deadline=None)
@given(
    st.integers(min_value=1, max_value=64),
    st.one_of(st.none(), st.integers(min_value=1, max_value=80)),
    st.booleans(),
)
def test_mean_context_equals_counting(seq: int, window: int | None, chunked: bool) -> None:
    attention = AttentionSpec(1, 1, 1, 1, window=window, chunked=chunked)

    def seen(position: int) -> int:
        if window is None:
            return position + 1
        return position % window + 1 if chunked else min(position + 1, window)

    counted = sum(seen(position) for position in range(seq)) / seq
    assert attention.mean_context(seq) == pytest.approx(counted)


def test_padding_the_vocabulary() -> None:
    assert _llama().with_padded_vocab(128).vocab == 128
    assert _llama().with_padded_vocab(100).vocab == 100
    with pytest.raises(InputError, match="positive integer"):
        _llama().with_padded_vocab(0)


def test_equal_layers_are_grouped() -> None:
    assert [count for _, count in _llama().layer_groups()] == [3]


def test_biases_of_a_plain_block() -> None:
    assert MlpSpec(10, gated=False, bias=True).parameters(4) == 2 * 4 * 10 + 10 + 4
    assert MlpSpec(10, gated=True, bias=True).parameters(4) == 3 * 4 * 10 + 20 + 4


def test_active_parameters_of_a_mixture() -> None:
    config = {
        **LLAMA,
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    spec = llm_from_config(config)
    count = spec.parameters()
    one = 3 * 64 * 96
    assert spec.is_moe
    assert count.experts == 3 * 8 * one
    assert count.router == 3 * 8 * 64
    assert count.total - count.active == 3 * 6 * one
    assert spec.forward_flops_per_token(8).experts == 2 * 3 * 2 * one


def test_mpt_learned_positions_where_alibi_is_off() -> None:
    config = {
        "architectures": ["MPTForCausalLM"],
        "d_model": 64,
        "n_heads": 8,
        "n_layers": 2,
        "max_seq_len": 32,
        "vocab_size": 100,
        "attn_config": {"alibi": False},
    }
    spec = llm_from_config(config)
    assert spec.position == "learned"
    assert spec.parameters().position == 32 * 64


def test_llama4_layers_take_turns() -> None:
    text = {
        **{key: value for key, value in LLAMA.items() if key != "architectures"},
        "num_hidden_layers": 8,
        "intermediate_size_mlp": 128,
        "num_local_experts": 4,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 32,
    }
    spec = llm_from_config({"architectures": ["Llama4ForConditionalGeneration"], "text_config": text})
    assert [layer.moe is not None for layer in spec.layers] == [False, True] * 4
    assert [layer.attention.chunked for layer in spec.layers] == [True, True, True, False] * 2
    assert spec.left_out == ("vision tower and projector",)


def test_deepseek_leaves_out_multi_token_prediction_and_says_so() -> None:
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "num_attention_heads": 4,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "kv_lora_rank": 24,
        "q_lora_rank": None,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "vocab_size": 100,
        "num_nextn_predict_layers": 1,
        "quantization_config": {"quant_method": "fp8"},
    }
    spec = llm_from_config(config)
    assert spec.left_out == ("multi-token prediction (1 layer)",)
    assert spec.unread == ("quantization_config",)
    moe = spec.layers[2].moe
    assert spec.layers[0].mlp is not None
    assert spec.layers[0].moe is None
    assert moe is not None
    assert (moe.shared_ffn, moe.groups, moe.top_groups) == (64, 4, 2)
