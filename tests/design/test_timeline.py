"""The timeline of a step: schedules played out take what formulas say; totals are the estimate's."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.design import timeline as timelines
from groundplane.design.schedules import Slice, StageSeconds, played
from groundplane.design.timeline import step_timeline, trace_data, write_trace
from groundplane.design.training_plan import ask
from groundplane.perfmodel.pipeline import pipeline_s
from groundplane.perfmodel.strategy import SCHEDULES, Layouts
from groundplane.perfmodel.training import price_training
from groundplane.spec.errors import InputError

EQUAL = StageSeconds(1.0, 1.0, 1.0)


def _formula_s(pp: int, vpp: int, num_micro: int, schedule: str) -> float:
    work, bubble = pipeline_s(
        np.array([3.0]),
        np.array([3.0 * pp]),
        np.array([2.0 / 3.0]),
        np.array([float(pp)]),
        np.array([float(vpp)]),
        np.array([float(num_micro)]),
        np.array([float(SCHEDULES.index(schedule))]),
    )
    return float((work + bubble)[0])


def _check(slices: list[Slice], pp: int, vpp: int, num_micro: int) -> None:
    """No rank does two things at once, every pass runs once, and none before what it needs."""
    ends = [0.0] * pp
    done: dict[tuple[str, int, int], float] = {}
    for one in sorted(slices, key=lambda item: (item.start_s, item.end_s)):
        assert one.start_s >= ends[one.rank] - 1e-9
        ends[one.rank] = one.end_s
        assert (one.kind, one.micro, one.stage) not in done
        done[(one.kind, one.micro, one.stage)] = one.end_s
        if one.kind == "forward" and one.stage > 0:
            assert one.start_s >= done[("forward", one.micro, one.stage - 1)] - 1e-9
        if one.kind == "backward":
            assert one.start_s >= done[("forward", one.micro, one.stage)] - 1e-9
            if one.stage < pp * vpp - 1:
                assert one.start_s >= done[("backward", one.micro, one.stage + 1)] - 1e-9
        if one.kind == "weight":
            assert one.start_s >= done[("backward", one.micro, one.stage)] - 1e-9
    assert sum(kind == "forward" for kind, _, _ in done) == num_micro * pp * vpp
    assert sum(kind == "backward" for kind, _, _ in done) == num_micro * pp * vpp


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SCHEDULES),
    st.integers(min_value=1, max_value=4),
    st.integers(min_value=1, max_value=4),
    st.integers(min_value=2, max_value=4),
)
def test_equal_stages_take_what_the_formula_says(schedule: str, half: int, rounds: int, chunks: int) -> None:
    pp = 2 * half
    vpp = chunks if schedule == "interleaved" else 1
    num_micro = pp * (rounds + 1)
    slices = played([EQUAL] * pp, num_micro, vpp, schedule, 0.0)
    _check(slices, pp, vpp, num_micro)
    end = max(one.end_s for one in slices)
    if schedule == "dualpipe":
        assert end == pytest.approx(_formula_s(pp, vpp, num_micro, schedule), abs=1.0)
    else:
        assert end == pytest.approx(_formula_s(pp, vpp, num_micro, schedule), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SCHEDULES),
    st.lists(st.floats(min_value=0.5, max_value=2.0), min_size=2, max_size=6).filter(
        lambda one: len(one) % 2 == 0
    ),
    st.floats(min_value=0.0, max_value=0.2),
)
def test_unequal_stages_keep_every_order(schedule: str, sizes: list[float], hop_s: float) -> None:
    vpp = 2 if schedule == "interleaved" else 1
    num_micro = 2 * len(sizes)
    slices = played([StageSeconds(size, size, size) for size in sizes], num_micro, vpp, schedule, hop_s)
    _check(slices, len(sizes), vpp, num_micro)
    if schedule != "dualpipe":
        # Never less than the slowest stage's work.
        assert max(one.end_s for one in slices) >= num_micro * 3.0 * max(sizes) * (1.0 - 1e-9)


def test_fewer_micro_batches_than_stages_still_pass() -> None:
    for schedule in ("1f1b", "zero-bubble"):
        _check(played([EQUAL] * 8, 3, 1, schedule, 0.0), 8, 1, 3)


@pytest.mark.usefixtures("calibration")
@pytest.mark.parametrize(
    ("pp", "vpp", "num_micro", "schedule", "tolerance"),
    [
        (1, 1, 16, "1f1b", 1e-9),
        (4, 1, 16, "1f1b", 1e-9),
        (4, 4, 16, "interleaved", 1e-9),
        (4, 1, 16, "zero-bubble", 0.01),
        (4, 1, 16, "dualpipe", 0.03),
    ],
)
def test_totals_agree_with_the_estimate(
    pp: int, vpp: int, num_micro: int, schedule: str, tolerance: float
) -> None:
    question = ask("llama-3.1-8b", "h100x16", global_batch=num_micro * 2, seq=4096)
    layout = Layouts.of(
        tp=8 // pp, pp=pp, vpp=vpp, dp=2, micro_batch=1, num_micro=num_micro, zero=1, sequence_parallel=1,
        schedule=SCHEDULES.index(schedule),
    )  # fmt: skip
    timeline = step_timeline(question, layout)
    prices = price_training(question.job, question.cluster, layout, question.study.profile)
    assert timeline.estimate_s == prices.step_s[0]
    assert timeline.step_s == pytest.approx(timeline.estimate_s, rel=tolerance)
    stages = {name: float(value[0]) for name, value in prices.stages_s.items()}
    profile = question.study.profile
    tail = sum(part.end_s - part.start_s for part in timeline.tail)
    once = profile.step_overhead_s + profile.stall_s * num_micro
    assert tail == pytest.approx(stages["data_communication"] + stages["optimizer"] + once)
    # The slowest stage: what it works and sends, and what it waits, are the estimate's stages.
    busy = max(timeline.busy_s(rank) for rank in range(pp))
    waits = stages["pipeline_bubble"] + stages["pipeline_communication"]
    sends = 2 * vpp * num_micro * timeline.hop_s
    if schedule != "dualpipe":
        work = timeline.estimate_s - tail - waits
        assert busy == pytest.approx(work + sends, rel=1e-9)
        assert timeline.pipeline_s - busy == pytest.approx(waits - sends, rel=0.2, abs=1e-9)


@pytest.mark.usefixtures("calibration")
def test_a_trace_for_perfetto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ask("llama-3.1-8b", "h100x16", global_batch=16, seq=4096)
    layout = Layouts.of(tp=2, pp=4, dp=2, micro_batch=1, num_micro=8, zero=1)
    timeline = step_timeline(question, layout)
    path = tmp_path / "step.json"
    write_trace(timeline, path, "a step")
    data = json.loads(path.read_text())
    names = [item["args"]["name"] for item in data["traceEvents"] if item["name"] == "thread_name"]
    assert names == [f"stage {rank}" for rank in range(4)]
    drawn = [item for item in data["traceEvents"] if item["ph"] == "X"]
    outer = [item for item in drawn if item["cat"] in ("forward", "backward", "bubble", "step")]
    for rank in range(4):
        mine = sorted((item for item in outer if item["tid"] == rank), key=lambda item: item["ts"])
        assert sum(item["dur"] for item in mine) == pytest.approx(1e6 * timeline.step_s, rel=1e-6)
        assert all(first["ts"] + first["dur"] <= second["ts"] + 0.01 for first, second in pairwise(mine))
    assert {"compute", "tensor communication", "send", "bubble", "optimizer"} <= {
        item["name"] for item in drawn
    }
    monkeypatch.setattr(timelines, "MAX_NESTED", 10)
    assert not any(item.get("name") == "compute" for item in trace_data(timeline, "x")["traceEvents"])
    with pytest.raises(InputError, match="cannot be written"):
        write_trace(timeline, tmp_path / "none" / "step.json", "x")
    monkeypatch.setattr(timelines, "MAX_SLICES", 10)
    with pytest.raises(InputError, match="more than 10 passes"):
        step_timeline(question, layout)
