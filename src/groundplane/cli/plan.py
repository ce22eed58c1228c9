"""`groundplane plan`: predict time, memory and bottleneck before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from groundplane.cli.plan_scaling import scaling_command
from groundplane.cli.plan_serve import serve_command

if TYPE_CHECKING:
    from groundplane.perfmodel.estimate import TrainingEstimate
    from groundplane.spec.cluster import ClusterSpec
    from groundplane.spec.job import JobSpec

FILE_SUFFIXES = (".yaml", ".yml", ".toml")


@click.group(epilog="Example: groundplane plan train job.yaml --cluster cluster.yaml")
def plan_command() -> None:
    """Predict time, memory and bottleneck before anything runs."""


@plan_command.command(
    "train",
    epilog="Examples: groundplane plan train llama-3.1-70b --cluster h100x128 --global-batch 512 --seq 8192 "
    "--tokens 15T;  groundplane plan train gpt3-175b --cluster a100x1024 --global-batch 1536 "
    "--layout tp=8,pp=16,micro=1,recompute=selective --trace step.json;  "
    "groundplane plan train job.yaml --cluster cluster.yaml",
)
@click.argument("what", metavar="MODEL|JOB.yaml")
@click.option("--cluster", "cluster_name", required=True, help="Cluster file, or a preset such as h100x1024.")
@click.option("--global-batch", type=int, help="Sequences a step (required for a model).")
@click.option("--seq", type=int, help="Tokens of a sequence (default: what the model takes, at most 8192).")
@click.option(
    "--tokens", metavar="N", help="Of the whole training, such as 15T: says how many days it takes."
)
@click.option(
    "--precision", default="bf16", show_default=True, help="Of linear layers: bf16|fp16|fp8|fp8_block|fp4."
)
@click.option("--stack", default="megatron-core", show_default=True, help="Software stack.")
@click.option(
    "--layout", default="", metavar="tp=8,...", help="Parts that are given; the others are searched."
)
@click.option(
    "--schedules", default="1f1b,interleaved", show_default=True, help="Of the pipeline, those to try."
)
@click.option(
    "--objective",
    default="step_time",
    show_default=True,
    metavar="step_time|tokens_per_s|mfu|memory|cost",
    help="What the best layout is best in.",
)
@click.option("--top", type=int, default=5, show_default=True, help="How many layouts to name.")
@click.option("--usd-per-chip-hour", type=float, help="Price of a chip, for the cost of the training.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, numbers in base units.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a report page.")
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write the step for Perfetto.")
def train(what: str, cluster_name: str, as_json: bool, html: Path | None, **asked: Any) -> None:
    """Predict one training step: time by stage, memory by part, layout, bottleneck, and what was assumed.

    MODEL is a name from `groundplane catalog models` or a path to a config.json. Layouts are searched: all of
    those that keep the parts given by --layout (tp, cp, pp, vpp, ep, etp, dp, micro, num_micro, zero, shard,
    sp, recompute, recompute_share, schedule).

    JOB.yaml is a job of the built-in trainer; `groundplane probe` writes the cluster file of this machine.
    """
    if what.endswith(FILE_SUFFIXES):
        refuse_for_jobs(asked)
        train_job(what, cluster_name, as_json=as_json, html=html)
        return
    from groundplane.cli.plan_train import train_model

    train_model(what, cluster_name, as_json=as_json, html=html, **asked)


def refuse_for_jobs(asked: dict[str, Any]) -> None:
    """A job file says itself what is trained; options that only a model has are refused."""
    from groundplane.spec.errors import InputError

    for name in ("global_batch", "seq", "tokens", "layout", "usd_per_chip_hour", "trace"):
        if asked[name]:
            option = "--" + name.replace("_", "-")
            raise InputError(
                "is only for a model; a job file says it itself", field=option, value=str(asked[name])
            )


def train_job(what: str, cluster_name: str, *, as_json: bool, html: Path | None) -> None:
    """The estimate of a job of the built-in trainer."""
    from groundplane.catalog.resolve import resolve_cluster
    from groundplane.perfmodel.eager import price_host_training
    from groundplane.spec.errors import InputError
    from groundplane.spec.job import JobSpec
    from groundplane.spec.load import load

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
plan_command.add_command(serve_command)
