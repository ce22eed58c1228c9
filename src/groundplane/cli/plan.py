"""`groundplane plan`: predict time, memory and bottleneck before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from groundplane.cli.plan_scaling import scaling_command

if TYPE_CHECKING:
    from groundplane.perfmodel.estimate import TrainingEstimate
    from groundplane.spec.cluster import ClusterSpec
    from groundplane.spec.job import JobSpec

FILE_SUFFIXES = (".yaml", ".yml", ".toml")


@click.group()
def plan_command() -> None:
    """Predict time, memory and bottleneck before anything runs."""


@plan_command.command("train", epilog="Example: groundplane plan train job.yaml --cluster cluster.yaml")
@click.argument("what", metavar="JOB.yaml|MODEL")
@click.option("--cluster", "cluster_name", required=True, help="Cluster file, or a preset such as h100x1024.")
@click.option("--json", "as_json", is_flag=True, help="Print the estimate as JSON.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a report page.")
def train(what: str, cluster_name: str, as_json: bool, html: Path | None) -> None:
    """Predict one training step: time by stage, memory by part, bottleneck, and what was assumed.

    JOB.yaml is a job of the built-in trainer; `groundplane probe` writes the cluster file of this machine.
    """
    from groundplane.catalog.resolve import resolve_cluster
    from groundplane.perfmodel.eager import price_host_training
    from groundplane.spec.errors import InputError
    from groundplane.spec.job import JobSpec
    from groundplane.spec.load import load

    if not what.endswith(FILE_SUFFIXES):
        raise InputError("must be a job file (.yaml or .toml)", field="JOB.yaml|MODEL", value=what)
    job = load(what, JobSpec)
    if job.train is None:
        raise InputError("is required: only the built-in trainer can be predicted", file=what, field="train")
    cluster = resolve_cluster(cluster_name)
    try:
        estimate = price_host_training(job.train, job.ranks, cluster)
    except InputError as error:
        job_fault = error.field == "ranks"
        raise error.at(file=what if job_fault else cluster_name) from None
    if html is not None:
        page(job, cluster, estimate).write(html)
    if as_json:
        click.echo(json.dumps(as_plain(job, cluster, estimate), indent=2))
        return
    for line in lines(job, cluster, estimate):
        click.echo(line)
    if html is not None:
        click.echo(f"Wrote {html}.")


def as_plain(job: JobSpec, cluster: ClusterSpec, estimate: TrainingEstimate) -> dict[str, Any]:
    """The estimate for programs."""
    import msgspec

    return {
        "job": job.name,
        "cluster": cluster.name,
        "chip": cluster.chip.name,
        "ranks": job.ranks,
        **msgspec.to_builtins(estimate),
        "total_memory_bytes": estimate.total_memory_bytes,
        "fits": estimate.fits,
    }


def lines(job: JobSpec, cluster: ClusterSpec, estimate: TrainingEstimate) -> list[str]:
    """The estimate for people."""
    from groundplane.spec import units

    train = job.train
    steps = 0 if train is None else train.steps
    low, high = units.show_duration(estimate.step_low_s), units.show_duration(estimate.step_high_s)
    text = [
        f"{job.name} on {job.ranks} x {cluster.chip.name} ({cluster.name})",
        f"step            {units.show_duration(estimate.step_s)} ({low} to {high} in 8 of 10 cases)",
        f"{steps} steps".ljust(16) + units.show_duration(steps * estimate.step_s),
        f"tokens/s        {estimate.tokens_per_s:,.0f}",
        f"MFU             {100 * estimate.mfu:.1f} %",
        f"bottleneck      {estimate.bottleneck}",
        "",
    ]
    text += [f"  {name:<62}{share}" for name, share in stage_rows(estimate)]
    fit = "fits" if estimate.fits else "does NOT fit"
    text += [
        "",
        f"memory a rank   {units.show_bytes(estimate.total_memory_bytes)} of "
        f"{units.show_bytes(estimate.memory_limit_bytes)}: {fit}",
    ]
    text += [f"  {part:<62}{units.show_bytes(size)}" for part, size in estimate.memory_bytes.items() if size]
    text += ["", f"evidence: {estimate.evidence}; assumed:"]
    text += [f"  - {assumption}" for assumption in estimate.assumptions]
    return text


def stage_rows(estimate: TrainingEstimate) -> list[tuple[str, str]]:
    """Stages that take any time, with their time and share."""
    from groundplane.perfmodel.estimate import stage_words
    from groundplane.spec import units

    return [
        (stage_words(stage), f"{units.show_duration(seconds):>9}  {100 * seconds / estimate.step_s:5.1f} %")
        for stage, seconds in estimate.stages_s.items()
        if seconds > 0
    ]


def page(job: JobSpec, cluster: ClusterSpec, estimate: TrainingEstimate) -> Any:
    """The estimate as a report page: figures, stages, memory, assumptions."""
    from groundplane.perfmodel.estimate import stage_words
    from groundplane.report.page import Chart, Page, Section, Table, Text
    from groundplane.spec import units

    stages = {stage: seconds for stage, seconds in estimate.stages_s.items() if seconds > 0}
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [1e3 * seconds for seconds in stages.values()],
        "y": [stage_words(stage) for stage in stages],
    }
    parts = {
        "type": "bar",
        "orientation": "h",
        "x": [size / 2**20 for size in estimate.memory_bytes.values()],
        "y": list(estimate.memory_bytes),
    }
    figures = [line.split("  ", maxsplit=1) for line in lines(job, cluster, estimate)[1:6]]
    return Page(
        title=f"Plan: {job.name}",
        lead=f"{job.ranks} x {cluster.chip.name} of {cluster.name}",
        sections=[
            Section("Prediction", [Table(["figure", "value"], [[a.strip(), b.strip()] for a, b in figures])]),
            Section("Where the time goes", [Chart([bars], {"xaxis": {"title": "milliseconds a step"}})]),
            Section(
                "Memory of the fullest rank",
                [
                    Chart([parts], {"xaxis": {"title": "MiB"}}),
                    Text(f"Limit: {units.show_bytes(estimate.memory_limit_bytes)}"),
                ],
            ),
            Section("Assumed", [Text("\n\n".join(estimate.assumptions))]),
        ],
    )


plan_command.add_command(scaling_command)
