"""From a Hugging Face `config.json` to an `LlmSpec`.

An architecture that is not in the table is refused by name: guessing would give a plan that looks right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from groundplane.spec import architectures as gated
from groundplane.spec import architectures_classic as classic
from groundplane.spec.config_reader import ConfigReader
from groundplane.spec.errors import InputError, unknown_name
from groundplane.spec.llm import LlmSpec
from groundplane.spec.load import read_text

ARCHITECTURES: Final[dict[str, tuple[str, gated.Builder]]] = {
    "LlamaForCausalLM": ("llama", gated.llama),
    "Llama4ForCausalLM": ("llama4_text", gated.llama4),
    "MistralForCausalLM": ("mistral", gated.mistral),
    "MixtralForCausalLM": ("mixtral", gated.mixtral),
    "Qwen2ForCausalLM": ("qwen2", gated.qwen2),
    "Qwen2MoeForCausalLM": ("qwen2_moe", gated.qwen2_moe),
    "Qwen3ForCausalLM": ("qwen3", gated.qwen3),
    "Qwen3MoeForCausalLM": ("qwen3_moe", gated.qwen3_moe),
    "DeepseekV2ForCausalLM": ("deepseek_v2", gated.deepseek),
    "DeepseekV3ForCausalLM": ("deepseek_v3", gated.deepseek),
    "GemmaForCausalLM": ("gemma", gated.gemma),
    "Gemma2ForCausalLM": ("gemma2", gated.gemma2),
    "Gemma3ForCausalLM": ("gemma3_text", gated.gemma3),
    "PhiForCausalLM": ("phi", classic.phi),
    "Phi3ForCausalLM": ("phi3", gated.phi3),
    "GPT2LMHeadModel": ("gpt2", classic.gpt2),
    "GPTJForCausalLM": ("gptj", classic.gpt_j),
    "GPTNeoXForCausalLM": ("gpt_neox", classic.gpt_neox),
    "FalconForCausalLM": ("falcon", classic.falcon),
    "BloomForCausalLM": ("bloom", classic.bloom),
    "MptForCausalLM": ("mpt", classic.mpt),
    "OPTForCausalLM": ("opt", classic.opt),
    "GptOssForCausalLM": ("gpt_oss", gated.gpt_oss),
    "Glm4MoeForCausalLM": ("glm4_moe", gated.glm4_moe),
    "MiniMaxM2ForCausalLM": ("minimax_m2", gated.minimax_m2),
    "NemotronForCausalLM": ("nemotron", gated.nemotron),
}
"""Architecture -> (its `model_type` in `transformers`, how to read it)."""

_OTHER_NAMES: Final = {
    "RWForCausalLM": "FalconForCausalLM",
    "RefinedWebModel": "FalconForCausalLM",
    "MPTForCausalLM": "MptForCausalLM",
    "BloomModel": "BloomForCausalLM",
    "GPT2Model": "GPT2LMHeadModel",
    "LLaMAForCausalLM": "LlamaForCausalLM",
}
"""Names that older published files carry for the same network."""

_TEXT_OF: Final = {
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
}
"""Models with a vision tower -> the language model inside, whose fields stand under `text_config`."""

_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "Gemma3ForCausalLM": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
    "Qwen3MoeForCausalLM": {"head_dim": 128},
    "Qwen3ForCausalLM": {"head_dim": 128},
    "GptOssForCausalLM": {"head_dim": 64, "sliding_window": 128},
    "GemmaForCausalLM": {"head_dim": 256},
    "Gemma2ForCausalLM": {"head_dim": 256, "sliding_window": 4096},
    "Llama4ForCausalLM": {"head_dim": 128, "attention_chunk_size": 8192},
    "MistralForCausalLM": {"num_key_value_heads": 8},
    "MixtralForCausalLM": {"num_key_value_heads": 8},
    "DeepseekV2ForCausalLM": {"moe_intermediate_size": 1407},
    "DeepseekV3ForCausalLM": {"moe_intermediate_size": 2048},
    "OPTForCausalLM": {"max_position_embeddings": 2048, "ffn_dim": 3072},
    "MptForCausalLM": {"max_seq_len": 2048},
    "GPT2LMHeadModel": {"n_positions": 1024},
    "PhiForCausalLM": {},
}
"""What `transformers` assumes where a published file leaves a field out."""

_DTYPES: Final = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}

_HARMLESS: Final = frozenset(
    """
    activation_dropout apply_residual_connection_post_layernorm architectures attention_dropout
    attention_softmax_in_fp32 attn_implementation attn_logit_softcapping attn_pdrop attn_scale
    attn_temperature_tuning auto_map aux_loss_alpha aux_loss_free bias_dropout_fusion
    boi_token_index bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout
    dropout dtype emb_pdrop embd_pdrop embedding_fraction eoi_token_index eos_token_id ep_size
    fc_config final_logit_softcapping floor_scale for_llm_compressor gradient_checkpointing
    hidden_dropout image_token_index init_config init_device init_std initial_context_length
    initializer_factor initializer_range is_decoder is_encoder_decoder language layer_dropout
    layer_norm_eps layer_norm_epsilon layerdrop layernorm_full_attention_beta
    layernorm_linear_attention_beta layernorm_mlp_beta logit_scale masked_softmax_fusion
    max_new_tokens mm_tokens_per_image model_type name_or_path norm_eps norm_topk_prob norm_type
    offset_alibi original_max_position_embeddings output_attentions output_hidden_states
    output_router_logits pad_token_id partial_rotary_factor prefix pretraining_tp problem_type
    qk_norm_type query_pre_attn_scalar reorder_and_upcast_attn resid_pdrop resid_prenorm return_dict
    rms_norm_eps rope_local_base_freq rope_parameters rope_scaling rope_theta rotary rotary_dim
    rotary_emb_base rotary_pct routed_scaling_factor router_aux_loss_coef router_jitter_noise
    scale_attn_by_inverse_layer_idx scale_attn_weights scoring_func sep_token_id seq_aux seq_length
    skip_bias_add skip_bias_add_qkv slow_but_exact summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj swiglu_limit task_specific_params
    tokenizer_class topk_method torch_dtype transformers_version unk_token unk_token_id
    use_bidirectional_attention use_cache use_mamba_kernels use_pad_tok_in_ffn use_routing_bias
    verbose vocab_file
    """.split()  # noqa: SIM905  (one word list reads better than sixty quoted strings)
)
"""Fields that do not change which matrix products run, nor their sizes."""


def load_llm(path: str | Path) -> LlmSpec:
    """Reads a model from its `config.json`, or from the folder that holds one.

    Raises:
        InputError: missing or unreadable file, not JSON, or anything that `llm_from_config` refuses.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        config = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise InputError(f"is not valid JSON: {error.msg}", file=str(file), line=error.lineno) from None
    name = file.parent.name if file.name == "config.json" and file.parent.name else file.stem
    return llm_from_config(config, name=name, file=str(file))


def llm_from_config(config: Any, *, name: str = "model", file: str | None = None) -> LlmSpec:
    """The model that a parsed `config.json` describes.

    Raises:
        InputError: unknown architecture, a missing or impossible field, or a field that is not understood
            although it looks as if it changed the computation.
    """
    if not isinstance(config, Mapping):
        raise InputError("must be a JSON object", file=file)
    architecture = _architecture(config, file)
    left_out: tuple[str, ...] = ()
    prefix = ""
    if architecture in _TEXT_OF:
        architecture, prefix = _TEXT_OF[architecture], "text_config"
        if not isinstance(config.get("text_config"), Mapping):
            raise InputError("is required for this architecture", file=file, field="text_config")
        left_out = ("vision tower and projector",)
        outer_dtype = config.get("torch_dtype") or config.get("dtype")
        config = {"dtype": outer_dtype, **config["text_config"]}
    reader = ConfigReader(config, file=file, prefix=prefix, defaults=_DEFAULTS.get(architecture))
    spec = ARCHITECTURES[architecture][1](reader)
    unread = reader.unread(harmless=_HARMLESS, architecture=architecture)
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    return msgspec.structs.replace(
        spec,
        name=name,
        architecture=architecture,
        dtype=_DTYPES.get(dtype, "bf16"),
        unread=unread,
        left_out=spec.left_out + left_out,
    )


def _architecture(config: Mapping[str, Any], file: str | None) -> str:
    """The architecture's name, from `architectures` or else from `model_type`."""
    listed = config.get("architectures")
    model_type = config.get("model_type")
    known = [*ARCHITECTURES, *_TEXT_OF]
    if isinstance(listed, list) and listed and isinstance(listed[0], str):
        name = _OTHER_NAMES.get(listed[0], listed[0])
        if name in known:
            return name
        raise unknown_name("model architecture", listed[0], known, field="architectures").at(file=file)
    by_type = {kind: name for name, (kind, _) in ARCHITECTURES.items()}
    if isinstance(model_type, str):
        if model_type in by_type:
            return by_type[model_type]
        raise unknown_name("model type", model_type, by_type, field="model_type").at(file=file)
    raise InputError("is required (or model_type)", file=file, field="architectures")
