"""What must hold of every price of a step, whatever the layout: better hardware, larger batches, one chip."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.catalog import resolve_cluster, resolve_llm
from groundplane.design.layout_space import LayoutSpace
from groundplane.design.scaling import changed_clusters
from groundplane.perfmodel.estimate import STAGES
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.strategy import Layouts
from groundplane.perfmodel.training import TrainingJob, price_training

PROFILE = StackProfile("test")
CASES = (
    ("llama-3.1-8b", "h100x16", 4096),
    ("gpt3-175b", "a100x64", 2048),
    ("qwen3-30b-a3b", "h100x32", 4096),
    ("gemma-2-9b", "mi300xx16", 4096),
)


def _some(job: TrainingJob, chips: int, batch: int, seed: int) -> Layouts:
    space = LayoutSpace(job, chips, batch, {})
    groups = space.groups()
    random = np.random.default_rng(seed)
    layouts, _ = space.expand(
        groups.take(random.choice(len(groups), size=min(8, len(groups)), replace=False))
    )
    return layouts


@settings(max_examples=4, deadline=None)
@given(st.sampled_from(CASES), st.integers(min_value=0, max_value=2**31))
def test_no_better_part_makes_any_layout_slower(case: tuple[str, str, int], seed: int) -> None:
    model, where, seq = case
    job, cluster = TrainingJob(resolve_llm(model), seq), resolve_cluster(where)
    layouts = _some(job, cluster.num_chips, 2 * cluster.num_chips, seed)
    before = price_training(job, cluster, layouts, PROFILE).step_s
    for name, better in changed_clusters(cluster):
        after = price_training(job, better, layouts, PROFILE).step_s
        assert np.all(after <= before * (1 + 1e-9)), name


@settings(max_examples=4, deadline=None)
@given(st.sampled_from(CASES), st.integers(min_value=0, max_value=2**31))
def test_twice_the_batch_never_lowers_the_tokens_of_a_chip(case: tuple[str, str, int], seed: int) -> None:
    """Twice the micro-batches of a layout: bubble, exchange, optimizer and overhead spread over more
    nothing costs more a micro-batch."""
    model, where, seq = case
    job, cluster = TrainingJob(resolve_llm(model), seq), resolve_cluster(where)
    layouts = _some(job, cluster.num_chips, 2 * cluster.num_chips, seed)
    fields = {name: value.copy() for name, value in vars(layouts).items()}
    fields["num_micro"] = 2.0 * fields["num_micro"]
    once = price_training(job, cluster, layouts, PROFILE).step_s
    twice = price_training(job, cluster, Layouts(**fields), PROFILE).step_s
    assert np.all(twice <= 2.0 * once * (1 + 1e-9))


@pytest.mark.parametrize("chip", ["h100", "a100", "mi300x", "b200"])
def test_one_chip_stays_under_its_roofline(chip: str) -> None:
    job = TrainingJob(resolve_llm("llama-3.1-8b"), 4096)
    cluster = resolve_cluster(f"{chip}x8")
    one = msgspec.structs.replace(cluster, num_nodes=1)
    layout = Layouts.of(micro_batch=[1, 2, 4], num_micro=8)
    prices = price_training(job, one, layout, PROFILE)
    flops = 3.0 * job.model.forward_flops_per_token(4096, causal=True).total * layout.global_batch * 4096
    assert np.all(prices.step_s > flops / one.chip.peak("bf16"))
    for name in STAGES:
        if name.endswith("communication") or name == "pipeline_bubble":
            assert np.all(prices.stages_s[name] == 0.0), name
    # With endless peaks and no overhead what is left is memory traffic: never less than reading the weights
    # and writing gradients once a micro-batch.
    assert np.all(prices.step_s > 2.0 * job.model.parameters().total * 2.0 / one.chip.memory_bytes_per_s)
