"""`groundplane validate`: compare predictions with published measurements."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from groundplane.perfmodel.validation.report import Errors, Report
    from groundplane.perfmodel.validation.serving import ServingErrors

DATA_OPTION = click.option(
    "--data", type=click.Path(path_type=Path), help="CSV file of measurements; without it, the cited points."
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(epilog="Example: groundplane validate network")
def validate_command() -> None:
    """Compare predictions with published measurements: errors by source, and whether intervals hold."""


@validate_command.command("training", epilog="Example: groundplane validate training --data runs.csv --json")
@DATA_OPTION
@JSON_OPTION
def training(data: Path | None, as_json: bool) -> None:
    """Step times of training runs, by source; a null model and leave-one-source-out beside."""
    import msgspec

    from groundplane.perfmodel.validation.training import validate_training

    found = validate_training(data)
    if as_json:
        beside = {
            "leave_one_source_out": msgspec.to_builtins(found.left_out),
            "null_model": msgspec.to_builtins({"pooled": found.null_pooled, "inferred": found.null_inferred}),
            "profile_parameters": found.parameters,
            "ranking": msgspec.to_builtins(found.ranking),
        }
        click.echo(json.dumps(as_plain(found.report) | beside, indent=1))
        return
    show(found.report)
    click.echo("\nThe null model (one fitted efficiency x 1F1B bubble) on the same rows:")
    show_errors([found.null_pooled, found.null_inferred])
    click.echo("\nEach source under a profile fitted without it:")
    show_errors(found.left_out)
    if found.ranking:
        click.echo("\nThe layout picked in each sweep, measured against the best measured one:")
        for one in found.ranking:
            click.echo(
                f"{one.source[:60]:<62}{one.num_sweeps:>3} sweeps  "
                f"median {one.median_behind_pct:.1f} % behind, 90th percentile {one.p90_behind_pct:.1f} %"
            )
    counts = ", ".join(f"{name} {count}" for name, count in found.parameters.items())
    click.echo(f"\nFitted numbers of each stack profile: {counts}")


@validate_command.command("kernels", epilog="Example: groundplane validate kernels --data gemms.csv")
@DATA_OPTION
@JSON_OPTION
def kernels(data: Path | None, as_json: bool) -> None:
    """Times of matrix products or of attention (which one, the file's columns say)."""
    from groundplane.perfmodel.validation.kernels import validate_kernels

    output(validate_kernels(data), as_json)


@validate_command.command("network", epilog="Example: groundplane validate network --data nccl.csv --json")
@DATA_OPTION
@JSON_OPTION
def network(data: Path | None, as_json: bool) -> None:
    """Times of collectives, large (1 MB and more) and small messages apart."""
    from groundplane.perfmodel.validation.network import validate_network

    output(validate_network(data), as_json)


@validate_command.command("memory", epilog="Example: groundplane validate memory --data sweep.csv --json")
@DATA_OPTION
@JSON_OPTION
def memory(data: Path | None, as_json: bool) -> None:
    """Memory of training runs, and which of them ran out of it (where the file says so)."""
    from groundplane.perfmodel.validation.memory import validate_memory

    found = validate_memory(data)
    output(found, as_json)
    accuracy = as_plain(found)["pooled"]["balanced_accuracy_pct"]
    if not as_json and accuracy is not None:
        click.echo(f"\nFit told from out of memory: balanced accuracy {accuracy:.1f} %")


@validate_command.command("serving", epilog="Example: groundplane validate serving --data runs.csv --json")
@DATA_OPTION
@JSON_OPTION
def serving(data: Path | None, as_json: bool) -> None:
    """Times to first token and per token of serving runs at their concurrency, and each model left out."""
    if data is not None and data.is_dir():
        from groundplane.cli.validate_serving_runs import show_runs

        show_runs(data, as_json)
        return
    from groundplane.perfmodel.validation.serving import validate_serving

    found = validate_serving(data)
    if as_json:
        click.echo(json.dumps(as_plain(found), indent=1))
        return
    for name in ("sources", "by_chip", "by_engine", "by_model", "by_precision", "leave_one_model_out"):
        show_serving(name.replace("_", " "), getattr(found, name))
    show_serving("all", [found.pooled, found.inferred])
    for one in [*found.sources, found.pooled]:
        if one.throughput_median_abs_pct is not None:
            click.echo(f"output tokens/s, {one.source}: {one.throughput_median_abs_pct:.1f} % median error")
    if found.excluded:
        click.echo(f"\nNot compared: {len(found.excluded)} rows")


def show_serving(title: str, errors: Iterable[ServingErrors]) -> None:
    """One line a group: errors of both times in per cent of the measurement."""
    click.echo(f"\n{title:<44}{'n':>5}{'ttft: median':>14}{'mean':>8}{'bias':>8}", nl=False)
    click.echo(f"{'tpot: median':>14}{'mean':>8}{'bias':>8}{'inside':>8}")
    for one in errors:
        figures = (one.ttft_median_abs_pct, one.ttft_mean_abs_pct, one.ttft_bias_pct, one.tpot_median_abs_pct,
                   one.tpot_mean_abs_pct, one.tpot_bias_pct, one.coverage_pct)  # fmt: skip
        widths = (14, 8, 8, 14, 8, 8, 8)
        cells = "".join(
            f"{'-' if value is None else f'{value:.1f}':>{width}}"
            for value, width in zip(figures, widths, strict=True)
        )
        click.echo(f"{one.source[-42:]:<44}{one.n:>5}{cells}")


def output(report: Any, as_json: bool) -> None:
    """A report for programs or for people."""
    if as_json:
        click.echo(json.dumps(as_plain(report), indent=1))
    else:
        show(report)


def as_plain(report: Any) -> dict[str, Any]:
    """A report as plain data."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(report)
    return plain


def show(report: Report) -> None:
    """A report as a table: sources, all complete rows, inferred rows, and what was left out by reason."""
    show_errors([*report.sources, *report.small_sources])
    click.echo()
    show_errors([report.pooled, report.inferred])
    reasons: dict[str, list[int]] = {}
    for one in report.excluded:
        reasons.setdefault(one.reason, []).append(one.row)
    if reasons:
        click.echo(f"\nNot compared, {len(report.excluded)} rows:")
    for reason, rows in sorted(reasons.items(), key=lambda pair: -len(pair[1])):
        shown = ", ".join(str(row) for row in rows[:8]) + (", ..." if len(rows) > 8 else "")
        click.echo(f"  {len(rows):4}  {reason} (rows {shown})")


def show_errors(errors: Iterable[Errors]) -> None:
    """One line a group: errors in per cent of the measurement."""
    click.echo(f"{'source':<62}{'n':>5}{'median':>8}{'mean':>8}{'p90':>8}{'bias':>8}{'inside':>8}")
    for one in errors:
        figures = (one.median_abs_pct, one.mean_abs_pct, one.p90_abs_pct, one.bias_pct, one.coverage_pct)
        cells = "".join(f"{'-' if value is None else f'{value:.1f}':>8}" for value in figures)
        name = one.source if len(one.source) <= 60 else one.source[:57] + "..."
        click.echo(f"{name:<62}{one.n:>5}{cells}")
