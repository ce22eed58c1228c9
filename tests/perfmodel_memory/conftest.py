"""Small models with round sizes, and a stack that holds exactly what it needs."""

from __future__ import annotations

import pytest

from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.spec.llm import AttentionSpec, LayerSpec, LlmSpec, MlpSpec, MoeSpec, NormSpec


@pytest.fixture
def exact() -> MemoryProfile:
    """No slack, nothing live beside what is kept, 10 bytes a logit."""
    return MemoryProfile(
        "exact",
        activation_slack=1.0,
        working_layers=0.0,
        base_bytes=0.0,
        fragment_share=0.0,
        outside_bytes=0.0,
    )


@pytest.fixture
def gpt() -> LlmSpec:
    """8 layers of width 1,024 with 16 heads and a block of 4,096; vocabulary 32,000; tied."""
    attention = AttentionSpec(16, 16, 64, 64)
    layer = LayerSpec(attention, MlpSpec(4096, gated=False))
    return LlmSpec(
        "gpt", "test", 1024, 32000, (layer,) * 8, norm=NormSpec("layernorm", True), tied_embeddings=True
    )


@pytest.fixture
def llama() -> LlmSpec:
    """8 layers of width 1,024, 16 heads over 4 of keys, a gated block of 3,072; vocabulary 32,000."""
    return LlmSpec(
        "llama", "test", 1024, 32000, (LayerSpec(AttentionSpec(16, 4, 64, 64), MlpSpec(3072)),) * 8
    )


@pytest.fixture
def moe() -> LlmSpec:
    """As `llama`, but layers 2 to 8 have 16 experts of 512, 2 a token, and shared ones of 1,024."""
    attention = AttentionSpec(16, 4, 64, 64)
    dense = LayerSpec(attention, MlpSpec(3072))
    sparse = LayerSpec(attention, moe=MoeSpec(experts=16, top_k=2, expert_ffn=512, shared_ffn=1024))
    return LlmSpec("moe", "test", 1024, 32000, (dense, *(sparse,) * 7))


@pytest.fixture
def mla() -> LlmSpec:
    """Latent attention: 16 heads of 128 + 64, values 128, ranks 256 (queries) and 128 (keys and values)."""
    attention = AttentionSpec(16, 16, 192, 128, q_rank=256, kv_rank=128, rope_dim=64)
    return LlmSpec("mla", "test", 1024, 32000, (LayerSpec(attention, MlpSpec(3072)),) * 4)
