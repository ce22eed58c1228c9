"""One training step as a timeline: passes on pipeline stages, then what follows the pipeline.

Built from the prices of the step model, so that its totals are those of the estimate: the work of the slowest
stage, exchange, optimizer and overhead are equal; the bubble is what the schedule leaves idle when played
out, where the estimate has a formula. Also written as a trace for Perfetto or chrome://tracing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from groundplane.design.schedules import Slice, StageSeconds, played
from groundplane.design.training_plan import Question
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.memory_stages import Stage, all_stages
from groundplane.perfmodel.pipeline import StageKind
from groundplane.perfmodel.strategy import SCHEDULES, Layouts
from groundplane.perfmodel.training import SPENT, StepModel, layer_work, pace_s
from groundplane.spec.errors import InputError

MAX_SLICES: Final = 500_000
"""Passes of the largest timeline: more is neither drawn nor read."""

MAX_NESTED: Final = 40_000
"""Passes up to which a trace shows what each consists of as slices within; above, as numbers beside it."""

_TAIL: Final = ("data_communication", "optimizer", "launch")
_TAIL_WORDS: Final = {
    "data_communication": "gradients and weights between replicas (what shows)",
    "optimizer": "optimizer",
    "launch": "overhead of the step",
}


@dataclass(frozen=True)
class Tail:
    """What every rank does behind the pipeline."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """One step.

    Attributes:
        num_ranks: pipeline stages.
        slices: passes in order of their start.
        parts_s: of each rank, seconds of a forward and of a backward pass by stage of the breakdown.
        hop_s: of sending the result, at the end of each pass.
        tail: behind the pipeline.
        pipeline_s: when the last pass ends.
        step_s: when all ends.
        estimate_s: the step as estimated.
    """

    num_ranks: int
    slices: list[Slice]
    parts_s: list[tuple[dict[str, float], dict[str, float]]]
    hop_s: float
    tail: tuple[Tail, ...]
    pipeline_s: float
    step_s: float
    estimate_s: float

    def busy_s(self, rank: int) -> float:
        """Seconds in which a rank runs passes, sending included."""
        return sum(one.end_s - one.start_s for one in self.slices if one.rank == rank)


def step_timeline(question: Question, layout: Layouts) -> Timeline:
    """The timeline of one layout.

    Raises:
        InputError: so many micro-batches and stages that nobody could look at them.
    """
    profile = question.study.profile
    model = StepModel(question.job, question.cluster, layout, profile)
    prices = model.prices(profile)
    passes = {_key(kind): (down, up) for kind, down, up in model.stage_passes(profile)}
    stages = [passes[_key(stage)] for stage in _stages(question, int(layout.pp[0]))]
    schedule, vpp = SCHEDULES[int(layout.schedule[0])], int(layout.vpp[0])
    num_micro, pp = int(layout.num_micro[0]), len(stages)
    count = pp * num_micro * (3 * vpp if schedule in ("zero-bubble", "dualpipe") else 2 * vpp)
    if count > MAX_SLICES:
        raise InputError(
            f"has more than {MAX_SLICES:,} passes a step to draw; take fewer micro-batches or chunks",
            field="timeline",
            value=count,
        )
    hop_s = model.hop_s(profile)
    seconds = [_seconds(down, up) for down, up in stages]
    slices = played(seconds, num_micro, vpp, schedule, hop_s)
    end = max(one.end_s for one in slices)
    pipeline_s = end
    tail: list[Tail] = []
    once = {name: float(prices.stages_s[name][0]) for name in _TAIL}
    once["launch"] = float(model.once_s(profile)[0])
    for name in _TAIL:
        if once[name] > 0:
            tail.append(Tail(_TAIL_WORDS[name], end, end + once[name]))
            end += once[name]
    return Timeline(
        pp,
        slices,
        [(_parts(down), _parts(up)) for down, up in stages],
        hop_s,
        tuple(tail),
        pipeline_s,
        end,
        float(prices.step_s[0]),
    )


def write_trace(timeline: Timeline, path: Path, title: str) -> None:
    """Writes the timeline in Chrome's trace format; what was there is replaced only by a whole file."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(trace_data(timeline, title), separators=(",", ":")), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from None


def trace_data(timeline: Timeline, title: str) -> dict[str, Any]:
    """The trace as plain data: one track a pipeline stage."""
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": title}}]
    for rank in range(timeline.num_ranks):
        name = {"name": f"stage {rank}"}
        events.append({"ph": "M", "pid": 0, "tid": rank, "name": "thread_name", "args": name})
        events.append(
            {"ph": "M", "pid": 0, "tid": rank, "name": "thread_sort_index", "args": {"sort_index": rank}}
        )
    nested = len(timeline.slices) <= MAX_NESTED
    ends = [0.0] * timeline.num_ranks
    for one in timeline.slices:
        if one.start_s > ends[one.rank] + 1e-9:
            events.append(_event(one.rank, "bubble", "bubble", ends[one.rank], one.start_s))
        ends[one.rank] = one.end_s
        events += _pass_events(timeline, one, nested=nested)
    for rank in range(timeline.num_ranks):
        if timeline.pipeline_s > ends[rank] + 1e-9:
            events.append(_event(rank, "bubble", "bubble", ends[rank], timeline.pipeline_s))
        events += [_event(rank, part.name, "step", part.start_s, part.end_s) for part in timeline.tail]
    about = {"step_s": timeline.step_s, "estimated_step_s": timeline.estimate_s}
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def _pass_events(timeline: Timeline, one: Slice, *, nested: bool) -> list[dict[str, Any]]:
    """A pass, and within it what it computes, what it waits for, and what it sends."""
    down, up = timeline.parts_s[one.stage % timeline.num_ranks]
    parts = down if one.kind == "forward" else up
    whole = _event(one.rank, f"{one.kind} {one.micro}", one.kind, one.start_s, one.end_s)
    total = sum(parts.values())
    sent = timeline.hop_s if one.kind != "weight" else 0.0
    scale = (one.end_s - one.start_s - sent) / total if total > 0 else 0.0
    shown = {name: seconds * scale for name, seconds in parts.items() if seconds > 0}
    whole["args"] = {"micro_batch": one.micro, "stage": one.stage} | {
        f"{name}_us": round(1e6 * seconds, 3) for name, seconds in shown.items()
    }
    if not nested:
        return [whole]
    events, at = [whole], one.start_s
    compute = sum(seconds for name, seconds in shown.items() if not name.endswith("communication"))
    pieces = [("compute", compute)] + [
        (name.replace("_", " "), seconds) for name, seconds in shown.items() if name.endswith("communication")
    ]
    for name, seconds in [*pieces, ("send", sent)]:
        if seconds > 0:
            kind = "compute" if name == "compute" else "communication"
            events.append(_event(one.rank, name, kind, at, min(at + seconds, one.end_s)))
            at += seconds
    return events


def _event(rank: int, name: str, kind: str, start_s: float, end_s: float) -> dict[str, Any]:
    return {
        "ph": "X", "pid": 0, "tid": rank, "name": name, "cat": kind,
        "ts": round(1e6 * start_s, 3), "dur": round(1e6 * (end_s - start_s), 3),
    }  # fmt: skip


def _stages(question: Question, pp: int) -> list[Stage]:
    """What each stage holds, in order, dealt as the step model deals it."""
    model, profile = question.job.model, question.study.profile
    kinds = [layer for layer, _ in model.layer_groups()]
    order = tuple(kinds.index(layer) for layer in model.layers)
    if not profile.balances_stages:
        return all_stages(order, len(kinds), pp)
    work = [layer_work(layer, model.hidden) for layer in kinds]
    return all_stages(
        order, len(kinds), pp, tuple(work[kind] for kind in order), float(model.vocab * model.hidden)
    )


def _key(stage: Stage | StageKind) -> tuple[tuple[int, ...], bool, bool]:
    return tuple(stage.layers), stage.embedding, stage.head


def _seconds(down: FloatArray, up: FloatArray) -> StageSeconds:
    """A stage's passes; half of the backward pass is weight gradients, as the estimate has it."""
    forward_s = float(pace_s(down[:, np.newaxis])[0])
    back_s = float(pace_s(up[:, np.newaxis])[0])
    return StageSeconds(forward_s, back_s / 2.0, back_s / 2.0)


def _parts(spent: FloatArray) -> dict[str, float]:
    return dict(zip(SPENT[:-1], (float(value) for value in spent[:-1]), strict=True))
