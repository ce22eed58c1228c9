"""The page of a cluster simulation: policies side by side, devices over time, who held what when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from groundplane.cli.simulate_cluster import comparison
from groundplane.report.page import Chart, Page, Section, Table, Text
from groundplane.sim.scenario import Answer
from groundplane.sim.summary import Waits
from groundplane.sim.timeline import Timeline
from groundplane.spec import units

S = 1_000_000_000
HOUR_S = 3600.0
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d", "#72b7b2", "#eeca3b", "#e45756")
_FADED = "#bbbbbb"
MAX_DRAWN_BARS = 120
"""Attempts that are drawn as bars, those that held most device-time."""


def cluster_page(cluster: str, workload: str, answers: Sequence[Answer]) -> Page:
    """The page of one simulation under one policy or several."""
    summaries = [answer.summary for answer in answers]
    rows = comparison(summaries)
    sections = [
        Section("Policies side by side", [Table(["", *rows[0][1:]], rows[1:])]),
        Section("Where the device-time went", [_ledgers(answers)]),
        Section("Waits by size of gang", [_waits(answers)]),
    ]
    for answer in answers:
        name = answer.summary.policy
        if answer.run.timeline is not None:
            sections.append(Section(f"Devices over time: {name}", _over_time(answer.run.timeline)))
            sections.append(Section(f"Largest stays: {name}", _bars(answer.run.timeline)))
        tables = [_table(answer.summary.waits), _table(answer.summary.queues)]
        sections.append(Section(f"By group: {name}", tables))
    first = summaries[0]
    return Page(
        title=f"Cluster simulation: {cluster}",
        lead=f"{first.nodes} nodes with {first.devices} devices, {first.jobs} jobs of {workload} in "
        f"{units.show_duration(first.arrivals_s)}, seed {first.seed}. The scheduler is the one that runs "
        "real jobs; only time, nodes and processes are simulated.",
        sections=sections,
    )


def _ledgers(answers: Sequence[Answer]) -> Chart:
    names = [answer.summary.policy for answer in answers]
    traces = [
        {
            "type": "bar", "orientation": "h", "name": account.replace("_", " "), "y": names,
            "x": [100 * answer.summary.ledger[account] for answer in answers],
        }
        for account in answers[0].summary.ledger
    ]  # fmt: skip
    layout = {
        "barmode": "stack", "height": 160 + 50 * len(names),
        "xaxis": {"title": "% of all device-time"}, "yaxis": {"automargin": True},
    }  # fmt: skip
    return Chart(traces, layout)


def _waits(answers: Sequence[Answer]) -> Chart:
    traces = [
        {
            "type": "bar", "name": answer.summary.policy,
            "x": [f"{row.group} devices" for row in answer.summary.waits],
            "y": [row.mean_s / HOUR_S for row in answer.summary.waits],
        }
        for answer in answers
    ]  # fmt: skip
    return Chart(traces, {"barmode": "group", "yaxis": {"title": "hours of mean wait"}})


def _over_time(timeline: Timeline) -> list[Text | Table | Chart]:
    hours = [sample.now_ns / S / HOUR_S for sample in timeline.samples]
    parts = (
        ("held", "held by jobs", _COLOURS[0]),
        ("free", "free", _FADED),
        ("closed", "closed", _COLOURS[7]),
    )
    areas: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines", "stackgroup": "devices", "name": words, "x": hours,
            "y": [getattr(sample, part) for sample in timeline.samples],
            "line": {"width": 0, "color": colour}, "fillcolor": colour,
        }
        for part, words, colour in parts
    ]  # fmt: skip
    waiting = {
        "type": "scatter", "mode": "lines", "name": "devices that waiting jobs ask for", "x": hours,
        "y": [sample.waiting_devices for sample in timeline.samples], "line": {"color": _COLOURS[1]},
    }  # fmt: skip
    axes = {"xaxis": {"title": "hours"}, "yaxis": {"title": "devices"}}
    return [Chart(areas, axes), Chart([waiting], axes)]


def _bars(timeline: Timeline) -> list[Text | Table | Chart]:
    """One row a job, one bar an attempt, coloured by queue; attempts that failed are faded."""
    bars = sorted(timeline.bars, key=lambda bar: -bar.device_ns)[:MAX_DRAWN_BARS]
    bars.sort(key=lambda bar: (bar.start_ns, bar.work_id))
    rows = {
        job_id: f"{job_id} ({num})" for job_id, num in {bar.job_id: bar.num_devices for bar in bars}.items()
    }
    traces: list[dict[str, Any]] = []
    for index, queue in enumerate(sorted({bar.queue for bar in bars})):
        mine = [bar for bar in bars if bar.queue == queue]
        traces.append(
            {
                "type": "bar", "orientation": "h", "name": queue, "y": [rows[bar.job_id] for bar in mine],
                "base": [bar.start_ns / S / HOUR_S for bar in mine],
                "x": [(bar.end_ns - bar.start_ns) / S / HOUR_S for bar in mine],
                "text": [f"{bar.work_id}: {bar.num_devices} devices, {bar.outcome}" for bar in mine],
                "textposition": "none",
                "marker": {
                    "color": _COLOURS[index % len(_COLOURS)],
                    "opacity": [1.0 if bar.outcome in ("succeeded", "running") else 0.4 for bar in mine],
                },
            }
        )  # fmt: skip
    layout = {
        "barmode": "overlay", "xaxis": {"title": "hours"}, "height": max(260, 12 * len(rows) + 120),
        "yaxis": {"autorange": "reversed", "automargin": True, "categoryorder": "array",
                  "categoryarray": list(rows.values()), "tickfont": {"size": 8}},
    }  # fmt: skip
    note = f"The {len(bars)} attempts that held most device-time; devices in brackets; faded ones failed."
    return [Text(note), Chart(traces, layout)]


def _table(rows: Sequence[Waits]) -> Table:
    columns = [
        "group",
        "jobs",
        "device-hours",
        "mean wait",
        "p50",
        "p95",
        "to the end, mean",
        "p95 ",
        "stretch",
    ]
    cells = [
        [
            row.group,
            str(row.jobs),
            f"{row.device_hours:,.0f}",
            *(
                units.show_duration(value)
                for value in (row.mean_s, row.p50_s, row.p95_s, row.completion_mean_s, row.completion_p95_s)
            ),
            f"{row.stretch:.2f}",
        ]
        for row in rows
    ]
    return Table(columns, cells)
