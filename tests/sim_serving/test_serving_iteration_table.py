"""The table of iteration times against the model it was made of, and its compiled form against it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from groundplane.catalog.resolve import resolve_cluster
from groundplane.perfmodel.collectives import cluster_links
from groundplane.perfmodel.serving import IterationPricer
from groundplane.perfmodel.serving_layout import ServingLayout, formats_of
from groundplane.perfmodel.serving_models import serving_llm
from groundplane.perfmodel.serving_profiles import serving_calibration
from groundplane.sim.serving.engine_table import engine_parts, engine_table
from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast import price
from groundplane.sim.serving.fast.price import make_prices
from groundplane.sim.serving.iteration import cell, knots, linear_table, tabulate
from groundplane.sim.serving.outcome import NUM_GAP_BINS, gap_bin, gap_bin_edges_ns
from groundplane.spec.errors import InputError

CASES = (
    ("llama-3.1-70b", "h100x8", ServingLayout(tp=4), "fp8", "vllm"),
    ("llama-3.1-8b", "h100x8", ServingLayout(), "bf16", "sglang"),
    ("deepseek-v3", "h100x8", ServingLayout(tp=8, expert_tp=8), "fp8", "vllm"),
    ("gpt-oss-120b", "h100x8", ServingLayout(tp=2, expert_tp=2), "bf16", "vllm"),
)


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
@pytest.mark.parametrize(("name", "cluster_name", "layout", "weights", "engine"), CASES)
def test_interpolation_is_within_one_per_cent(
    name: str, cluster_name: str, layout: ServingLayout, weights: str, engine: str
) -> None:
    cluster, model = resolve_cluster(cluster_name), serving_llm(name)
    formats = formats_of(model, weights, "bf16")
    pricer = IterationPricer(cluster.chip, cluster_links(cluster), model, layout, formats)
    profile = serving_calibration().profile(engine)
    table = engine_table(pricer, profile)
    parts = engine_parts(pricer, profile)
    draw = np.random.default_rng(1)
    worst = 0.0
    for _ in range(400):
        decode = int(draw.integers(0, 257)) if draw.random() < 0.7 else int(draw.integers(0, 9))
        prefill = int(np.exp(draw.uniform(0, 8.9))) if decode == 0 or draw.random() < 0.6 else 0
        decode = min(decode, 255) if prefill else decode
        context = int(decode * np.exp(draw.uniform(3, 11.5)))
        before = int(np.exp(draw.uniform(0, 11.5))) if prefill and draw.random() < 0.5 else 0
        got = table.iteration_ns(decode, context, [(prefill, before)] if prefill else [])
        batch = (decode, context / max(decode, 1), prefill, before, 1)
        exact = sum(float(part[0]) for part in parts(*(np.array([float(value)]) for value in batch))) * 1e9
        worst = max(worst, abs(got / exact - 1))
    assert worst < 0.01


def test_a_linear_table_is_exact() -> None:
    table = linear_table(base_ns=1_000_000, sequence_ns=10, context_ps=2_000, prompt_token_ns=3)
    assert table.iteration_ns(7, 7 * 130, []) == 1_000_000 + 70 + 7 * 130 * 2
    assert table.iteration_ns(0, 0, [(100, 3)]) == 1_000_000 + 300
    # The second prompt's last row is priced as one more sequence, the rest as prompt tokens.
    assert table.iteration_ns(5, 500, [(100, 3), (50, 9)]) == 1_000_000 + 60 + 149 * 3 + 1_000


def test_two_prompts_cost_about_their_sum() -> None:
    table = linear_table(base_ns=0, prompt_token_ns=1_000)
    alone = table.iteration_ns(0, 0, [(700, 0)])
    assert table.iteration_ns(0, 0, [(300, 0), (400, 0)]) == pytest.approx(alone, rel=0.002)


def test_a_time_that_is_none_is_refused() -> None:
    def parts(decode, context, prefill, before, prompts):
        return np.nan * decode * context, 0.0 * decode * context, 0.0 * prefill * before

    with pytest.raises(InputError, match=r"0 to 1,000 s"):
        tabulate(parts, max_sequences=4, max_batched_tokens=8, max_context=16)


@given(st.integers(min_value=0, max_value=1 << 40))
def test_cells_are_between_their_knots(value: int) -> None:
    values = knots(value)
    assert values[cell(value)] <= value < values[cell(value) + 1]


def test_gap_bins_are_between_their_edges() -> None:
    edges = gap_bin_edges_ns()
    assert len(edges) == NUM_GAP_BINS + 1
    assert [gap_bin(int(edge)) for edge in edges[:-1]] == list(range(NUM_GAP_BINS))
    assert (np.diff(edges)[128:] / edges[128:-1]).max() <= 1 / 128


@given(
    decode=st.integers(min_value=0, max_value=60),
    mean=st.integers(min_value=1, max_value=4000),
    pieces=st.lists(
        st.tuples(st.integers(min_value=1, max_value=200), st.integers(min_value=0, max_value=3500)),
        max_size=4,
    ),
)
@settings(max_examples=60, deadline=None)
def test_the_compiled_price_is_the_plain_one(decode: int, mean: int, pieces: list[tuple[int, int]]) -> None:
    def parts(num, context, prefill, before, prompts):
        rest = (num + 1) ** 0.7 * 1e-4 + prefill**1.1 * 1e-6 + 0 * before
        return rest, num * context**0.9 * 1e-8, prefill * (prefill + before) * 1e-9

    table = tabulate(parts, max_sequences=64, max_batched_tokens=1024, max_context=4096)
    prices, (found,) = make_prices([table])
    replica = np.zeros(c.NUM_REPLICA, dtype=np.int64)
    for column, value in found.items():
        replica[column] = value
    if decode == 0 and not pieces:
        return
    given_pieces = np.array(pieces, dtype=np.int64).reshape(-1, 2)
    compiled_ns = sum_of_prices(prices, replica, decode, decode * mean, given_pieces)
    assert compiled_ns == table.iteration_ns(decode, decode * mean, pieces)


@njit
def sum_of_prices(prices, replica, decode, context, pieces):
    """What `batch.start` adds up."""
    total = 0 if len(pieces) else prices[replica[c.DECODE_AT] + decode]
    for place in range(len(pieces)):
        total += price.piece_ns(prices, replica, pieces[place, 0], pieces[place, 1])
    if len(pieces):
        total += price.rows_ns(prices, replica, decode, len(pieces), pieces[:, 0].sum())
    if decode:
        total += price.attend_ns(prices, replica, decode, context)
    return max(total, 1)
