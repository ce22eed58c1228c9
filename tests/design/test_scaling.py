"""Scaling curves and what-ifs over the real step model."""

from __future__ import annotations

import math

import pytest

from groundplane.catalog import cluster_sizes, resolve_cluster, resolve_llm
from groundplane.design.scaling import Study, changed_clusters, model_flops, scaling_curve, what_ifs
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.training import TrainingJob
from groundplane.spec.errors import InputError

JOB = TrainingJob(resolve_llm("llama-3.1-8b"), 4096)
STUDY = Study(
    JOB, cluster_sizes("h100"), StackProfile("test"), MemoryProfile("test"), schedules=("1f1b", "interleaved")
)


def test_strong_scaling_loses_and_weak_scaling_holds() -> None:
    strong = scaling_curve(STUDY, [16, 64, 256], 256)
    weak = scaling_curve(STUDY, [16, 64, 256], 64, mode="weak")
    assert [point.global_batch for point in strong] == [256, 256, 256]
    assert [point.global_batch for point in weak] == [64, 256, 1024]
    assert strong[0].efficiency == weak[0].efficiency == 1.0
    assert strong[2].step_s < strong[1].step_s < strong[0].step_s
    assert weak[2].efficiency > strong[2].efficiency
    for point in (*strong, *weak):
        assert 0.0 < point.mfu < 1.0
        assert point.tokens_per_s == pytest.approx(point.global_batch * 4096 / point.step_s)
        assert point.layout is not None
        assert point.memory_bytes <= 80 * 2**30


def test_a_size_where_nothing_fits_is_said_and_not_compared_with() -> None:
    job = TrainingJob(resolve_llm("llama-3.1-70b"), 4096)
    points = scaling_curve(
        Study(job, cluster_sizes("l40s"), StackProfile("test"), MemoryProfile("test")), [4, 128], 128
    )
    assert points[0].layout is None
    assert points[0].memory_bytes > 48 * 2**30
    assert points[1].layout is not None
    assert points[1].efficiency == 1.0


def test_model_flops_by_hand() -> None:
    forward = JOB.model.forward_flops_per_token(4096, causal=False).total
    assert model_flops(JOB, 8) == 3 * forward * 8 * 4096


def test_nothing_better_makes_the_best_layout_worse() -> None:
    best = STUDY.search(STUDY.cluster_of(64), 256).best
    found = what_ifs(STUDY, 64, 256, best.layouts)
    names = {item.name for item in found}
    assert {"network cards twice as fast", "twice the memory", "recompute full"} <= names
    before_s = float(best.step_s[0])
    for item in found:
        if not item.name.startswith("recompute"):
            assert item.best_s <= before_s * (1 + 1e-9), item.name
            assert item.same_layout_s <= before_s * (1 + 1e-9), item.name
            assert item.best_s <= item.same_layout_s * (1 + 1e-9), item.name
        assert math.isclose(item.gain, before_s / item.best_s)
    assert [item.gain for item in found] == sorted((item.gain for item in found), reverse=True)


def test_only_what_a_cluster_has_is_changed() -> None:
    one = {name for name, _ in changed_clusters(resolve_cluster("h100x8"))}
    assert "network cards twice as fast" not in one
    assert "no oversubscription" not in one
    thin = {name for name, _ in changed_clusters(resolve_cluster("rtx-4090x16"))}
    assert "no oversubscription" in thin
    assert "scale-up links twice as fast" not in thin


def test_refusals() -> None:
    with pytest.raises(InputError, match="must ascend"):
        scaling_curve(STUDY, [64, 16], 256)
    with pytest.raises(InputError, match="must ascend"):
        scaling_curve(STUDY, [], 256)
    with pytest.raises(InputError, match="whole batch"):
        scaling_curve(STUDY, [16, 24], 15, mode="weak")
    with pytest.raises(InputError, match="must fill whole servers"):
        scaling_curve(STUDY, [12], 12)
    with pytest.raises(InputError, match="unknown schedule"):
        Study(
            JOB, cluster_sizes("h100"), StackProfile("test"), MemoryProfile("test"), schedules=("gpipe",)
        ).search(resolve_cluster("h100x8"), 8)
