"""Curves of single kernels against numbers computed by hand, and their limits."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.perfmodel.curves import AttentionCurve, MatmulCurve, MemoryCurve, smooth_max

PLAIN = MatmulCurve(
    peak_flops_per_s=1e12,
    memory_bytes_per_s=1e12,
    num_cores=4,
    input_bytes=2.0,
    output_bytes=2.0,
    efficiency=1.0,
    memory_efficiency=1.0,
    floor_s=0.0,
    fill_k=0.0,
    wave_weight=1.0,
    sharpness=200.0,
    tile_load=0.0,
    loop_s_per_k=0.0,
    tiles=((10, 10),),
)
SIZES = st.integers(1, 20_000)


def test_one_full_wave_takes_the_time_of_its_tiles() -> None:
    # 4 tiles of 10 x 10 x 100 on 4 cores of 0.25 TFLOP/s: 2 * 100 * 100 FLOP / 0.25e12.
    assert float(PLAIN.time_s(20, 20, 100)) == pytest.approx(8e-8)


def test_one_row_too_many_opens_a_second_wave() -> None:
    # 3 x 2 tiles on 4 cores are two waves.
    assert float(PLAIN.time_s(21, 20, 100)) == pytest.approx(1.6e-7)


def test_balanced_schedules_feel_no_tail() -> None:
    even = msgspec.structs.replace(PLAIN, wave_weight=0.0)
    # 6 tiles on 4 cores are 1.5 waves.
    assert float(even.time_s(21, 20, 100)) == pytest.approx(1.2e-7)


def test_thin_product_takes_the_time_of_its_bytes() -> None:
    # 1 x 1000 by 1000 x 1000 on a chip with much compute: 2 (1 + 1000) 1000 + 2 * 1000 bytes.
    fast = msgspec.structs.replace(PLAIN, peak_flops_per_s=1e15)
    assert float(fast.time_s(1, 1000, 1000)) == pytest.approx(2_004_000 / 1e12, rel=1e-3)


def test_fill_floor_cast_and_batch_add_up() -> None:
    curve = msgspec.structs.replace(PLAIN, fill_k=50.0, floor_s=1e-6, cast_bytes=3.0)
    # Two products: 8 tiles, 2 waves of 2 * 100 * (100 + 50) / 0.25e12, and 3 bytes for each of 2 * 20 * 100.
    expected = 1e-6 + 2 * 1.2e-7 + 3 * 4000 / 1e12
    assert float(curve.time_s(20, 20, 100, batch=2)) == pytest.approx(expected, rel=1e-3)
    without = expected - 3 * 4000 / 1e12
    assert float(curve.time_s(20, 20, 100, batch=2, cast=False)) == pytest.approx(without, rel=1e-3)


def test_best_tile_is_chosen() -> None:
    both = msgspec.structs.replace(PLAIN, tiles=((10, 10), (30, 30)))
    # 20 x 20: four small tiles in one wave, or one large tile on one core.
    assert float(both.time_s(20, 20, 100)) == pytest.approx(8e-8)


def test_smooth_max() -> None:
    assert float(smooth_max(np.array(3.0), np.array(4.0), 2.0)) == pytest.approx(5.0)
    assert float(smooth_max(np.array(0.0), np.array(0.0), 3.0)) == 0.0
    assert float(smooth_max(np.array(1e-9), np.array(2.0), 4.0)) == pytest.approx(2.0)


def test_memory_curve() -> None:
    assert float(MemoryCurve(1e12, efficiency=0.5, floor_s=1e-6).time_s(1e9)) == pytest.approx(2.001e-3)


ATTENTION = AttentionCurve(
    peak_flops_per_s=1e12,
    memory_bytes_per_s=1e18,
    num_cores=1,
    element_bytes=2.0,
    efficiency=1.0,
    memory_efficiency=1.0,
    floor_s=0.0,
    fill_blocks=0.0,
    wave_weight=1.0,
    sharpness=200.0,
    cache_passes=0.0,
)


def test_full_attention_does_two_products() -> None:
    # 2 heads x 256 queries x 512 keys x 128, two products of 2 FLOP.
    seconds = float(ATTENTION.time_s(1, 256, 512, 2, 2, 128, causal=False))
    assert seconds == pytest.approx(4 * 2 * 256 * 512 * 128 / 1e12, rel=1e-3)


def test_causal_attention_visits_the_lower_blocks() -> None:
    # 4 blocks of queries see 1, 2, 3 and 4 blocks of keys: 10 of 16.
    whole = float(ATTENTION.time_s(1, 512, 512, 1, 1, 128, causal=False))
    causal = float(ATTENTION.time_s(1, 512, 512, 1, 1, 128, causal=True))
    assert causal / whole == pytest.approx(10 / 16, rel=1e-3)


def test_backward_is_five_products_at_a_lower_rate() -> None:
    forward = float(ATTENTION.time_s(1, 1024, 1024, 8, 8, 128))
    backward = float(ATTENTION.time_s(1, 1024, 1024, 8, 8, 128, backward=True))
    assert backward / forward == pytest.approx(2.5 / 0.82, rel=1e-3)


def test_one_query_over_a_long_cache_is_bound_by_its_bytes() -> None:
    slow = msgspec.structs.replace(ATTENTION, memory_bytes_per_s=1e9)
    # One query of 8 heads, 1024 keys of 2 heads, keys and values of 128, 2 bytes each.
    expected = (8 * 1 + 2 * 1024) * 256 * 2 / 1e9
    assert float(slow.time_s(1, 1, 1024, 8, 2, 128)) == pytest.approx(expected, rel=1e-2)


def test_one_query_packs_the_heads_of_a_group() -> None:
    # 32 heads on 8 key heads: 4 rows each, computed as 16, over 4096 keys on all cores.
    many_cores = msgspec.structs.replace(ATTENTION, num_cores=100)
    expected = 2 * 8 * 16 * 4096 * 256 / 1e12
    assert float(many_cores.time_s(1, 1, 4096, 32, 8, 128)) == pytest.approx(expected, rel=1e-3)


def test_values_of_another_width() -> None:
    narrow = float(ATTENTION.time_s(1, 512, 512, 1, 1, 192, value_dim=128, causal=False))
    assert narrow == pytest.approx(2 * 512 * 512 * 320 / 1e12, rel=0.05)


def test_engine_work_around_attention_only_adds() -> None:
    curve = msgspec.structs.replace(ATTENTION, floor_s=1e-5, cache_passes=1.0, memory_bytes_per_s=1e12)
    plain = float(curve.time_s(1, 512, 512, 8, 2, 128))
    engine = float(curve.time_s(1, 512, 512, 8, 2, 128, cache_write=True))
    # 0.6 of the floor, and queries of 8, keys and values of 2 heads once.
    assert engine - plain == pytest.approx(0.6e-5 + 512 * (8 + 2 * 2) * 128 * 2 / 1e12, rel=1e-3)


@given(SIZES, SIZES, SIZES)
def test_products_never_beat_the_roofline(m: int, n: int, k: int) -> None:
    curve = msgspec.structs.replace(PLAIN, efficiency=1.5)
    assert float(curve.time_s(m, n, k)) >= 2.0 * m * n * k / curve.peak_flops_per_s * (1 - 1e-12)


@given(SIZES, SIZES, SIZES)
def test_more_bandwidth_is_never_slower(m: int, n: int, k: int) -> None:
    faster = msgspec.structs.replace(PLAIN, memory_bytes_per_s=2e12)
    assert float(faster.time_s(m, n, k)) <= float(PLAIN.time_s(m, n, k)) * (1 + 1e-12)


def test_arrays_broadcast_and_equal_single_calls() -> None:
    m = np.array([16, 4096, 300])
    k = np.array([[512], [7168]])
    grid = PLAIN.time_s(m, 1024, k)
    assert grid.shape == (2, 3)
    assert grid[1, 2] == float(PLAIN.time_s(300, 1024, 7168))
