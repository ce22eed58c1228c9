"""A whole plan: what it says adds up, and what cannot be is refused by rule."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from groundplane.design import TrainingPlan, plan_training
from groundplane.design.layout_space import LayoutSpace
from groundplane.design.training_answer import layout_of, words
from groundplane.design.training_plan import ask
from groundplane.perfmodel.strategy import SCHEDULES, Layouts, parse_layout
from groundplane.spec.errors import InputError

pytestmark = pytest.mark.usefixtures("calibration")

LAYOUT = "tp=2,cp=1,pp=2,vpp=1,dp=4,micro=1,zero=1,sp,recompute=none"


def _plan(**changed: Any) -> TrainingPlan:
    asked: dict[str, Any] = {"global_batch": 32, "seq": 4096, "layout": LAYOUT, "relief": False}
    return plan_training("llama-3.1-8b", "h100x16", **(asked | changed))


def test_stages_memory_and_days_add_up() -> None:
    plan = _plan(tokens=1e12, usd_per_chip_hour=2.0)
    estimate = plan.estimate
    assert sum(estimate.stages_s.values()) == pytest.approx(estimate.step_s, rel=1e-12)
    assert sum(plan.memory.parts_bytes.values()) == pytest.approx(plan.memory.needed_bytes, rel=1e-12)
    assert estimate.step_low_s < estimate.step_s < estimate.step_high_s
    assert estimate.tokens_per_s == pytest.approx(32 * 4096 / estimate.step_s)
    run = plan.training
    assert run is not None
    assert run.steps == -(-(10**12) // (32 * 4096))
    assert run.days == pytest.approx(run.steps * estimate.step_s / 86400)
    assert run.chip_hours == pytest.approx(run.days * 24 * 16)
    assert run.cost_usd == pytest.approx(2.0 * run.chip_hours)
    assert plan.num_layouts == plan.num_priced == 1


def test_mfu_and_hfu_by_hand() -> None:
    plain, again = _plan(), _plan(layout=LAYOUT.replace("recompute=none", "recompute=full"))
    llm = ask("llama-3.1-8b", "h100x16", global_batch=32).job.model
    flops = llm.forward_flops_per_token(4096, causal=False)
    useful = 3 * flops.total * 32 * 4096
    assert plain.estimate.model_flops == useful
    assert plain.estimate.mfu == pytest.approx(useful / (plain.estimate.step_s * 16 * 989e12))
    assert plain.estimate.hfu == plain.estimate.mfu
    # Full recompute runs all layers forward again, the head not.
    ratio = 1 + (flops.total - flops.head) / (3 * flops.total)
    assert again.estimate.hfu == pytest.approx(again.estimate.mfu * ratio)
    assert again.estimate.step_s > plain.estimate.step_s
    assert again.memory.needed_bytes < plain.memory.needed_bytes


def test_selective_recompute_counts_the_attention_core_and_what_the_stack_adds() -> None:
    asked = LAYOUT.replace("recompute=none", "recompute=selective")
    core, more = _plan(layout=asked), _plan(layout=asked, stack="torchtitan")
    assert 1.0 < core.estimate.hfu / core.estimate.mfu < more.estimate.hfu / more.estimate.mfu < 4 / 3


def test_a_plan_goes_through_json_and_back() -> None:
    plan = _plan(relief=True, layout="tp=2,pp=2", tokens=1e12)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=TrainingPlan) == plan


def test_the_layout_it_names_gives_the_same_plan() -> None:
    found = _plan(layout="pp=2", top=3)
    same = _plan(layout=found.layout)
    assert same.estimate == found.estimate
    assert same.memory == found.memory
    for option in (*found.next_best, *found.front):
        other = _plan(layout=option.layout)
        assert other.estimate.step_s == pytest.approx(option.step_s, rel=1e-9)
        assert other.estimate.step_low_s == pytest.approx(option.step_low_s, rel=1e-9)
        assert other.memory.needed_bytes == pytest.approx(option.memory_bytes, rel=1e-9)
        assert option.step_s >= found.estimate.step_s
    assert len({(item.step_s, item.memory_bytes) for item in found.next_best}) == len(found.next_best) == 2


def test_layouts_priced_together_equal_each_alone() -> None:
    question = ask("qwen3-30b-a3b", "h100x32", global_batch=64, seq=4096, schedules=SCHEDULES)
    space: LayoutSpace = question.space
    groups = space.groups()
    random = np.random.default_rng(3)
    layouts, _ = space.expand(groups.take(random.choice(len(groups), size=300, replace=False)))
    chosen = random.choice(len(layouts), size=12, replace=False)
    pricer = question.study.pricer(question.cluster)
    times, memory = pricer.step_times(layouts), pricer.memory_bytes(layouts)
    for index in chosen.tolist():
        one = layouts.take(np.array([index]))
        plan = plan_training(
            "qwen3-30b-a3b", "h100x32", global_batch=64, seq=4096, relief=False,
            layout=words(one, mixture=True), schedules=SCHEDULES,
        )  # fmt: skip
        assert plan.num_layouts == 1
        for name, value in vars(layout_of(plan)).items():
            assert value[0] == getattr(one, name)[0], name
        assert plan.estimate.step_s == pytest.approx(times.step_s[index], rel=1e-9)
        assert plan.estimate.step_low_s == pytest.approx(times.low_s[index], rel=1e-9)
        assert plan.estimate.step_high_s == pytest.approx(times.high_s[index], rel=1e-9)
        assert plan.memory.needed_bytes == pytest.approx(memory[index], rel=1e-9)


def test_what_does_not_fit_says_what_would() -> None:
    plan = _plan(global_batch=64, layout=LAYOUT.replace("micro=1", "micro=16"), relief=True)
    assert not plan.fits
    assert plan.memory.verdict == "does not fit"
    assert any(change.fits for change in plan.memory.changes)
    assert plan.next_best == plan.front == plan.relief == ()


def test_relief_names_what_helps_most_first() -> None:
    plan = _plan(relief=True)
    gains = [item.gain for item in plan.relief if item.gain is not None]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.0


@pytest.mark.parametrize("objective", ["tokens_per_s", "mfu", "cost", "memory"])
def test_objectives(objective: str) -> None:
    fast, other = _plan(layout="tp=2,pp=2"), _plan(layout="tp=2,pp=2", objective=objective)
    if objective == "memory":
        assert other.memory.needed_bytes < fast.memory.needed_bytes
    else:
        assert other.layout == fast.layout


def test_progress_reaches_all_layouts() -> None:
    seen: list[tuple[int, int]] = []
    plan = _plan(layout="tp=2,pp=2", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (plan.num_layouts, plan.num_layouts)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"layout": "tpp=8"}, "unknown part of a layout.*did you mean 'tp'"),
        ({"layout": "tp=5"}, "layout.tp: must divide the 32 attention heads.*tp=4"),
        ({"layout": "tp=-2"}, "whole number of at least 1"),
        ({"layout": "tp=4,tp=2"}, "given twice"),
        ({"layout": "tp=8,pp=4"}, "tp x pp must divide the 16 chips"),
        ({"layout": "tp=8,cp=1,pp=1,dp=1"}, "tp x cp x pp x dp must be the 16 chips"),
        ({"layout": "dp=3"}, "layout.dp: must divide the 32 sequences of the global batch"),
        ({"layout": "micro=3"}, "micro_batch must divide the global batch of 32"),
        ({"layout": "dp=4,micro=1,num_micro=2"}, "must be the global batch of 32"),
        ({"layout": "tp=1,cp=1,pp=1", "global_batch": 8}, "must divide the global batch, got 8"),
        ({"layout": "cp=3"}, "half of the sequence"),
        ({"layout": "pp=64"}, "must not pass the 32 layers"),
        ({"layout": "pp=4,vpp=3"}, "pp x vpp must divide the 32 layers"),
        ({"layout": "pp=1,vpp=2"}, "needs a pipeline"),
        ({"layout": "pp=4,vpp=2,num_micro=2"}, "rounds of pp = 4"),
        ({"layout": "schedule=interleaved,vpp=1"}, "needs vpp of 2 or more"),
        ({"layout": "schedule=zero-bubble,vpp=2"}, "cannot be with vpp=2"),
        ({"layout": "schedule=zb"}, "unknown schedule"),
        ({"layout": "ep=2"}, "only for models with experts"),
        ({"layout": "sp,tp=1"}, "needs tensor parallelism"),
        ({"layout": "zero=4"}, "at most 3"),
        ({"layout": "tp=8,pp=2,zero=1"}, "needs replicas"),
        ({"layout": "tp=2,pp=2,shard=3"}, "must divide the 4 replicas"),
        ({"layout": "recompute=full,recompute_share=0.5"}, "only for recompute=block"),
        ({"layout": "recompute_share=2"}, "at most 1"),
        ({"global_batch": 0}, "global batch: must be a positive integer"),
        ({"seq": -1}, "seq: must be a positive integer"),
        ({"tokens": -1.0}, "tokens: must be a positive number"),
        ({"usd_per_chip_hour": 0.0}, "must be a positive number"),
        ({"precision": "fp9"}, "unknown precision.*fp8"),
        ({"precision": "fp4"}, "is no format of h100"),
        ({"stack": "megatron"}, "unknown software stack"),
        ({"objective": "speed"}, "unknown objective"),
        ({"top": 0}, "top: must be a positive integer"),
        ({"schedules": ()}, "must name one schedule"),
    ],
)
def test_refusals(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        _plan(**changed)


def test_expert_layouts_are_checked() -> None:
    for layout, rule in (
        ("ep=3", "must divide the 128 experts"),
        ("tp=4,etp=2", "must be 1 or tp"),
        ("pp=16,ep=4", "must divide the 2 ranks"),
    ):
        with pytest.raises(InputError, match=rule):
            ask("qwen3-30b-a3b", "h100x32", global_batch=64, layout=layout)


def test_names_are_looked_up() -> None:
    with pytest.raises(InputError, match=r"unknown model.*did you mean 'gpt3-175b'"):
        plan_training("gpt3-157b", "h100x16", global_batch=32)
    with pytest.raises(InputError, match="no such file, and no preset"):
        plan_training("gpt3-175b", "h1000x16", global_batch=32)


def test_a_layout_in_words_reads_back() -> None:
    layout = Layouts.of(
        tp=4, pp=2, dp=8, micro_batch=2, num_micro=8, zero=3, shard=4, recompute=3, recompute_share=0.5,
        schedule=2,
    )  # fmt: skip
    again = Layouts.of(**parse_layout(layout.describe(0)))
    for name, value in vars(layout).items():
        assert getattr(again, name)[0] == value[0], name
