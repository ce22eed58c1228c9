"""The plan of a training job as a report page: stages, memory, layouts, scaling, timeline."""

from __future__ import annotations

from typing import Any

from groundplane.cli.plan_train import plan_lines, signed_bytes
from groundplane.design.scaling import ScalingPoint, Study, scaling_curve
from groundplane.design.timeline import Timeline
from groundplane.design.training_answer import TrainingPlan
from groundplane.design.training_plan import Question
from groundplane.perfmodel.estimate import stage_words
from groundplane.report import Chart, Page, Section, Table, Text
from groundplane.spec import units
from groundplane.spec.errors import InputError

MAX_DRAWN = 3_000
"""Passes that the page draws; the trace has all of them."""

_COLOURS = {"forward": "#4c78a8", "backward": "#f58518", "weight": "#54a24b", "step": "#9d755d"}


def plan_page(plan: TrainingPlan, timeline: Timeline, points: list[ScalingPoint]) -> Page:
    """The page of a plan."""
    estimate = plan.estimate
    stages = {name: seconds for name, seconds in estimate.stages_s.items() if seconds > 0}
    figures = [(line[:16].strip(), line[16:]) for line in plan_lines(plan)[1:9] if line[:1].strip()]
    sections = [
        Section("Prediction", [Table(["figure", "value"], figures)]),
        Section(
            "Where the time goes",
            [_bars([1e3 * value for value in stages.values()], [stage_words(name) for name in stages],
                   "milliseconds a step")],
        ),
        Section("Memory of the fullest chip", _memory(plan)),
        Section("Layouts", _layouts(plan)),
    ]  # fmt: skip
    if points:
        sections.append(Section("Scaling", [_scaling(points)]))
    sections.append(Section("One step", _drawn(timeline)))
    if plan.relief:
        rows = [
            [
                item.change,
                units.show_duration(item.step_s),
                f"{100 * (item.gain - 1):+.1f} %",
                item.layout or "",
            ]
            for item in plan.relief
            if item.step_s is not None and item.gain is not None
        ]
        sections.append(Section("What would relieve it", [Table(["change", "step", "gain", "layout"], rows)]))
    sections.append(Section("Assumed", [Text("\n\n".join(estimate.assumptions))]))
    return Page(
        title=f"Plan: {plan.model}",
        lead=f"{plan.num_chips} x {plan.chip} of {plan.cluster}, {plan.stack}, {plan.precision}, "
        f"batch {plan.global_batch} x {plan.seq} tokens",
        sections=sections,
    )


def scaling_around(question: Question, cluster_name: str, plan: TrainingPlan) -> list[ScalingPoint]:
    """The plan's ranks at a quarter of the chips to four times as many, replicas following, what else is open
    tuned anew; nothing where the cluster has one size only."""
    from groundplane.catalog import cluster_sizes

    kept = {name: float(plan.layout_parts[name]) for name in ("tp", "cp", "pp", "ep", "etp")}
    study = question.study
    try:
        study = Study(
            study.job, cluster_sizes(cluster_name), study.profile, study.memory, kept, study.schedules,
            study.residuals,
        )  # fmt: skip
    except InputError:
        return []
    points: list[ScalingPoint] = []
    for factor in (0.25, 0.5, 1.0, 2.0, 4.0):
        chips = plan.num_chips * factor
        if chips != int(chips):
            continue
        try:
            points += scaling_curve(study, [int(chips)], plan.global_batch)
        except InputError:
            # Sizes at which the ranks or the batch do not divide have no point on the curve.
            continue
    return [point for point in points if point.layout is not None]


def _bars(values: list[float], names: list[str], unit: str) -> Chart:
    trace = {"type": "bar", "orientation": "h", "x": values, "y": names}
    layout = {"xaxis": {"title": unit}, "yaxis": {"autorange": "reversed", "automargin": True}}
    return Chart([trace], layout)


def _memory(plan: TrainingPlan) -> list[Text | Table | Chart]:
    memory = plan.memory
    parts: list[Text | Table | Chart] = [
        _bars([size / 2**30 for size in memory.parts_bytes.values()], list(memory.parts_bytes), "GiB"),
        Text(
            f"{units.show_bytes(memory.needed_bytes)} ({units.show_bytes(memory.low_bytes)} to "
            f"{units.show_bytes(memory.high_bytes)} in 8 of 10 cases) of "
            f"{units.show_bytes(memory.limit_bytes)} usable: {memory.verdict}."
        ),
    ]
    if memory.changes:
        rows = [[change.text, signed_bytes(change.needed_bytes), "yes" if change.fits else "no"]
                for change in memory.changes]  # fmt: skip
        parts.append(Table(["change", "memory", "fits"], rows))
    return parts


def _layouts(plan: TrainingPlan) -> list[Text | Table | Chart]:
    columns = ["step", "MFU", "memory", "layout"]
    rows = [
        [
            units.show_duration(item.step_s),
            f"{100 * item.mfu:.1f} %",
            units.show_bytes(item.memory_bytes),
            item.layout,
        ]
        for item in plan.next_best
    ]
    found: list[Text | Table | Chart] = []
    if plan.front:
        front = {
            "type": "scatter", "mode": "lines+markers", "name": "no layout beats these in both",
            "x": [item.step_s for item in plan.front],
            "y": [item.memory_bytes / 2**30 for item in plan.front],
            "text": [item.layout for item in plan.front], "line": {"shape": "hv"},
        }  # fmt: skip
        chosen = {
            "type": "scatter", "mode": "markers", "name": "this plan",
            "marker": {"size": 12, "symbol": "star"},
            "x": [plan.estimate.step_s], "y": [plan.memory.needed_bytes / 2**30],
        }  # fmt: skip
        axes = {"xaxis": {"title": "seconds a step"}, "yaxis": {"title": "GiB a chip"}}
        found.append(Chart([front, chosen], axes))
    if rows:
        found += [Text("Next best:"), Table(columns, rows)]
    return found or [Text("No layout fits.")]


def _scaling(points: list[ScalingPoint]) -> Chart:
    chips = [point.num_chips for point in points]
    base = points[0]
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "name": "predicted", "x": chips, "y": [point.tokens_per_s for point in points]},
        {
            "type": "scatter", "name": "linear", "x": chips, "line": {"dash": "dot"},
            "y": [base.tokens_per_s * size / base.num_chips for size in chips],
        },
    ]  # fmt: skip
    axes = {
        "xaxis": {"title": "chips", "type": "log"},
        "yaxis": {"title": "tokens/s, same batch", "type": "log"},
    }
    return Chart(traces, axes)


def _drawn(timeline: Timeline) -> list[Text | Table | Chart]:
    """The pipeline as bars, one row a stage."""
    slices = timeline.slices
    note = f"{len(slices):,} passes; the step ends at {units.show_duration(timeline.step_s)}."
    if len(slices) > MAX_DRAWN:
        slices = slices[:MAX_DRAWN]
        note += f" The first {MAX_DRAWN:,} are drawn; --trace writes all of them."
    traces: list[dict[str, Any]] = []
    for kind in ("forward", "backward", "weight"):
        mine = [one for one in slices if one.kind == kind]
        if mine:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": kind,
                    "marker": {"color": _COLOURS[kind]},
                    "base": [1e3 * one.start_s for one in mine],
                    "x": [1e3 * (one.end_s - one.start_s) for one in mine],
                    "y": [f"stage {one.rank}" for one in mine],
                    "text": [f"micro-batch {one.micro}" for one in mine],
                    "textposition": "none",
                }
            )
    if len(slices) == len(timeline.slices):
        for part in timeline.tail:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": part.name,
                    "base": [1e3 * part.start_s] * timeline.num_ranks,
                    "x": [1e3 * (part.end_s - part.start_s)] * timeline.num_ranks,
                    "y": [f"stage {rank}" for rank in range(timeline.num_ranks)],
                }
            )
    layout = {
        "barmode": "overlay", "xaxis": {"title": "milliseconds"}, "yaxis": {"autorange": "reversed"},
        "height": max(260, 40 * timeline.num_ranks),
    }  # fmt: skip
    return [Text(note), Chart(traces, layout)]
