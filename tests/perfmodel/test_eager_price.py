"""The price of the built-in trainer: hand-made measurements, so that sums can be checked by hand."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.perfmodel import memory
from groundplane.perfmodel.eager import price_host_training
from groundplane.perfmodel.points import MeasuredTables
from groundplane.spec.cluster import (
    AttentionPoint,
    BandwidthPoint,
    ChipSpec,
    ClusterSpec,
    CollectivePoint,
    FabricSpec,
    MatmulPoint,
    MeasuredChip,
    OperatorPoint,
    OverheadPoint,
    ServerSpec,
)
from groundplane.spec.errors import InputError
from groundplane.spec.job import LlamaShape, TrainSpec

RATE = 1e11
"""FLOP/s of every product and of attention on the machine made up here."""


def machine(rate: float = RATE, element_s: float = 1e-9) -> ClusterSpec:
    operations = ("multiply", "add", "silu", "rms_norm", "copy", "cast", "cross_entropy", "adamw", "clip")
    measured = MeasuredChip(
        matmuls=tuple(
            MatmulPoint(dtype, n, n, n, 2 * n**3 / rate, processes=2, which=which)
            for dtype in ("fp32", "bf16")
            for n in (64, 1024)
            for which in ("forward", "data_gradient", "weight_gradient")
        ),
        attentions=tuple(
            AttentionPoint(dtype, 1, 256, 8, 8, 32, 4 * 8 * 256**2 * 32 / rate, 8 * 8 * 256**2 * 32 / rate)
            for dtype in ("fp32", "bf16")
        ),
        operators=tuple(
            OperatorPoint(name, dtype, n, n * element_s, n * element_s)
            for name in operations
            for dtype in ("fp32", "bf16")
            for n in (1 << 12, 1 << 22)
        ),
        overheads=(OverheadPoint("eager_forward", 2e-6), OverheadPoint("eager_backward", 3e-6)),
        bandwidths=(BandwidthPoint(1 << 25, 1e9, "first_touch"),),
    )
    chip = ChipSpec("core", "AMD", "cpu", {"fp32": rate, "bf16": rate}, 2**33, 2e10, measured=measured)
    return ClusterSpec(
        "here",
        ServerSpec("s", chip, 2, 2),
        1,
        FabricSpec("loopback", "loopback", 1e-5),
        collectives=(
            CollectivePoint("all_reduce", 2**20, 2, 1e-3),
            CollectivePoint("all_reduce", 2**26, 2, 64e-3),
        ),
    )


TRAIN = TrainSpec(model=LlamaShape(), seq=256, micro_batch=8, global_batch=16)


def test_matrix_time_is_flops_over_rate() -> None:
    estimate = price_host_training(TRAIN, 2, machine())
    matrices = 4096 * 256 + 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 704)
    assert estimate.stages_s["matmul"] == pytest.approx(6 * matrices * 8 * 256 / RATE)
    flops = 4 * 8 * 8 * 256**2 * 32 * (1 + 2)
    assert estimate.stages_s["attention"] == pytest.approx(4 * flops / RATE)


def test_gradients_of_four_million_parameters_take_their_share_of_the_loopback() -> None:
    estimate = price_host_training(TRAIN, 2, machine())
    assert estimate.stages_s["data_communication"] == pytest.approx(4 * 4_000_000 / 2**20 * 1e-3, rel=0.02)


def test_fsdp2_gathers_twice_a_micro_batch_and_scatters_once() -> None:
    place = machine()
    kinds = ("all_reduce", "all_gather", "reduce_scatter")
    points = tuple(CollectivePoint(kind, size, 2, size / 1e9) for kind in kinds for size in (2**10, 2**26))
    place = msgspec.structs.replace(place, collectives=points)
    train = msgspec.structs.replace(TRAIN, parallel="fsdp2", global_batch=64)
    estimate = price_host_training(train, 2, place)
    assert estimate.stages_s["data_communication"] == pytest.approx((4 * 2 + 1) * 16e6 / 1e9, rel=1e-3)


def test_stages_add_up_and_the_largest_is_the_bottleneck() -> None:
    estimate = price_host_training(TRAIN, 2, machine())
    assert sum(estimate.stages_s.values()) == pytest.approx(estimate.step_s)
    assert estimate.bottleneck.startswith("matrix products")
    assert estimate.tokens_per_s == pytest.approx(16 * 256 / estimate.step_s)
    assert 0 < estimate.mfu < 1


def test_a_faster_machine_is_never_slower() -> None:
    slow = price_host_training(TRAIN, 2, machine())
    assert price_host_training(TRAIN, 2, machine(rate=2 * RATE)).step_s < slow.step_s
    assert price_host_training(TRAIN, 2, machine(element_s=0.5e-9)).step_s < slow.step_s


def test_one_rank_exchanges_nothing() -> None:
    assert price_host_training(TRAIN, 1, machine()).stages_s["data_communication"] == 0.0


def test_more_ranks_than_cores_are_refused() -> None:
    with pytest.raises(InputError, match="larger than the machine"):
        price_host_training(msgspec.structs.replace(TRAIN, global_batch=64), 4, machine())


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_tensor_by_tensor(tied: bool) -> None:
    shape = LlamaShape(layers=2, hidden=8, ffn=16, heads=2, kv_heads=1, vocab=300, tied_embeddings=tied)
    layer = 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16 + 2 * 8
    assert memory.llama_parameters(shape) == 2 * layer + 8 + 300 * 8 * (1 if tied else 2)


@given(elements=st.integers(1, 2**34))
def test_operator_times_grow_with_size(elements: int) -> None:
    tables = MeasuredTables(machine().chip.measured, 2)
    shorter, _ = tables.operator_s("add", "fp32", elements)
    longer, _ = tables.operator_s("add", "fp32", 2 * elements)
    assert longer >= shorter


@given(m=st.integers(1, 10**6), n=st.integers(1, 10**5), k=st.integers(1, 10**5))
def test_equal_rates_give_flops_over_rate_for_any_shape(m: int, n: int, k: int) -> None:
    tables = MeasuredTables(machine().chip.measured, 2)
    assert np.isclose(tables.matmul_s("fp32", m, n, k, "forward"), 2.0 * m * n * k / RATE)
