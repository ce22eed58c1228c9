"""Bytes of one layer, computed by hand."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from groundplane.perfmodel.memory_layers import layer_memory
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.strategy import RECOMPUTE, Layouts
from groundplane.spec.llm import LlmSpec

SEQ = 2048


def one(model: LlmSpec, profile: MemoryProfile, kind: int = 0, skew: float = 1.0, **layout: float):
    layer = [layer for layer, _ in model.layer_groups()][kind]
    found = layer_memory(model, layer, SEQ, Layouts.of(**layout), profile, expert_skew=skew)
    return {field.name: float(getattr(found, field.name)[0]) for field in dataclasses.fields(found)}


def test_gpt_layer_is_that_of_korthikanti_without_dropout(gpt: LlmSpec, exact: MemoryProfile) -> None:
    # 34 s b h bytes (equation 2 without scores) less two dropout masks of 1 byte; and the softmax statistics.
    tokens = 3 * SEQ
    assert one(gpt, exact, micro_batch=3)["kept"] == 32 * tokens * 1024 + tokens * 16 * 4


def test_scores_are_kept_where_attention_is_not_fused_and_dropped_by_selective_recompute(
    gpt: LlmSpec, exact: MemoryProfile
) -> None:
    eager = msgspec.structs.replace(exact, fused_attention=False)
    plain = one(gpt, exact)["kept"]
    # 5 a s^2 b bytes (Korthikanti et al. 2022, equation 1).
    assert one(gpt, eager)["kept"] - plain == 5 * 16 * SEQ**2
    assert one(gpt, eager, recompute=RECOMPUTE.index("selective"))["kept"] == plain


def test_tensor_ranks_split_what_lies_between_their_collectives(gpt: LlmSpec, exact: MemoryProfile) -> None:
    # Inputs and outputs of two norms (8 s b h) are whole without sequence parallelism; the rest is split.
    tokens = SEQ
    statistics = tokens * 4 * 4
    assert one(gpt, exact, tp=4)["kept"] == tokens * 1024 * (8 + 24 / 4) + statistics
    assert one(gpt, exact, tp=4, sequence_parallel=1)["kept"] == tokens * 1024 * 32 / 4 + statistics


def test_context_ranks_split_the_tokens(llama: LlmSpec, exact: MemoryProfile) -> None:
    whole, split = one(llama, exact), one(llama, exact, cp=4)
    assert split["kept"] == whole["kept"] / 4
    assert whole["buffers"] == 0
    # The next keys and values and their gradients: 2 x 512 tokens x 4 heads x (64 + 64) x 2 bytes.
    assert split["buffers"] == 2 * 512 * 4 * 128 * 2


def test_grouped_heads_and_gated_block(llama: LlmSpec, exact: MemoryProfile) -> None:
    # Norms 4 x 1,024; queries, output 2 x 1,024; keys, values 2 x 256; gate, up, silu, product 4 x 3,072.
    width = 4 * 1024 + 2 * 1024 + 2 * 256 + 4 * 3072
    assert one(llama, exact)["kept"] == SEQ * (2 * width + 16 * 4)
    fused = msgspec.structs.replace(exact, fused_activation=True)
    assert one(llama, fused)["kept"] == SEQ * (2 * (width - 3072) + 16 * 4)


def test_fewer_key_heads_than_tensor_ranks_are_copied(llama: LlmSpec, exact: MemoryProfile) -> None:
    # 8 ranks, 4 heads of keys: each rank keeps one whole head of keys and one of values.
    found = one(llama, exact, tp=8, sequence_parallel=1)["kept"]
    width = 4 * 1024 / 8 + 2 * 1024 / 8 + 2 * 64 + 4 * 3072 / 8
    assert found == SEQ * (2 * width + 2 * 4)


def test_latent_attention_keeps_latents_and_all_heads(mla: LlmSpec, exact: MemoryProfile) -> None:
    # Norms 4 x 1,024; latents before and after their norms 2 x (256 + 128), shared rotary part 64; queries
    # and keys of 16 x 192, values and output of 16 x 128; block 4 x 3,072.
    width = 4 * 1024 + 2 * 384 + 64 + 2 * 16 * 192 + 2 * 16 * 128 + 4 * 3072
    assert one(mla, exact)["kept"] == SEQ * (2 * width + 16 * 4)


def test_experts_and_their_tokens(moe: LlmSpec, exact: MemoryProfile) -> None:
    routed = 2 * SEQ
    expected = SEQ * (2 * (4 * 1024 + 2 * 1024 + 2 * 256 + 4 * 1024) + 16 * 4)  # attention, shared experts
    expected += SEQ * 16 * 4  # router scores in float32
    expected += routed * 2 * (1024 + 4 * 512)  # tokens as experts read them, and inside
    found = one(moe, exact, kind=1, ep=4, dp=4)
    assert found["kept"] == expected
    assert found["experts"] == 16 * 3 * 1024 * 512 / 4
    assert found["buffers"] == 2 * routed * 1024 * 2


def test_a_skewed_router_fills_one_rank_more(moe: LlmSpec, exact: MemoryProfile) -> None:
    even = one(moe, exact, kind=1, ep=4, dp=4)
    skewed = one(moe, exact, kind=1, ep=4, dp=4, skew=1.5)
    assert skewed["kept"] - even["kept"] == 0.5 * 2 * SEQ * 2 * (1024 + 4 * 512)
    # One rank that holds all experts has all tokens, however they are routed.
    assert one(moe, exact, kind=1, skew=1.5) == one(moe, exact, kind=1)


def test_expert_parallel_without_tensor_parallel_and_with_it(moe: LlmSpec, exact: MemoryProfile) -> None:
    # Tensor ranks share a micro-batch's tokens among them unless experts are split over them too.
    alone = one(moe, exact, kind=1, ep=8, dp=8)
    spread = one(moe, exact, kind=1, ep=8, dp=8, tp=2, sequence_parallel=1)
    split = one(moe, exact, kind=1, ep=4, etp=2, dp=4, tp=2, sequence_parallel=1)
    assert spread["experts"] == split["experts"] == alone["experts"] == 16 * 3 * 1024 * 512 / 8
    assert spread["buffers"] == alone["buffers"] / 2 + 2 * SEQ * 1024 * 2
    # Inside experts half the width for twice the tokens; their input is read whole by either rank.
    assert split["kept"] - spread["kept"] == SEQ * 2 * 1024


@pytest.mark.parametrize("kind", [0, 1])
def test_recompute_in_full_and_of_a_share(moe: LlmSpec, exact: MemoryProfile, kind: int) -> None:
    whole = one(moe, exact, kind)
    full = one(moe, exact, kind, recompute=RECOMPUTE.index("full"))
    assert full["kept"] == SEQ * 1024 * 2
    assert full["whole"] == whole["kept"]
    share = one(moe, exact, kind, recompute=RECOMPUTE.index("block"), recompute_share=0.25)
    assert share["kept"] == pytest.approx(0.25 * full["kept"] + 0.75 * whole["kept"])


def test_many_layouts_at_once_are_each_their_own(moe: LlmSpec, exact: MemoryProfile) -> None:
    layer = moe.layers[-1]
    tp, ep = np.array([1.0, 2.0, 4.0, 4.0]), np.array([1.0, 4.0, 8.0, 16.0])
    many = layer_memory(moe, layer, SEQ, Layouts.of(tp=tp, ep=ep, dp=8), exact)
    for place, (tensor, expert) in enumerate(zip(tp, ep, strict=True)):
        alone = layer_memory(moe, layer, SEQ, Layouts.of(tp=tensor, ep=expert, dp=8), exact)
        assert many.kept[place] == alone.kept[0]
        assert many.experts[place] == alone.experts[0]
