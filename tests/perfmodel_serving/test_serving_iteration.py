"""One iteration, by hand-computed numbers and by what must hold for any."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.catalog.resolve import resolve_cluster, resolve_llm
from groundplane.perfmodel.collectives import cluster_links
from groundplane.perfmodel.serving import IterationPricer
from groundplane.perfmodel.serving_layout import (
    ServingFormats,
    ServingLayout,
    cache_bytes_per_token,
    cache_capacity,
    formats_of,
    weight_bytes_per_chip,
)
from groundplane.perfmodel.serving_models import serving_llm
from groundplane.perfmodel.serving_tables import tokens_per_iteration
from groundplane.spec.errors import InputError


def pricer(
    model: str, cluster: str, weights: str, layout: ServingLayout, cache: str = "bf16"
) -> IterationPricer:
    llm, where = resolve_llm(model), resolve_cluster(cluster)
    return IterationPricer(where.chip, cluster_links(where), llm, layout, formats_of(llm, weights, cache))


def total_s(one: IterationPricer, decode: float, context: float, prefill: float = 0.0) -> float:
    return float(sum(one.price(decode, context, prefill).stages().values()))


def test_cache_of_llama_3_70b_is_counted_by_hand() -> None:
    model = resolve_llm("llama-3.1-70b")
    formats = formats_of(model, "fp8", "bf16")
    # 80 layers, keys and values of 8 heads of 128 in 2 bytes.
    assert cache_bytes_per_token(model, ServingLayout(), formats) == 80 * 2 * 8 * 128 * 2
    # With 16 ranks two hold each key head.
    assert cache_bytes_per_token(model, ServingLayout(tp=16), formats) == 80 * 2 * 1 * 128 * 2


def test_latent_cache_is_held_by_every_rank() -> None:
    model = resolve_llm("deepseek-v3")
    formats = formats_of(model, "fp8", "fp8")
    layout = ServingLayout(tp=8, expert_ep=8)
    assert cache_bytes_per_token(model, layout, formats) == 61 * (512 + 64)


def test_weights_of_four_bits_leave_attention_wide_in_mixtures() -> None:
    assert formats_of(resolve_llm("deepseek-r1"), "fp4", "fp8") == ServingFormats(
        "bf16", "fp4", "bf16", "fp8"
    )
    assert formats_of(resolve_llm("llama-3.1-8b"), "fp4", "fp8") == ServingFormats("fp4", "fp4", "fp4", "fp8")


def test_capacity_is_what_memory_leaves() -> None:
    chip, model = resolve_cluster("h100x8").chip, resolve_llm("llama-3.1-8b")
    formats = formats_of(model, "bf16", "bf16")
    capacity = cache_capacity(chip, model, ServingLayout(), formats)
    weights = weight_bytes_per_chip(model, ServingLayout(), formats)
    assert weights == pytest.approx(2.0 * model.parameters().total, rel=1e-3)
    left = 0.9 * chip.memory_bytes - 3e9 - weights
    assert capacity.num_blocks == int(left // (16 * 131072))
    assert capacity.num_sequences(16) == pytest.approx(left / (16 * 131072), rel=1e-9)


def test_decoding_one_sequence_is_reading_the_weights() -> None:
    one = pricer("llama-3.1-70b", "h200x8", "fp8", ServingLayout())
    seconds = total_s(one, 1.0, 1.0)
    at_full_rate = 70.5e9 / one.chip.memory_bytes_per_s
    assert at_full_rate < seconds < 1.8 * at_full_rate


def test_a_long_prompt_is_bound_by_products() -> None:
    one = pricer("llama-3.1-70b", "h200x8", "fp8", ServingLayout(tp=4))
    flops = 2.0 * 70e9 * 8192
    least_s = flops / (4 * one.chip.peak("fp8"))
    assert least_s < total_s(one, 0.0, 0.0, 8192.0) < 4.0 * least_s


def test_tokens_per_iteration_of_drafts() -> None:
    assert [tokens_per_iteration(drafts, 0.5) for drafts in (0.0, 1.0, 3.0)] == [1.0, 1.5, 1.875]


@pytest.mark.parametrize(
    ("model", "weights", "layout"),
    [
        ("llama-3.1-8b", "bf16", ServingLayout(tp=2)),
        ("gpt-oss-120b", "fp4", ServingLayout(tp=4, expert_tp=4)),
        ("deepseek-v3", "fp8", ServingLayout(attention_dp=8, expert_ep=8)),
        ("deepseek-v3", "fp8_block", ServingLayout(tp=8, expert_tp=8)),
    ],
)
@settings(deadline=None, max_examples=25)
@given(decode=st.floats(1, 512), context=st.floats(16, 32768), prefill=st.floats(1, 8192))
def test_more_work_takes_longer(
    model: str, weights: str, layout: ServingLayout, decode: float, context: float, prefill: float
) -> None:
    one = pricer(model, "h200x8", weights, layout)
    quiet = total_s(one, decode, context)
    assert quiet > 0
    assert total_s(one, decode, 2 * context) >= quiet
    assert total_s(one, decode, context, prefill) >= 0.9 * quiet


def test_hybrids_and_sparse_models_are_described() -> None:
    assert serving_llm("glm-5").parameters().total == pytest.approx(744e9, rel=0.02)
    assert serving_llm("qwen3.5-397b-a17b").parameters().total == pytest.approx(397e9, rel=0.03)


@pytest.mark.parametrize(
    ("layout", "field"),
    [
        (ServingLayout(tp=0), "tp"),
        (ServingLayout(pp=99), "pp"),
        (ServingLayout(tp=64), "tp"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(layout: ServingLayout, field: str) -> None:
    with pytest.raises(InputError) as caught:
        layout.checked(resolve_llm("llama-3.1-8b"))
    assert caught.value.field == field


def test_unknown_formats_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="weights"):
        formats_of(resolve_llm("llama-3.1-8b"), "fp3", "bf16")
