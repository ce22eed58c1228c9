"""Properties of the price of a training step, over catalogue models and clusters."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.catalog.resolve import resolve_cluster, resolve_llm
from groundplane.perfmodel.estimate import STAGES
from groundplane.perfmodel.passes import Precision
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.strategy import RECOMPUTE, Layouts
from groundplane.perfmodel.training import TrainingJob, TrainingPrices, price_training
from groundplane.spec.cluster import ClusterSpec

PROFILE = StackProfile("test", fused_loss=True, ties_tensor_backward=True, overlaps_experts=True)
LLAMA = TrainingJob(resolve_llm("llama-3.1-8b"), 8192)
MOE = TrainingJob(resolve_llm("qwen3-30b-a3b"), 4096)

tp_sizes = st.sampled_from([1, 2, 4, 8, 16])
layout_fields = st.fixed_dictionaries(
    {
        "tp": tp_sizes,
        "cp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4, 8]),
        "vpp": st.sampled_from([1, 2]),
        "dp": st.sampled_from([1, 2, 8, 32]),
        "micro_batch": st.sampled_from([1, 2, 4]),
        "num_micro": st.sampled_from([1, 4, 16]),
        "zero": st.integers(0, 3),
        "sequence_parallel": st.integers(0, 1),
        "recompute": st.integers(0, len(RECOMPUTE) - 1),
        "recompute_share": st.sampled_from([0.0, 0.5, 1.0]),
    }
)


def cluster(chips: int) -> ClusterSpec:
    return resolve_cluster(f"h100x{chips}")


def price(job: TrainingJob, fields: dict[str, float], place: ClusterSpec | None = None) -> TrainingPrices:
    layouts = Layouts.of(**fields)
    return price_training(job, place or cluster(max(8, int(layouts.num_chips[0]))), layouts, PROFILE)


@given(layout_fields)
@settings(max_examples=60, deadline=None)
def test_stages_add_up_and_none_is_negative(fields: dict[str, float]) -> None:
    prices = price(LLAMA, fields)
    assert set(prices.stages_s) == set(STAGES)
    assert prices.step_s[0] == pytest.approx(sum(prices.stages_s[name][0] for name in STAGES))
    assert all(prices.stages_s[name][0] >= 0 for name in STAGES)
    assert np.isfinite(prices.step_s[0])


@given(st.lists(layout_fields, min_size=2, max_size=12))
@settings(max_examples=15, deadline=None)
def test_many_at_once_cost_what_each_costs_alone(rows: list[dict[str, float]]) -> None:
    place = cluster(8192)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    together = price_training(LLAMA, place, Layouts.of(**columns), PROFILE).step_s
    alone = [price(LLAMA, row, place).step_s[0] for row in rows]
    assert together == pytest.approx(np.array(alone), rel=1e-9)


@given(layout_fields, st.sampled_from(["memory", "compute", "scaleup", "nics"]))
@settings(max_examples=60, deadline=None)
def test_better_hardware_is_never_slower(fields: dict[str, float], what: str) -> None:
    place = cluster(max(16, int(Layouts.of(**fields).num_chips[0])))
    server, chip = place.server, place.server.chip
    if what == "memory":
        chip = msgspec.structs.replace(chip, memory_bytes_per_s=1.5 * chip.memory_bytes_per_s)
    elif what == "compute":
        peak = {name: 1.5 * rate for name, rate in chip.peak_flops_per_s.items()}
        chip = msgspec.structs.replace(chip, peak_flops_per_s=peak)
    elif what == "scaleup":
        chip = msgspec.structs.replace(chip, scaleup_bytes_per_s=1.5 * chip.scaleup_bytes_per_s)
    elif server.nics is not None:
        nics = msgspec.structs.replace(server.nics, rate_bytes_per_s=1.5 * server.nics.rate_bytes_per_s)
        server = msgspec.structs.replace(server, nics=nics)
    better = msgspec.structs.replace(place, server=msgspec.structs.replace(server, chip=chip))
    assert price(LLAMA, fields, better).step_s[0] <= price(LLAMA, fields, place).step_s[0] * (1 + 1e-9)


@given(layout_fields)
@settings(max_examples=40, deadline=None)
def test_more_micro_batches_never_lower_tokens_a_second(fields: dict[str, float]) -> None:
    once = price(LLAMA, fields).step_s[0]
    twice = price(LLAMA, fields | {"num_micro": 2 * fields["num_micro"]}).step_s[0]
    assert twice <= 2.0 * once * (1 + 1e-9)


@given(layout_fields)
@settings(max_examples=30, deadline=None)
def test_recompute_is_never_free(fields: dict[str, float]) -> None:
    none = price(LLAMA, fields | {"recompute": 0}).step_s[0]
    half = price(LLAMA, fields | {"recompute": 3, "recompute_share": 0.5}).step_s[0]
    full = price(LLAMA, fields | {"recompute": 2}).step_s[0]
    assert none <= half <= full


def test_one_chip_is_no_faster_than_its_peak_and_not_far_below() -> None:
    model = resolve_llm("llama-2-70b")
    job = TrainingJob(model, 4096)
    prices = price(job, {"micro_batch": 4, "num_micro": 64})
    flops = 3.0 * model.forward_flops_per_token(4096).total * 4 * 64 * 4096
    share = flops / prices.step_s[0] / cluster(8).chip.peak("bf16")
    assert 0.5 < share < 1.0


def test_experts_across_nodes_cost_more_than_within() -> None:
    fields = {"dp": 64, "ep": 8, "micro_batch": 1, "num_micro": 8}
    profile = msgspec.structs.replace(PROFILE, overlaps_experts=False)
    within, across = (
        price_training(MOE, cluster(64), Layouts.of(**fields | {"ep": ep}), profile).stages_s[
            "expert_communication"
        ][0]
        for ep in (8, 64)
    )
    assert 0 < within < across


def test_narrow_formats_are_faster_for_wide_models() -> None:
    model = resolve_llm("llama-3.1-70b")
    fields = {"tp": 4, "dp": 2, "micro_batch": 2, "num_micro": 8, "sequence_parallel": 1}
    bf16 = price(TrainingJob(model, 8192), fields).step_s[0]
    fp8 = price(TrainingJob(model, 8192, Precision("fp8")), fields).step_s[0]
    assert fp8 < bf16


def test_gathers_that_the_host_paces_hide_behind_enough_work() -> None:
    layout = Layouts.of(tp=8, dp=2, num_micro=8, sequence_parallel=1, micro_batch=[1, 2, 16])
    slow = msgspec.structs.replace(PROFILE, slow_gathers=True, hop_s=3e-4)
    quick, paced = (price_training(LLAMA, cluster(16), layout, one).step_s for one in (PROFILE, slow))
    # 32 layers x 10 collectives x 7 ranks x 0.3 ms a micro-batch, whatever its size.
    assert paced[0] / 8 > 32 * 10 * 7 * 3e-4
    assert paced[1] / paced[0] < 1.1 < quick[1] / quick[0]
    assert paced[2] / quick[2] < 1.05
    # One node has none of it.
    alone = Layouts.of(tp=8, num_micro=8, sequence_parallel=1)
    inside = [price_training(LLAMA, cluster(8), alone, one).step_s[0] for one in (PROFILE, slow)]
    assert inside[0] == inside[1]


def test_micro_batches_can_stand_still_in_pipelines_only() -> None:
    stalling = msgspec.structs.replace(PROFILE, stall_s=1.0, stalls_in_pipelines=True)
    layouts = Layouts.of(tp=[8, 4], pp=[1, 2], dp=2, num_micro=16)
    more = price_training(LLAMA, cluster(16), layouts, stalling).step_s
    less = price_training(LLAMA, cluster(16), layouts, msgspec.structs.replace(PROFILE, stall_s=0.0)).step_s
    assert np.allclose(more - less, [0.0, 16.0], atol=0.5)
