"""What a config.json may say, and how the reader refuses what it does not understand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from groundplane.spec.errors import InputError
from groundplane.spec.huggingface import ARCHITECTURES, llm_from_config, load_llm

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["LlamaForCausalLn"]}, "did you mean 'LlamaForCausalLM'?"),
        ({"architectures": ["MambaForCausalLM"]}, "architectures: unknown model architecture"),
        ({"architectures": None, "model_type": "lama"}, "did you mean 'llama'?"),
        ({"architectures": None}, "architectures: is required (or model_type)"),
        ({"hidden_size": None}, "hidden_size: is required for this architecture"),
        ({"vocab_size": -1}, "vocab_size: must be a positive integer, got -1"),
        ({"vocab_size": 1.5}, "vocab_size: must be a positive integer, got 1.5"),
        ({"vocab_size": True}, "vocab_size: must be a positive integer, got True"),
        ({"num_attention_heads": 7}, "hidden_size: must be divisible by num_attention_heads (7), got 64"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: must divide num_attention_heads (8), got 3"),
        ({"attention_bias": "yes"}, "attention_bias: must be true or false, got 'yes'"),
        ({"num_experts": 8}, "num_experts: is not understood for LlamaForCausalLM"),
        ({"sliding_window": 4096}, "sliding_window: is not understood for LlamaForCausalLM"),
        ({"kv_lora_rank": 512}, "kv_lora_rank: is not understood for LlamaForCausalLM"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        llm_from_config({**LLAMA, **change}, file="config.json")
    assert str(caught.value).startswith("config.json: ")
    assert message in str(caught.value)


def test_what_is_unset_or_harmless_is_not_reported() -> None:
    config = {
        **LLAMA,
        "num_experts": None,
        "sliding_window": None,
        "use_cache": True,
        "attention_dropout": 0.1,
        "rope_scaling": {"factor": 8.0},
        "initializer_range": 0.02,
    }
    assert llm_from_config(config).unread == ()


def test_what_is_unknown_but_not_shaping_is_reported() -> None:
    assert llm_from_config({**LLAMA, "favourite_colour": "red"}).unread == ("favourite_colour",)


def test_layer_types_must_fit() -> None:
    gemma = {
        **LLAMA,
        "architectures": ["Gemma2ForCausalLM"],
        "head_dim": 8,
        "num_key_value_heads": 4,
        "sliding_window": 16,
    }
    spec = llm_from_config(gemma)
    assert [layer.attention.window for layer in spec.layers] == [16, None, 16]
    with pytest.raises(InputError, match="one entry a layer"):
        llm_from_config({**gemma, "layer_types": ["full_attention"]})
    with pytest.raises(InputError, match="may only hold"):
        llm_from_config({**gemma, "layer_types": ["linear_attention"] * 3})
    given = ["full_attention", "sliding_attention", "full_attention"]
    assert [layer.attention.window for layer in llm_from_config({**gemma, "layer_types": given}).layers] == [
        None,
        16,
        None,
    ]


def test_older_names_of_the_same_network() -> None:
    assert (
        llm_from_config({**LLAMA, "architectures": ["LLaMAForCausalLM"]}).architecture == "LlamaForCausalLM"
    )


def test_model_type_alone_is_enough() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "architectures"}
    assert llm_from_config({**config, "model_type": "llama"}).architecture == "LlamaForCausalLM"


def test_text_config_is_required_where_the_model_also_sees() -> None:
    with pytest.raises(InputError, match="is required for this architecture") as caught:
        llm_from_config({"architectures": ["Gemma3ForConditionalGeneration"]})
    assert caught.value.field == "text_config"


def test_errors_within_text_config_carry_the_path() -> None:
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"hidden_size": 64}}
    with pytest.raises(InputError) as caught:
        llm_from_config(config)
    assert caught.value.field == "text_config.intermediate_size"


def test_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, "torch_dtype": "float16"}))
    spec = load_llm(folder)
    assert (spec.name, spec.dtype) == ("my-model", "fp16")
    assert load_llm(folder / "config.json") == spec
    with pytest.raises(InputError, match="no such file"):
        load_llm(tmp_path / "nothing.json")
    broken = tmp_path / "broken.json"
    broken.write_text('{\n"a": 1,\n}')
    with pytest.raises(InputError, match="is not valid JSON") as caught:
        load_llm(broken)
    assert caught.value.line == 3
    listed = tmp_path / "list.json"
    listed.write_text("[]")
    with pytest.raises(InputError, match="must be a JSON object"):
        load_llm(listed)


def test_every_architecture_of_the_table_has_its_own_model_type() -> None:
    kinds = [kind for kind, _ in ARCHITECTURES.values()]
    assert len(set(kinds)) == len(kinds)
