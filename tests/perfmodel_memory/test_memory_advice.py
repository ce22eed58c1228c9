"""Verdicts on single layouts and the changes that make them fit."""

from __future__ import annotations

import msgspec
import pytest

from groundplane.catalog.resolve import resolve_llm
from groundplane.perfmodel.memory_advice import judge_memory
from groundplane.perfmodel.memory_profile import MemoryProfile, memory_profile
from groundplane.perfmodel.memory_training import training_memory, usable_bytes
from groundplane.perfmodel.strategy import Layouts, parse_layout
from groundplane.spec.errors import InputError
from groundplane.spec.llm import LlmSpec

GIB = 2.0**30


def test_verdict_follows_the_interval(llama: LlmSpec, exact: MemoryProfile) -> None:
    layout = Layouts.of(dp=2)
    needed = float(training_memory(llama, 2048, layout, exact).needed_bytes[0])
    for share, verdict in ((1.2, "fits"), (1.05, "may fit"), (0.95, "may not fit"), (0.8, "does not fit")):
        found = judge_memory(llama, 2048, layout, exact, share * needed)
        assert found.verdict == verdict
        assert found.needed_bytes == pytest.approx(needed)
        assert (found.low_bytes, found.high_bytes) == pytest.approx((0.9 * needed, 1.1 * needed))
        assert sum(found.parts_bytes.values()) == pytest.approx(needed)
        assert bool(found.changes) == (share < 1)


def test_changes_that_fit_come_first_and_can_be_asked_for(llama: LlmSpec, exact: MemoryProfile) -> None:
    lean = msgspec.structs.replace(exact, logit_bytes=0.0)
    layout = Layouts.of(dp=4, micro_batch=4, num_micro=2)
    needed = float(training_memory(llama, 8192, layout, lean).needed_bytes[0])
    found = judge_memory(llama, 8192, layout, lean, 0.6 * needed, most_changes=20)
    assert found.changes
    assert all(change.fits for change in found.changes)
    assert "recompute=full" in [change.text for change in found.changes]
    for change in found.changes:
        fields = parse_layout(change.text)
        plain = {"dp": 4.0, "micro_batch": 4.0, "num_micro": 2.0} | fields
        plain["num_micro"] = 32.0 / (plain["dp"] * plain["micro_batch"])
        asked = training_memory(llama, 8192, Layouts.of(**plain), lean)
        assert float(asked.needed_bytes[0]) == pytest.approx(change.needed_bytes), change.text


def test_where_nothing_fits_what_saves_most_is_named(llama: LlmSpec, exact: MemoryProfile) -> None:
    found = judge_memory(llama, 2048, Layouts.of(dp=4), exact, 1.0)
    sizes = [change.needed_bytes for change in found.changes]
    assert sizes == sorted(sizes)
    assert not any(change.fits for change in found.changes)


def test_experts_spread_further(moe: LlmSpec, exact: MemoryProfile) -> None:
    found = judge_memory(moe, 2048, Layouts.of(dp=8, ep=2, zero=1), exact, 1.0, most_changes=20)
    assert "ep=4" in [change.text for change in found.changes]
    found = judge_memory(moe, 2048, Layouts.of(dp=1), exact, 1.0, most_changes=20)
    assert not any("ep=" in change.text or "zero" in change.text for change in found.changes)


def test_a_skewed_router_may_not_fit(moe: LlmSpec, exact: MemoryProfile) -> None:
    layout = Layouts.of(dp=8, ep=8, micro_batch=4, zero=1)
    even = judge_memory(moe, 2048, layout, exact, 1e12)
    skewed = judge_memory(moe, 2048, layout, exact, 1e12, expert_skew=2.0)
    assert skewed.needed_bytes > even.needed_bytes


def test_known_layouts_of_large_models() -> None:
    # GPT-3 175B on 80 GiB chips: the paper's tp 8, pp 16 fits; one chip alone does not by far.
    model, profile = resolve_llm("gpt3-175b"), memory_profile("megatron-lm")
    fits = judge_memory(
        model, 2048, Layouts.of(tp=8, pp=16, dp=8, num_micro=64, recompute=2), profile, 80 * GIB
    )
    assert fits.verdict == "fits"
    alone = judge_memory(model, 2048, Layouts.of(dp=1), profile, 80 * GIB)
    assert alone.verdict == "does not fit"
    assert alone.needed_bytes > 2000 * GIB
    assert usable_bytes(80 * GIB, profile) < 80 * GIB


def test_unknown_stack_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="software stack"):
        memory_profile("megatron-cor")
    assert memory_profile("megatron-core-plain").name == "megatron-core"
    assert memory_profile("nanotron-late").name == "nanotron"
    assert memory_profile("megascale").name == "megatron-core"
