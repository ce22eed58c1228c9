"""Parameter counts equal those of `transformers`, to the parameter, for every model and architecture."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from groundplane.catalog import model_entry, model_names, resolve_llm
from groundplane.spec.huggingface import ARCHITECTURES, llm_from_config

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")


def _count(config: dict[str, Any], model_type: str) -> int:
    """Parameters that `transformers` counts, built without memory on the meta device."""
    plain = dict(config.get("text_config", config))
    for key in ("architectures", "quantization_config", "model_type"):
        plain.pop(key, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = transformers.AutoConfig.for_model(model_type, **plain)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(known)
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_architecture_has_a_model_in_the_catalogue() -> None:
    assert {resolve_llm(name).architecture for name in model_names()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", model_names())
def test_the_catalogue(name: str) -> None:
    spec = resolve_llm(name)
    expected = _count(model_entry(name)["config"], ARCHITECTURES[spec.architecture][0])
    assert spec.parameters().total == expected


SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "head_dim": 16,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "num_key_value_heads": 8,
    "n_group": 1,
    "topk_group": 1,
}
ODD = [
    ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    ("LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("MistralForCausalLM", {"sliding_window": 16}),
    (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2, "head_dim": None},
    ),
    ("Qwen3ForCausalLM", {"attention_bias": True}),
    (
        "Qwen2MoeForCausalLM",
        {**EXPERTS, "shared_expert_intermediate_size": 48, "decoder_sparse_step": 2, "head_dim": None},
    ),
    ("Qwen3MoeForCausalLM", {**EXPERTS, "mlp_only_layers": [0]}),
    ("DeepseekV3ForCausalLM", {**LATENT, "attention_bias": True, "head_dim": None}),
    ("DeepseekV3ForCausalLM", {**LATENT, "q_lora_rank": None, "head_dim": None}),
    ("DeepseekV2ForCausalLM", {**LATENT, "n_shared_experts": 2, "head_dim": None}),
    ("Gemma3ForCausalLM", {"sliding_window": 16, "tie_word_embeddings": True}),
    ("NemotronForCausalLM", {"attention_bias": True, "mlp_bias": True, "hidden_act": "relu2"}),
    (
        "GPTNeoXForCausalLM",
        {
            "attention_bias": False,
            "use_parallel_residual": False,
            "num_key_value_heads": None,
            "head_dim": None,
        },
    ),
    (
        "Llama4ForCausalLM",
        {
            "intermediate_size_mlp": 128,
            "num_local_experts": 4,
            "interleave_moe_layer_step": 2,
            "attention_bias": True,
        },
    ),
    ("GptOssForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": False}),
]


@pytest.mark.parametrize(("architecture", "changes"), ODD)
def test_unusual_settings(architecture: str, changes: dict[str, Any]) -> None:
    config = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
    if changes.get("q_lora_rank", 0) is None:
        config["q_lora_rank"] = None
    spec = llm_from_config({"architectures": [architecture], **config})
    assert spec.parameters().total == _count(config, ARCHITECTURES[architecture][0])


FALCON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 100}
CLASSIC: list[tuple[str, dict[str, Any]]] = [
    (
        "FalconForCausalLM",
        {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True, "alibi": True},
    ),
    ("FalconForCausalLM", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 4, "bias": True}),
    (
        "FalconForCausalLM",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 4, "num_ln_in_parallel_attn": 1},
    ),
    (
        "GPT2LMHeadModel",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 100, "n_inner": 96},
    ),
    ("MptForCausalLM", {"d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 100, "max_seq_len": 32}),
    (
        "OPTForCausalLM",
        {
            "hidden_size": 64,
            "ffn_dim": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 100,
            "max_position_embeddings": 32,
            "word_embed_proj_dim": 32,
            "enable_bias": False,
        },
    ),
]


@pytest.mark.parametrize(("architecture", "config"), CLASSIC)
def test_unusual_settings_of_older_families(architecture: str, config: dict[str, Any]) -> None:
    spec = llm_from_config({"architectures": [architecture], **config})
    assert spec.parameters().total == _count(config, ARCHITECTURES[architecture][0])
