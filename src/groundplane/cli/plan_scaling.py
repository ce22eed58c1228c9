"""`groundplane plan scaling`: the best layout at each size of a cluster, and what would relieve it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from groundplane.design.scaling import ScalingPoint, WhatIf
    from groundplane.perfmodel.strategy import Layouts

DEFAULT_SCHEDULES = ("1f1b", "interleaved")


@click.command(
    "scaling",
    epilog="Example: groundplane plan scaling llama-3.1-70b --cluster h100 --chips 64,128,256,512 "
    "--global-batch 512 --seq 8192",
)
@click.argument("model")
@click.option(
    "--cluster", "cluster_name", required=True, help="A chip, a server, a preset or a cluster file."
)
@click.option("--chips", "chips_text", required=True, metavar="N,N,...", help="Sizes, ascending.")
@click.option("--global-batch", type=int, required=True, help="Sequences a step (weak: at the first size).")
@click.option("--seq", type=int, help="Tokens of a sequence (default: what the model takes, at most 8192).")
@click.option("--mode", type=click.Choice(["strong", "weak"]), default="strong", show_default=True)
@click.option("--precision", default="bf16", show_default=True, help="Format of the linear layers.")
@click.option("--stack", default="megatron-core", show_default=True, help="Software stack.")
@click.option("--layout", default="", metavar="tp=8,...", help="Parts of the layout that are given.")
@click.option("--schedules", default=",".join(DEFAULT_SCHEDULES), show_default=True, help="Of the pipeline.")
@click.option("--what-if", "with_what_if", is_flag=True, help="Also say what would relieve the largest size.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def scaling_command(
    model: str,
    cluster_name: str,
    chips_text: str,
    global_batch: int,
    seq: int | None,
    mode: str,
    precision: str,
    stack: str,
    layout: str,
    schedules: str,
    with_what_if: bool,
    as_json: bool,
) -> None:
    """Search the best layout at each size: step time, tokens/s, MFU and scaling efficiency.

    Strong scaling keeps the global batch, weak scaling the batch of a chip.
    """
    from groundplane.catalog import cluster_sizes, resolve_llm
    from groundplane.design.scaling import Study, scaling_curve, what_ifs
    from groundplane.perfmodel.memory_profile import memory_profile
    from groundplane.perfmodel.passes import Precision
    from groundplane.perfmodel.profiles import stack_profile
    from groundplane.perfmodel.strategy import parse_layout
    from groundplane.perfmodel.training import TrainingJob
    from groundplane.spec.errors import InputError

    spec = resolve_llm(model)
    tokens = seq if seq is not None else min(spec.max_positions or 8192, 8192)
    if tokens < 1:
        raise InputError("must be a positive integer", field="--seq", value=tokens)
    profile = stack_profile(stack)
    study = Study(
        TrainingJob(spec, tokens, Precision(linear=precision)),
        cluster_sizes(cluster_name),
        profile,
        memory_profile(profile.name),
        parse_layout(layout),
        tuple(part.strip() for part in schedules.split(",")),
    )
    sizes = whole_numbers(chips_text)
    points = scaling_curve(study, sizes, global_batch, mode="weak" if mode == "weak" else "strong")
    last = points[-1]
    relief: list[WhatIf] = []
    if with_what_if and last.layout is not None:
        relief = what_ifs(study, last.num_chips, last.global_batch, last.layout)
    if as_json:
        data = {
            "model": spec.name,
            "seq": tokens,
            "mode": mode,
            "stack": stack,
            "points": [point_data(point) for point in points],
            "what_if": [what_if_data(item) for item in relief],
        }
        click.echo(json.dumps(data, indent=2))
        return
    click.echo(f"{spec.name}, sequences of {tokens}, {mode} scaling, {stack} on {cluster_name}")
    for line in point_lines(points) + what_if_lines(relief):
        click.echo(line)


def whole_numbers(text: str) -> list[int]:
    """Sizes from "64,128".

    Raises:
        InputError: anything but positive integers.
    """
    from groundplane.spec.errors import InputError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InputError("must be positive integers with commas between them", field="--chips", value=text)
    return [int(part) for part in parts]


def point_lines(points: list[ScalingPoint]) -> list[str]:
    """The curve for people."""
    from groundplane.cli.catalog import aligned
    from groundplane.spec import units

    rows: list[tuple[str, ...]] = [
        ("chips", "batch", "step", "tokens/s", "a chip", "MFU", "efficiency", "memory", "layout")
    ]
    for point in points:
        if point.layout is None:
            need = units.show_bytes(point.memory_bytes)
            rows.append(
                (str(point.num_chips), str(point.global_batch), *[""] * 6, f"does not fit: needs {need}")
            )
            continue
        rows.append(
            (
                str(point.num_chips),
                str(point.global_batch),
                units.show_duration(point.step_s),
                f"{point.tokens_per_s:,.0f}",
                f"{point.tokens_per_s / point.num_chips:,.0f}",
                f"{100 * point.mfu:.1f} %",
                f"{100 * point.efficiency:.1f} %",
                units.show_bytes(point.memory_bytes),
                point.layout.describe(0),
            )
        )
    return aligned(rows)


def what_if_lines(relief: list[WhatIf]) -> list[str]:
    """What each change would give, for people."""
    from groundplane.cli.catalog import aligned
    from groundplane.spec import units

    if not relief:
        return []
    rows: list[tuple[str, ...]] = [("what if", "same layout", "best layout", "gain", "")]
    for item in relief:
        fits = item.layout is not None
        rows.append(
            (
                item.name,
                units.show_duration(item.same_layout_s),
                units.show_duration(item.best_s) if fits else "does not fit",
                f"{100 * (item.gain - 1):+.1f} %" if fits else "",
                item.layout.describe(0) if item.layout is not None else "",
            )
        )
    return ["", *aligned(rows)]


def point_data(point: ScalingPoint) -> dict[str, Any]:
    """One size for programs; null where nothing fits."""
    fits = point.layout is not None
    return {
        "chips": point.num_chips,
        "global_batch": point.global_batch,
        "fits": fits,
        "step_s": point.step_s if fits else None,
        "tokens_per_s": point.tokens_per_s if fits else None,
        "mfu": point.mfu if fits else None,
        "efficiency": point.efficiency if fits else None,
        "memory_bytes": point.memory_bytes,
        "layout": layout_data(point.layout),
    }


def what_if_data(item: WhatIf) -> dict[str, Any]:
    """One change for programs; null where nothing fits."""
    fits = item.layout is not None
    return {
        "change": item.name,
        "same_layout_s": item.same_layout_s,
        "best_s": item.best_s if fits else None,
        "gain": item.gain if fits else None,
        "layout": layout_data(item.layout),
    }


def layout_data(layout: Layouts | None) -> dict[str, float] | None:
    """A single layout as numbers and names."""
    from groundplane.perfmodel.strategy import RECOMPUTE, SCHEDULES

    if layout is None:
        return None
    fields: dict[str, Any] = {
        name: int(value[0]) for name, value in vars(layout).items() if name != "recompute_share"
    }
    fields["recompute"] = RECOMPUTE[fields["recompute"]]
    fields["schedule"] = SCHEDULES[fields["schedule"]]
    fields["sequence_parallel"] = bool(fields["sequence_parallel"])
    fields["recompute_share"] = float(layout.recompute_share[0])
    return fields
