"""One engine run through requests: by hand, against known queues, and by what must hold for any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.serving_loop import (
    LoopLimits,
    LoopTimes,
    at_plane,
    at_row,
    closed_loop,
    open_loop,
    queued_s,
)
from groundplane.perfmodel.serving_tables import (
    CELL_STEPS,
    MOST_CONTEXT,
    MOST_ROWS,
    MOST_SEQUENCES,
    ROW_STEPS,
    EngineSeconds,
    grid,
)


def engine(
    row_s: float = 1e-6, read_s: float = 0.0, base_s: float = 5e-3, prompt_s: float = 0.0
) -> EngineSeconds:
    """An engine whose times are straight lines: so much an iteration, row, token read, pair attended."""
    rows = grid(MOST_ROWS, ROW_STEPS)
    sequences, context = grid(MOST_SEQUENCES, CELL_STEPS), grid(MOST_CONTEXT, CELL_STEPS)
    tokens, before = grid(MOST_ROWS, CELL_STEPS), np.concatenate([[0.0], grid(MOST_CONTEXT, CELL_STEPS)])
    return EngineSeconds(
        dense_s=row_s * rows,
        expert_s=np.zeros_like(rows),
        head_s=np.zeros_like(rows),
        reading_s=read_s * sequences[:, None] * context[None, :],
        prompt_s=prompt_s * tokens[:, None] * (1.0 + before[None, :]),
        host_s=base_s,
        host_sequence_s=0.0,
        prompts=1.0,
        tokens=1.0,
    )


def limits(**more: float) -> LoopLimits:
    given = {"chunk_tokens": 8192, "max_sequences": 1024, "cache_tokens": 1e9} | more
    return LoopLimits(**given)  # type: ignore[arg-type]


def tokens(*values: float) -> FloatArray:
    return np.array(values, dtype=np.float64)


def test_one_request_takes_its_prompt_and_then_its_tokens() -> None:
    times = open_loop(engine(), limits(), tokens(1000), tokens(11), tokens(2.0))
    assert times.ttft_s[0] == pytest.approx(5e-3 + 1000e-6, rel=1e-6)
    assert times.decode_s[0] == pytest.approx(10 * (5e-3 + 1e-6), rel=1e-6)
    assert times.end_s[0] == pytest.approx(2.0 + times.ttft_s[0] + times.decode_s[0])


def test_a_prompt_beyond_the_limit_takes_several_iterations() -> None:
    times = open_loop(engine(), limits(chunk_tokens=400), tokens(1000), tokens(1), tokens(0.0))
    assert times.ttft_s[0] == pytest.approx(3 * 5e-3 + 1000e-6, rel=1e-6)
    assert times.decode_s[0] == 0.0


def test_decoding_waits_for_a_prompt_that_joins_and_pauses_where_prompts_go_first() -> None:
    arrivals = tokens(0.0, 1e-3)
    mixed = open_loop(engine(), limits(), tokens(10, 1000), tokens(3, 1), arrivals)
    alone = open_loop(engine(), limits(prompts_first=True), tokens(10, 1000), tokens(3, 1), arrivals)
    # Mixed: the second iteration holds the second prompt and one decoding row.
    assert mixed.decode_s[0] == pytest.approx(5e-3 + 1001e-6 + 5e-3 + 1e-6, rel=1e-6)
    assert alone.decode_s[0] == pytest.approx(5e-3 + 1000e-6 + 2 * (5e-3 + 1e-6), rel=1e-6)


def test_requests_wait_for_room_in_the_cache() -> None:
    # Each holds 1,000 + 50 tokens in the middle of its life: the second waits for the first.
    times = open_loop(engine(), limits(cache_tokens=1500), tokens(1000, 1000), tokens(101, 101), tokens(0, 0))
    assert times.ttft_s[1] == pytest.approx(times.end_s[0] + times.ttft_s[0], rel=1e-6)


def test_ranks_in_lock_step_share_the_load() -> None:
    prompt, output = np.full(64, 500.0), np.full(64, 20.0)
    one = closed_loop(engine(), limits(), prompt, output, 16, 0.0)
    four = closed_loop(engine(), limits(ranks=4), prompt, output, 16, 0.0)
    assert four.end_s.max() < one.end_s.max()
    assert four.ttft_s.mean() < one.ttft_s.mean()


def test_a_queue_of_equal_services_has_the_mean_wait_of_m_d_1() -> None:
    # Poisson arrivals, one prompt an iteration, no decoding: wait = s rho / (2 (1 - rho)).
    number, service_s, busy = 60_000, 6e-3, 0.7
    arrivals = np.cumsum(np.random.default_rng(3).exponential(service_s / busy, number))
    seconds = engine(row_s=1e-6, base_s=5e-3)
    times = open_loop(seconds, limits(chunk_tokens=1000), np.full(number, 1000.0), np.ones(number), arrivals)
    expected = service_s + service_s * busy / (2.0 * (1.0 - busy))
    assert times.ttft_s.mean() == pytest.approx(expected, rel=0.02)


def test_a_closed_queue_is_counted_by_hand() -> None:
    # Two clients, one server of 1 s, 3 s between: the second waits once, then they never meet.
    assert queued_s(2, 6, 1, 1.0, 3.0) == pytest.approx((1 + 2 + 1 + 1 + 1 + 1) / 6)
    assert queued_s(4, 8, 4, 1.0, 0.0) == 1.0


def test_tables_are_read_between_their_points() -> None:
    line, plane = grid(MOST_ROWS, ROW_STEPS), engine(read_s=1.0).reading_s
    assert at_row(line, 1234.5) == pytest.approx(1234.5)
    assert at_row(line, 0.0) == 1.0
    assert at_plane(plane, 3.0, 700.0, shift=0) == pytest.approx(2100.0)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    number=st.integers(1, 60),
    clients=st.integers(1, 20),
    ranks=st.sampled_from([1, 2, 4]),
    chunk=st.sampled_from([64, 512, 8192]),
    first=st.booleans(),
    room=st.sampled_from([3000.0, 1e9]),
)
def test_every_request_ends_once_and_time_never_runs_backwards(
    seed: int, number: int, clients: int, ranks: int, chunk: int, first: bool, room: float
) -> None:
    draw = np.random.default_rng(seed)
    prompt, output = np.round(draw.uniform(1, 2000, number)), np.round(draw.uniform(1, 100, number))
    bound = limits(chunk_tokens=chunk, ranks=ranks, prompts_first=first, cache_tokens=room, max_sequences=8)
    times: LoopTimes = closed_loop(engine(read_s=1e-9), bound, prompt, output, clients, 1e-3)
    assert (times.ttft_s > 0).all()
    assert (times.decode_s >= -1e-12).all()
    assert (times.end_s > 0).all()
    # A request is never faster than alone: each token after the first takes an iteration.
    assert (times.decode_s >= (output - 1) * 5e-3 - 1e-9).all()
    again = closed_loop(engine(read_s=1e-9), bound, prompt, output, clients, 1e-3)
    assert (again.end_s == times.end_s).all()
