"""The search over the real step model: its bound holds, and it finds what pricing everything finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.catalog import resolve_cluster, resolve_llm
from groundplane.design.layout_space import LayoutSpace
from groundplane.design.parallelism import search
from groundplane.design.training_search import TrainingPricer
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.training import TrainingJob

JOBS: list[tuple[str, str, int, int, int]] = [
    ("gpt2-xl", "a100x16", 16, 1024, 64),
    ("qwen3-30b-a3b", "h100x32", 32, 4096, 64),
    ("deepseek-v2-lite", "h100x16", 16, 4096, 32),
    ("gemma-2-9b", "mi300xx16", 16, 4096, 32),
    ("llama-3.1-8b", "tpu-v5px16", 16, 4096, 32),
]
FACTS: list[dict[str, Any]] = [
    {},
    {"overlaps_backward": False, "gathers_ahead": False, "fused_attention": False},
    {"balances_stages": True, "ties_tensor_backward": True, "fused_loss": True},
]


def _case(job: tuple[str, str, int, int, int], facts: dict[str, Any]) -> tuple[LayoutSpace, TrainingPricer]:
    model, cluster, chips, seq, batch = job
    training = TrainingJob(resolve_llm(model), seq)
    space = LayoutSpace(training, chips, batch, {})
    return space, TrainingPricer(
        training, resolve_cluster(cluster), StackProfile("test", **facts), MemoryProfile("test")
    )


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(JOBS), st.sampled_from(FACTS), st.integers(min_value=0, max_value=2**31))
def test_no_layout_is_faster_or_smaller_than_the_bounds_of_its_group(
    job: tuple[str, str, int, int, int], facts: dict[str, Any], seed: int
) -> None:
    space, pricer = _case(job, facts)
    groups = space.groups()
    some = groups.take(
        np.random.default_rng(seed).choice(len(groups), size=min(40, len(groups)), replace=False)
    )
    layouts, own = space.expand(some)
    bound = pricer.least_step_s(some)[own]
    assert np.all(pricer.step_times(layouts).step_s >= bound)
    assert np.all(bound > 0)
    assert np.all(pricer.memory_bytes(layouts) >= pricer.least_memory_bytes(some)[own])


@pytest.mark.parametrize("job", JOBS[:3])
def test_pruning_finds_what_pricing_everything_finds(job: tuple[str, str, int, int, int]) -> None:
    space, pricer = _case(job, {})
    everything = search(space, pricer, top=8, workers=1, prune=False)
    pruned = search(space, pricer, top=8, workers=2)
    assert np.allclose(pruned.best.step_s, everything.best.step_s, rtol=1e-12)
    assert np.allclose(pruned.front.step_s, everything.front.step_s, rtol=1e-12)
    assert np.allclose(pruned.front.memory_bytes, everything.front.memory_bytes, rtol=1e-12)
    assert pruned.num_layouts == everything.num_layouts
    assert pruned.num_priced <= everything.num_priced


def test_a_layout_costs_the_same_alone_and_among_thousands() -> None:
    space, pricer = _case(JOBS[1], {})
    layouts, _ = space.expand(space.groups())
    chosen = np.random.default_rng(7).choice(len(layouts), size=20, replace=False)
    together = pricer.step_times(layouts).step_s[chosen]
    alone = [float(pricer.step_times(layouts.take(np.array([index]))).step_s[0]) for index in chosen]
    assert np.allclose(together, alone, rtol=1e-9)
