"""Peak memory of whole layouts: by hand, and what must hold for all of them."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.perfmodel.estimate import MEMORY_PARTS
from groundplane.perfmodel.memory_profile import MemoryProfile, shipped_memory
from groundplane.perfmodel.memory_stages import all_stages, full_stages, micro_batches_in_flight
from groundplane.perfmodel.memory_training import (
    pipeline_stages,
    stage_parameters,
    stage_states,
    training_memory,
    usable_bytes,
)
from groundplane.perfmodel.strategy import RECOMPUTE, SCHEDULES, Layouts
from groundplane.spec.llm import AttentionSpec, LayerSpec, LlmSpec, MlpSpec, MoeSpec

SEQ = 2048
FULL = float(RECOMPUTE.index("full"))
MODEL = LlmSpec(
    "moe", "test", 512, 8192,
    (
        LayerSpec(AttentionSpec(8, 4, 64, 64), MlpSpec(1024)),
        *(LayerSpec(AttentionSpec(8, 4, 64, 64), moe=MoeSpec(16, 2, 256, shared_ffn=256)),) * 7,
    ),
)  # fmt: skip


def peak(model: LlmSpec, profile: MemoryProfile, **layout: float) -> dict[str, float]:
    found = training_memory(model, SEQ, Layouts.of(**layout), profile)
    parts = {name: float(found.parts_bytes[name][0]) for name in MEMORY_PARTS}
    assert sum(parts.values()) == pytest.approx(float(found.needed_bytes[0]))
    return parts | {"needed": float(found.needed_bytes[0]), "stage": float(found.stage[0])}


@pytest.mark.parametrize(
    ("zero", "expected"), [(0, (2, 4, 12)), (1, (2, 4, 3)), (2, (2, 1, 3)), (3, (0.5, 1, 3))]
)
def test_states_under_zero(
    llama: LlmSpec, exact: MemoryProfile, zero: int, expected: tuple[float, ...]
) -> None:
    parameters = llama.parameters().total
    found = peak(llama, exact, dp=4, zero=zero)
    assert (found["weights"], found["gradients"], found["optimizer"]) == pytest.approx(
        tuple(parameters * each for each in expected)
    )


def test_hybrid_sharding_shards_within_its_group_only(llama: LlmSpec, exact: MemoryProfile) -> None:
    parameters = llama.parameters().total
    assert peak(llama, exact, dp=8, zero=3, shard=2)["optimizer"] == pytest.approx(6 * parameters)


def test_context_ranks_shard_states_too(llama: LlmSpec, exact: MemoryProfile) -> None:
    assert peak(llama, exact, dp=2, cp=4, zero=1)["optimizer"] == pytest.approx(
        12 / 8 * llama.parameters().total
    )


def test_experts_are_sharded_over_the_ranks_that_hold_the_same_ones(
    moe: LlmSpec, exact: MemoryProfile
) -> None:
    counts = moe.parameters()
    dense = counts.total - counts.experts
    # 16 ranks; experts on 8 of them, so that each is held twice.
    found = peak(moe, exact, dp=16, ep=8, zero=1)
    assert found["weights"] == pytest.approx(2 * (dense + counts.experts / 8))
    assert found["optimizer"] == pytest.approx(12 * (dense / 16 + counts.experts / 8 / 2))
    # One copy of each expert: its optimizer states are not sharded at all.
    found = peak(moe, exact, dp=16, ep=16, zero=1)
    assert found["optimizer"] == pytest.approx(12 * (dense / 16 + counts.experts / 16))


def test_whole_rank_by_hand(llama: LlmSpec, exact: MemoryProfile) -> None:
    found = peak(llama, exact, dp=2, zero=1, micro_batch=2)
    tokens = 2 * SEQ
    layer = tokens * (2 * (4 * 1024 + 2 * 1024 + 2 * 256 + 4 * 3072) + 64)
    assert found["activations"] == 8 * layer + 2 * tokens * 1024 * 2  # the final norm's input and output
    assert found["buffers"] == tokens * 32000 * 10
    assert found["runtime"] == 0


def test_first_stage_has_most_micro_batches_in_flight(gpt: LlmSpec, exact: MemoryProfile) -> None:
    exact = msgspec.structs.replace(exact, logit_bytes=0.0)
    found = peak(gpt, exact, pp=4, num_micro=16)
    layer = 32 * SEQ * 1024 + SEQ * 16 * 4
    assert found["activations"] == 4 * 2 * layer
    assert found["stage"] == 0
    assert peak(gpt, exact, pp=4, num_micro=2)["activations"] == 2 * 2 * layer


def test_the_head_makes_the_last_stage_the_fullest(exact: MemoryProfile) -> None:
    layer = LayerSpec(AttentionSpec(8, 8, 64, 64), MlpSpec(1024))
    model = LlmSpec("wide", "test", 512, 250_000, (layer,) * 4)
    found = peak(model, exact, pp=4, num_micro=8, micro_batch=4, recompute=FULL)
    assert found["stage"] == 3
    assert found["buffers"] == 4 * SEQ * 250_000 * 10


def test_recompute_needs_one_layer_whole(llama: LlmSpec, exact: MemoryProfile) -> None:
    small = msgspec.structs.replace(exact, logit_bytes=0.0)
    found = peak(llama, small, recompute=FULL)
    layer = SEQ * (2 * (4 * 1024 + 2 * 1024 + 2 * 256 + 4 * 3072) + 64)
    assert found["buffers"] == layer
    assert found["activations"] == 8 * SEQ * 1024 * 2 + 2 * SEQ * 1024 * 2


def test_sharded_weights_are_gathered_layer_by_layer(llama: LlmSpec, exact: MemoryProfile) -> None:
    small = msgspec.structs.replace(exact, logit_bytes=0.0)
    layer = 1024 * (1024 + 2 * 256 + 1024) + 3 * 1024 * 3072 + 2 * 1024
    edges = 2 * 32000 * 1024 + 1024
    found = peak(llama, small, dp=4, zero=3)
    assert found["buffers"] == 2 * (2 * layer + edges) + (2 + 4) * layer


def test_the_optimizer_step_can_be_the_peak(llama: LlmSpec, exact: MemoryProfile) -> None:
    collecting = msgspec.structs.replace(exact, step_gather_bytes=2.0, bucket_bytes=2.0, logit_bytes=0.0)
    parameters = llama.parameters().total
    step = training_memory(llama, 16, Layouts.of(dp=2, zero=1), collecting)
    assert float(step.parts_bytes["buffers"][0]) == pytest.approx(2 * parameters + 2 * 1.5 * parameters)
    assert float(step.parts_bytes["activations"][0]) == 0


def test_waiting_tensors_are_held_and_not_needed(gpt: LlmSpec, exact: MemoryProfile) -> None:
    waiting = msgspec.structs.replace(exact, waiting_alone=2.0, waiting_in_pipeline=1.0, logit_bytes=0.0)
    alone = training_memory(gpt, SEQ, Layouts.of(tp=4), waiting)
    assert float((alone.held_bytes - alone.needed_bytes)[0]) == 2 * 8 * SEQ * 1024 * 2
    piped = training_memory(gpt, SEQ, Layouts.of(tp=4, pp=4, num_micro=8), waiting)
    assert float((piped.held_bytes - piped.needed_bytes)[0]) == 4 * 2 * SEQ * 1024 * 2


@pytest.mark.parametrize(
    ("schedule", "vpp", "place", "expected"),
    [
        ("1f1b", 1, 0, 4),
        ("1f1b", 1, 3, 1),
        ("interleaved", 2, 0, (2 * 3 + 4 + 1) / 2),
        ("interleaved", 2, 3, (4 + 1) / 2),
        ("zero-bubble", 1, 3, 4),
        ("dualpipe", 1, 0, 2.5),
    ],
)
def test_micro_batches_in_flight(schedule: str, vpp: int, place: int, expected: float) -> None:
    layouts = Layouts.of(pp=4, vpp=vpp, num_micro=32, schedule=SCHEDULES.index(schedule))
    assert float(micro_batches_in_flight(place, layouts)[0]) == expected


def test_dualpipe_holds_two_stages(exact: MemoryProfile, gpt: LlmSpec) -> None:
    exact = msgspec.structs.replace(exact, logit_bytes=0.0)
    plain = peak(gpt, exact, pp=4, num_micro=32)
    dual = peak(gpt, exact, pp=4, num_micro=32, schedule=SCHEDULES.index("dualpipe"))
    assert dual["weights"] == pytest.approx(
        2 * plain["weights"], rel=1e-4
    )  # the last stage has the final norm
    assert dual["activations"] == pytest.approx(
        plain["activations"] * 5 / 4, rel=0.03
    )  # p + 1 against p (DeepSeek-V3)


def test_only_earliest_stages_are_priced() -> None:
    stages = all_stages((0,) * 10, 1, 4)
    assert [stage.layers for stage in stages] == [(3,), (3,), (2,), (2,)]
    assert [stage.place for stage in full_stages(stages)] == [0, 1, 2, 3]
    assert len(full_stages(all_stages((0,) * 64, 1, 32))) == 3


@pytest.mark.parametrize("profile", shipped_memory().profiles, ids=lambda profile: profile.name)
@pytest.mark.parametrize("pp", [1, 2, 3, 8])
def test_weights_are_conserved_over_stages(profile: MemoryProfile, pp: int) -> None:
    counts = MODEL.parameters()
    total = 0.0
    for stage in pipeline_stages(MODEL, pp, profile):
        dense, experts = stage_parameters(MODEL, Layouts.of(pp=pp, ep=4, dp=4), stage, profile)
        total += float(dense[0] + 4 * experts[0])
    assert total == counts.total


@given(tp=st.sampled_from([1, 2, 4, 8]), ep=st.sampled_from([1, 2, 4, 8, 16]), pp=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_weights_are_conserved_over_all_ranks(tp: int, ep: int, pp: int) -> None:
    profile = MemoryProfile("exact")
    counts = MODEL.parameters()
    layouts = Layouts.of(tp=tp, ep=ep, pp=pp, dp=16)
    ranks = tp * 16
    total = 0.0
    for stage in pipeline_stages(MODEL, pp, profile):
        dense, experts = stage_parameters(MODEL, layouts, stage, profile)
        total += ranks * float(dense[0] + experts[0])
    whole = counts.norms + counts.router  # each tensor rank has its own copy
    expected = 16 * (counts.total - counts.experts - whole) + ranks * whole + ranks / ep * counts.experts
    assert total == pytest.approx(expected, rel=1e-12)


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
    pp=st.integers(1, 8),
    dp=st.sampled_from([1, 2, 8, 16]),
    ep=st.sampled_from([1, 2, 4, 8]),
    zero=st.integers(0, 3),
    shards=st.sampled_from([1, 2, 4]),
    schedule=st.integers(0, 3),
    profile=st.sampled_from(shipped_memory().profiles),
)
@settings(max_examples=100, deadline=None)
def test_states_are_conserved_over_stages_and_shards(
    tp: int, cp: int, pp: int, dp: int, ep: int, zero: int, shards: int, schedule: int, profile: MemoryProfile
) -> None:
    """Over all ranks of all stages every state is there once for each group that shards it."""
    replicas = cp * dp
    shard = max(replicas // shards, 1) if zero else replicas
    if tp * replicas % ep or shard * tp < ep:
        return
    layouts = Layouts.of(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, zero=zero, shard=shard, schedule=schedule)
    total = {"weights": 0.0, "gradients": 0.0, "optimizer": 0.0}
    for stage in pipeline_stages(MODEL, pp, profile):
        for name, size in stage_states(MODEL, layouts, stage, profile).items():
            total[name] += tp * replicas * float(size[0])
    counts = MODEL.parameters()
    copied = counts.norms + counts.router  # each tensor rank has its own copy
    once = counts.total - counts.experts - copied
    sizes = {"weights": profile.weight_bytes, "gradients": profile.gradient_bytes}
    for least_zero, (name, size) in zip(
        (3, 2, 1), (sizes | {"optimizer": profile.optimizer_bytes}).items(), strict=True
    ):
        groups = replicas / shard if zero >= least_zero else float(replicas)
        # Experts have tp / ep times the replicas of the rest, and as many more of them hold a shard.
        expert_groups = groups if zero >= least_zero else tp * replicas / ep
        expected = size * (groups * (once + tp * copied) + expert_groups * counts.experts)
        assert total[name] == pytest.approx(expected, rel=1e-12), name


@given(tp=st.sampled_from([1, 2, 8]), pp=st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_without_replicas_the_ranks_hold_the_model_once(tp: int, pp: int) -> None:
    model = LlmSpec("plain", "test", 512, 8192, (LayerSpec(AttentionSpec(8, 4, 64, 64), MlpSpec(1024)),) * 8)
    profile = MemoryProfile("exact")
    counts = model.parameters()
    held = {"weights": 0.0, "gradients": 0.0, "optimizer": 0.0}
    for stage in pipeline_stages(model, pp, profile):
        for name, size in stage_states(model, Layouts.of(tp=tp, pp=pp), stage, profile).items():
            held[name] += tp * float(size[0])
    parameters = counts.total + (tp - 1) * counts.norms
    each = (profile.weight_bytes, profile.gradient_bytes, profile.optimizer_bytes)
    assert list(held.values()) == pytest.approx([parameters * size for size in each])


@given(tp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2, 4]), zero=st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_what_leaves_the_chip_is_on_the_host(tp: int, pp: int, zero: int) -> None:
    exact = MemoryProfile("exact", state_slack=1.0, activation_slack=1.0)
    fields = {"tp": tp, "pp": pp, "dp": 4, "num_micro": 8, "zero": zero}
    layouts = Layouts.of(**fields, offload=[0, 1, 2, 3])
    found = training_memory(MODEL, SEQ, layouts, exact, first_stage=True)
    optimizer, activations = found.parts_bytes["optimizer"], found.parts_bytes["activations"]
    assert found.host_bytes[0] == 0.0
    assert optimizer[1] == optimizer[3] == 0.0
    assert found.host_bytes[1] == pytest.approx(optimizer[0])
    assert optimizer[2] == optimizer[0]
    # Where the optimizer step is the peak, activations are nought.
    if activations[0] and activations[2]:
        assert found.host_bytes[2] == pytest.approx(activations[0] - activations[2])
    assert found.host_bytes[3] == pytest.approx(found.host_bytes[1] + found.host_bytes[2])
    assert np.all(found.needed_bytes[1:] <= found.needed_bytes[0])


LAYOUTS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8]),
        "cp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4, 8]),
        "dp": st.sampled_from([1, 2, 8, 16]),
        "micro_batch": st.sampled_from([1, 2, 4, 8]),
        "num_micro": st.sampled_from([1, 4, 8, 32]),
        "zero": st.integers(0, 3),
        "sequence_parallel": st.integers(0, 1),
        "recompute": st.integers(0, 2),
        "schedule": st.sampled_from([0, 2]),
    }
)


@given(
    layout=LAYOUTS, profile=st.sampled_from(shipped_memory().profiles), seq=st.sampled_from([512, 2048, 8192])
)
@settings(max_examples=100, deadline=None)
def test_more_tokens_never_take_less(layout: dict[str, float], profile: MemoryProfile, seq: int) -> None:
    base = training_memory(MODEL, seq, Layouts.of(**layout), profile).needed_bytes[0]
    longer = training_memory(MODEL, 2 * seq, Layouts.of(**layout), profile).needed_bytes[0]
    wider = training_memory(
        MODEL, seq, Layouts.of(**layout | {"micro_batch": 2 * layout["micro_batch"]}), profile
    ).needed_bytes[0]
    more = training_memory(
        MODEL, seq, Layouts.of(**layout | {"num_micro": 2 * layout["num_micro"]}), profile
    ).needed_bytes[0]
    assert base <= longer * (1 + 1e-12)
    assert base <= wider * (1 + 1e-12)
    # One micro-batch lets a pipeline scatter its gradients at once, several do not: never the other way.
    assert base <= more * (1 + 1e-12)


@given(layout=LAYOUTS, profile=st.sampled_from(shipped_memory().profiles))
@settings(max_examples=60, deadline=None)
def test_less_is_kept_with_more_recompute(layout: dict[str, float], profile: MemoryProfile) -> None:
    kept = [
        training_memory(MODEL, SEQ, Layouts.of(**layout | {"recompute": way}), profile).parts_bytes[
            "activations"
        ][0]
        for way in (0, 1, 2)
    ]
    # Activations are nought where the optimizer step is the peak.
    assert kept[1] <= kept[0] or kept[0] == 0
    assert kept[2] <= kept[1] or kept[1] == 0


def test_many_layouts_equal_each_alone() -> None:
    profile = shipped_memory().profiles[0]
    rng = np.random.default_rng(3)
    fields = {
        "tp": 2.0 ** rng.integers(0, 4, 200), "cp": 2.0 ** rng.integers(0, 2, 200),
        "pp": 2.0 ** rng.integers(0, 4, 200), "dp": 2.0 ** rng.integers(0, 5, 200),
        "micro_batch": 2.0 ** rng.integers(0, 4, 200), "num_micro": 2.0 ** rng.integers(0, 6, 200),
        "zero": rng.integers(0, 4, 200), "recompute": rng.integers(0, 3, 200),
        "sequence_parallel": rng.integers(0, 2, 200),
    }  # fmt: skip
    layouts = Layouts.of(**fields)
    many = training_memory(MODEL, SEQ, layouts, profile)
    for place in range(0, 200, 7):
        alone = training_memory(MODEL, SEQ, layouts.take(np.array([place])), profile)
        for field in dataclasses.fields(many):
            if field.name != "parts_bytes":
                assert getattr(many, field.name)[place] == pytest.approx(
                    getattr(alone, field.name)[0], rel=1e-12
                )


def test_usable_memory_is_less_than_the_chip(exact: MemoryProfile) -> None:
    tight = msgspec.structs.replace(exact, outside_bytes=1e10, fragment_share=0.1)
    assert usable_bytes(8e10, tight) == pytest.approx(6.3e10)
