"""The search: equal to looking at everything, whatever is pruned and however many threads look."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.design.layout_space import LayoutSpace
from groundplane.design.parallelism import SearchResult, search
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.intervals import StepTimes
from groundplane.perfmodel.strategy import Layouts
from groundplane.perfmodel.training import TrainingJob
from groundplane.spec.errors import InputError
from groundplane.spec.huggingface import llm_from_config

CONFIG: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 100,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
SPACE = LayoutSpace(TrainingJob(llm_from_config(CONFIG), 64), 8, 16, {})


class ToyPricer:
    """Times and memory from the layout's own numbers, with many ties, and a bound `slack` below the time."""

    def __init__(self, seed: int, limit: float, slack: float) -> None:
        self.weights = (
            np.random.default_rng(seed).integers(1, 6, size=len(dataclasses.fields(Layouts))).astype(float)
        )
        self.memory_limit_bytes = limit
        self.slack = slack

    def _mixed(self, layouts: Layouts, shift: int) -> FloatArray:
        weights = np.roll(self.weights, shift)
        values = [np.log2(1.0 + value) for value in vars(layouts).values()]
        mixed = sum(weight * np.round(value) for weight, value in zip(weights, values, strict=True))
        return np.asarray(mixed)

    def memory_bytes(self, layouts: Layouts) -> FloatArray:
        return self._mixed(layouts, 5)

    def step_times(self, layouts: Layouts) -> StepTimes:
        step_s = self._mixed(layouts, 0)
        return StepTimes(step_s, 0.9 * step_s, 1.1 * step_s)

    def least_step_s(self, groups: Layouts) -> FloatArray:
        layouts, own = SPACE.expand(groups)
        lowest = np.full(len(groups), np.inf)
        np.minimum.at(lowest, own, self.step_times(layouts).step_s)
        return lowest * (1.0 - self.slack)

    def least_memory_bytes(self, groups: Layouts) -> FloatArray:
        layouts, own = SPACE.expand(groups)
        lowest = np.full(len(groups), np.inf)
        np.minimum.at(lowest, own, self.memory_bytes(layouts))
        return lowest * (1.0 - self.slack)


def _same(first: SearchResult, second: SearchResult) -> None:
    for one, other in ((first.best, second.best), (first.front, second.front)):
        assert list(one.step_s) == list(other.step_s)
        assert list(one.times.low_s) == list(other.times.low_s)
        assert list(one.times.high_s) == list(other.times.high_s)
        assert list(one.memory_bytes) == list(other.memory_bytes)
        for name in vars(one.layouts):
            assert list(getattr(one.layouts, name)) == list(getattr(other.layouts, name))
    assert first.num_layouts == second.num_layouts


@settings(max_examples=15, deadline=None)
@given(
    st.integers(min_value=0, max_value=1000),
    st.sampled_from([50.0, 80.0, 1e9]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from(["step_time", "mfu", "memory"]),
    st.integers(min_value=1, max_value=20),
)
def test_pruning_and_threads_change_nothing(
    seed: int, limit: float, slack: float, objective: str, top: int
) -> None:
    pricer = ToyPricer(seed, limit, slack)
    everything = search(SPACE, pricer, top=top, objective=objective, workers=1, prune=False)
    pruned = search(SPACE, pricer, top=top, objective=objective, workers=1)
    threaded = search(SPACE, pricer, top=top, objective=objective, workers=3)
    _same(everything, pruned)
    _same(everything, threaded)
    assert everything.num_bounded == 0
    assert pruned.num_priced <= everything.num_priced


@settings(max_examples=10, deadline=None)
@given(st.integers(min_value=0, max_value=1000), st.sampled_from([60.0, 1e9]))
def test_the_answer_is_what_sorting_everything_gives(seed: int, limit: float) -> None:
    pricer = ToyPricer(seed, limit, 0.1)
    layouts, _ = SPACE.expand(SPACE.groups())
    memory, step = pricer.memory_bytes(layouts), pricer.step_times(layouts).step_s
    fits = memory <= limit
    result = search(SPACE, pricer, top=5)
    assert result.num_layouts == len(layouts)
    assert result.num_too_large <= np.sum(~fits)
    assert list(result.best.step_s) == sorted(step[fits])[:5]
    assert result.least_memory_bytes >= memory.min()
    for time, size in zip(result.front.step_s, result.front.memory_bytes, strict=True):
        beats = fits & (step <= time) & (memory <= size) & ((step < time) | (memory < size))
        assert not beats.any()
    for time, size in zip(step[fits][:200], memory[fits][:200], strict=True):
        assert np.any((result.front.step_s <= time) & (result.front.memory_bytes <= size))


def test_when_nothing_fits_the_smallest_is_named() -> None:
    result = search(SPACE, ToyPricer(1, 0.0, 0.1))
    assert len(result.best) == len(result.front) == 0
    assert result.num_too_large == result.num_layouts
    assert len(result.smallest) == 1
    layouts, _ = SPACE.expand(SPACE.groups())
    assert result.least_memory_bytes == ToyPricer(1, 0.0, 0.1).memory_bytes(layouts).min()
    assert result.least_memory_bytes > 0


def test_refusals() -> None:
    pricer = ToyPricer(1, 1e9, 0.1)
    with pytest.raises(InputError, match="positive integer"):
        search(SPACE, pricer, top=0)
    with pytest.raises(InputError, match="unknown objective"):
        search(SPACE, pricer, objective="speed")
