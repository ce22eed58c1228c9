"""Models that serving can price though their config files are not read yet: hybrids, sparse attention.

Each is described by the nearest layers that the price depends on; what is only near is said in `left_out`.
Sizes are those of the published `config.json`.
"""

from __future__ import annotations

import functools
from typing import Final

from groundplane.catalog.resolve import resolve_llm
from groundplane.spec.llm import AttentionSpec, LayerSpec, LlmSpec, MlpSpec, MoeSpec

_STATE_WINDOW: Final = 341
"""Tokens whose bf16 keys and values are as many bytes as reading and writing the float32 state of a gated
delta layer of 64 heads of 128 x 128: 2 x 64 x 128 x 128 x 4 / (48 x 256 x 2)."""


def serving_llm(name: str) -> LlmSpec:
    """A model by catalogue name or file, or one of those described here.

    Raises:
        InputError: as `resolve_llm`.
    """
    makers = {"glm-5": _glm_5, "qwen3.5-397b-a17b": _qwen35}
    maker = makers.get(name.lower())
    return resolve_llm(name) if maker is None else maker()


@functools.cache
def _glm_5() -> LlmSpec:
    """GLM-5: latent attention over 2,048 tokens that an indexer picks, priced as a window of that many."""
    attention = AttentionSpec(
        heads=64, kv_heads=64, head_dim=256, value_dim=256, window=2048, q_rank=2048, kv_rank=512, rope_dim=64
    )
    dense = LayerSpec(attention, mlp=MlpSpec(12288))
    routed = LayerSpec(attention, moe=MoeSpec(256, 8, 2048, shared_ffn=2048))
    return LlmSpec(
        name="glm-5",
        architecture="GlmMoeDsaForCausalLM",
        hidden=6144,
        vocab=154880,
        layers=(dense,) * 3 + (routed,) * 75,
        max_positions=202752,
        left_out=("the sparse attention's indexer", "multi-token prediction"),
    )


@functools.cache
def _qwen35() -> LlmSpec:
    """Qwen3.5-397B-A17B: three gated delta layers to each full one; a state is priced as a short cache."""
    moe = MoeSpec(512, 10, 1024, shared_ffn=1024, shared_gate=True)
    full = LayerSpec(AttentionSpec(heads=32, kv_heads=2, head_dim=256, value_dim=256), moe=moe)
    linear = LayerSpec(
        AttentionSpec(heads=64, kv_heads=48, head_dim=128, value_dim=128, window=_STATE_WINDOW), moe=moe
    )
    return LlmSpec(
        name="qwen3.5-397b-a17b",
        architecture="Qwen3_5MoeForConditionalGeneration",
        hidden=4096,
        vocab=248320,
        layers=(linear, linear, linear, full) * 15,
        max_positions=262144,
        left_out=("convolutions and gates of linear attention", "the vision tower"),
    )
