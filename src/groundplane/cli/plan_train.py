"""`groundplane plan train MODEL`: the plan of a training job, for people and for programs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from groundplane.design.parallelism import Progress
    from groundplane.design.training_answer import Option, TrainingPlan

LEAST_GAIN = 1.0005
"""Gain below which a change is not worth a line."""

_TOKENS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def train_model(
    model: str,
    cluster_name: str,
    *,
    as_json: bool,
    html: Path | None,
    global_batch: int | None,
    tokens: str | None,
    objective: str,
    top: int,
    usd_per_chip_hour: float | None,
    trace: Path | None,
    schedules: str,
    **asked: Any,
) -> None:
    """Plans, prints, and writes the page and the trace that were asked for."""
    from groundplane.design.training_plan import ask, plan_training
    from groundplane.spec.errors import InputError

    if global_batch is None:
        raise InputError("is required: sequences a step", field="--global-batch")
    for path in (html, trace):
        if path is not None and not path.resolve().parent.is_dir():
            raise InputError("cannot be written: no such folder", file=str(path))
    chosen = tuple(part.strip() for part in schedules.split(",") if part.strip())
    total = None if tokens is None else number_of_tokens(tokens)
    bar = progress_line()
    plan = plan_training(
        model, cluster_name, global_batch=global_batch, objective=objective, top=top, tokens=total,
        usd_per_chip_hour=usd_per_chip_hour, schedules=chosen, progress=bar, **asked,
    )  # fmt: skip
    if bar is not None:
        click.echo("\r\033[K", nl=False, err=True)
    wrote = []
    if html is not None or trace is not None:
        from groundplane.design.timeline import step_timeline, write_trace
        from groundplane.design.training_answer import layout_of

        question = ask(model, cluster_name, global_batch=global_batch, schedules=chosen, **asked)
        timeline = step_timeline(question, layout_of(plan))
        if trace is not None:
            write_trace(timeline, trace, f"{plan.model} on {plan.num_chips} x {plan.chip}")
            wrote.append(f"Wrote {trace}: open it in https://ui.perfetto.dev.")
        if html is not None:
            from groundplane.cli.plan_train_page import plan_page, scaling_around

            plan_page(plan, timeline, scaling_around(question, cluster_name, plan)).write(html)
            wrote.append(f"Wrote {html}.")
    if as_json:
        click.echo(json.dumps(plan_data(plan), indent=2))
        return
    for line in [*plan_lines(plan), *wrote]:
        click.echo(line)


def number_of_tokens(text: str) -> float:
    """A number from "15T", "300B", "2e12".

    Raises:
        InputError: anything else.
    """
    from groundplane.spec.errors import InputError

    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,3})?)\s*([kMGBT]?)", text.strip())
    if match is None or not 0 < float(match[1]) * _TOKENS[match[2]] < 1e30:
        raise InputError("must be a positive number such as 15T or 300B", field="--tokens", value=text)
    return float(match[1]) * _TOKENS[match[2]]


def progress_line() -> Progress | None:
    """Shows on a terminal how far a search is; nothing elsewhere."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        share = 100 * done // max(total, 1)
        click.echo(f"\r\033[K{done:,} of {total:,} layouts ({share} %)", nl=False, err=True)

    return show


def plan_data(plan: TrainingPlan) -> dict[str, Any]:
    """The plan for programs."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(plan)
    return plain | {"fits": plan.fits}


def plan_lines(plan: TrainingPlan) -> list[str]:
    """The plan for people."""
    return [
        *_head(plan), "", *_stages(plan), "", *_memory(plan), *_relief(plan), *_others(plan), "",
        f"evidence: {plan.estimate.evidence}; assumed:",
        *(f"  - {text}" for text in plan.estimate.assumptions),
    ]  # fmt: skip


def _head(plan: TrainingPlan) -> list[str]:
    from groundplane.spec import units

    estimate = plan.estimate
    size = units.show_count(plan.parameters)
    if plan.active_parameters != plan.parameters:
        size += f", {units.show_count(plan.active_parameters)} active"
    low, high = units.show_duration(estimate.step_low_s), units.show_duration(estimate.step_high_s)
    per_chip = estimate.tokens_per_s / plan.num_chips
    rows = [
        ("layout", plan.layout),
        ("step", f"{units.show_duration(estimate.step_s)} ({low} to {high} in 8 of 10 cases)"),
        ("tokens/s", f"{estimate.tokens_per_s:,.0f} ({per_chip:,.0f} a chip)"),
        ("MFU", f"{100 * estimate.mfu:.1f} % (HFU {100 * estimate.hfu:.1f} %)"),
        ("bottleneck", estimate.bottleneck),
    ]
    if plan.training is not None:
        run = plan.training
        rows.append(
            (
                f"{units.show_count(run.tokens)} tokens",
                f"{run.days:,.1f} days ({run.days_low:,.1f} to {run.days_high:,.1f}), {run.steps:,} steps, "
                f"{run.chip_hours:,.0f} chip-hours"
                + ("" if run.cost_usd is None else f", {run.cost_usd:,.0f} USD"),
            )
        )
    rows.append(("searched", f"{plan.num_layouts:,} layouts, {plan.num_priced:,} priced in full"))
    return [
        f"{plan.model} ({size}) on {plan.num_chips} x {plan.chip}, {plan.stack}, {plan.precision}, "
        f"batch {plan.global_batch} x {plan.seq}",
        *(f"{name:<16}{text}" for name, text in rows),
    ]


def _stages(plan: TrainingPlan) -> list[str]:
    from groundplane.cli.plan import stage_rows

    return [f"  {name:<62}{share}" for name, share in stage_rows(plan.estimate)]


def _memory(plan: TrainingPlan) -> list[str]:
    from groundplane.spec import units

    memory = plan.memory
    found = [
        f"memory a chip   {units.show_bytes(memory.needed_bytes)} "
        f"({units.show_bytes(memory.low_bytes)} to {units.show_bytes(memory.high_bytes)}) of "
        f"{units.show_bytes(memory.limit_bytes)} usable, pipeline stage {memory.stage}: {memory.verdict}"
    ]
    found += [f"  {part:<62}{signed_bytes(size):>9}" for part, size in memory.parts_bytes.items() if size]
    if memory.changes:
        fitting = any(change.fits for change in memory.changes)
        found.append("to make it fit:" if fitting else "no single change makes it fit; what saves most:")
        found += [
            f"  {change.text:<62}{units.show_bytes(change.needed_bytes):>9}" for change in memory.changes
        ]
    return found


def signed_bytes(size_bytes: float) -> str:
    """Bytes with a sign where they are negative: what a stack takes less than its tensors add up to."""
    from groundplane.spec import units

    return units.show_bytes(size_bytes) if size_bytes >= 0 else f"-{units.show_bytes(-size_bytes)}"


def _relief(plan: TrainingPlan) -> list[str]:
    from groundplane.spec import units

    helpful = [item for item in plan.relief if item.gain is not None and item.gain > LEAST_GAIN]
    if not helpful:
        return []
    found = ["", "what would relieve it (same ranks, the rest tuned anew):"]
    for item in helpful:
        tuned = "" if item.layout == plan.layout else f"  {changed_parts(plan.layout, item.layout or '')}"
        found.append(
            f"  {item.change:<40}{units.show_duration(item.step_s or 0.0):>9}"
            f"{100 * ((item.gain or 1.0) - 1):>+8.1f} %{tuned}"
        )
    return found


def changed_parts(before: str, after: str) -> str:
    """Parts of a layout that another has not."""
    known = before.split(",")
    return ",".join(part for part in after.split(",") if part not in known)


def _others(plan: TrainingPlan) -> list[str]:
    found: list[str] = []
    for title, options in (("next best:", plan.next_best), ("time against memory:", plan.front)):
        if options:
            found += ["", title, *(_option(item) for item in options[:8])]
    return found


def _option(item: Option) -> str:
    from groundplane.spec import units

    step, memory = units.show_duration(item.step_s), units.show_bytes(item.memory_bytes)
    return f"  {step:>9}{100 * item.mfu:>7.1f} %{memory:>11}  {item.layout}"
