"""`groundplane simulate cluster`: the control core over a described cluster, on simulated time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from groundplane.cli.client import FiniteRange

if TYPE_CHECKING:
    from groundplane.sim.scenario import Answer, Place
    from groundplane.sim.summary import ClusterSummary, Waits
    from groundplane.sim.workload import SimJob

DEFAULT_JOBS = 500
DEFAULT_LOAD = 0.8


@click.command(
    name="cluster",
    epilog="Examples: groundplane simulate cluster 64x8;  "
    "groundplane simulate cluster cluster.yaml --trace jobs.csv --policy fifo,default --html page.html",
)
@click.argument("cluster", metavar="CLUSTER.yaml|PRESET|NODESxDEVICES")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Recorded jobs: a CSV, a .trace list or a folder of them. Without it jobs are generated.",
)
@click.option("--run-times", type=click.Path(path_type=Path),
              help="With --trace: draw run times from this file of measured ones.")  # fmt: skip
@click.option("--columns", metavar="NAME=COLUMN,...",
              help="With a CSV: how its columns are called, such as submit_s=time,devices=gpus.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1),
              help=f"How many jobs come [default: {DEFAULT_JOBS}]; of a trace at most so many.")  # fmt: skip
@click.option(
    "--load",
    type=FiniteRange(0.0, 100.0, min_open=True),
    help="Device-time asked for over device-time there is, while jobs arrive "
    f"[default: {DEFAULT_LOAD}; of a trace as recorded].",
)
@click.option("--prediction-error", type=FiniteRange(0.0, 5.0), default=0.3, show_default=True,
              help="Spread (log-normal) of predicted over real run times.")  # fmt: skip
@click.option("--policy", "policies", default="default", show_default=True, metavar="FILE|NAME[,...]",
              help="fifo, backfill, fair-share, default or policy files; several are compared.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Picks jobs and faults.")
@click.option("--faults", is_flag=True, help="Ranks, nodes and the control plane fail, at published rates.")
@click.option("--reliability", default="rsc-1", show_default=True, metavar="NAME|FILE",
              help="With --faults: rsc-1, rsc-2, llama-3 or a file of rates.")  # fmt: skip
@click.option("--fault-factor", type=FiniteRange(0.0, 1000.0), default=1.0, show_default=True,
              help="With --faults: how many times as often.")  # fmt: skip
@click.option("--checkpoint-every", default="30 min", show_default=True, metavar="TIME",
              help="Work between two checkpoints of a job, where work can be lost.")  # fmt: skip
@click.option("--usd-per-device-hour", type=FiniteRange(0.0, 1e6), help="Price of a device, for the cost.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with a timeline.")
@click.option("--journal", type=click.Path(path_type=Path, dir_okay=False),
              help="Write the first policy's journal, for replay and what-if.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cluster_command(
    cluster: str,
    trace: Path | None,
    run_times: Path | None,
    columns: str | None,
    jobs: int | None,
    load: float | None,
    prediction_error: float,
    policies: str,
    seed: int,
    faults: bool,
    reliability: str,
    fault_factor: float,
    checkpoint_every: str,
    usd_per_device_hour: float | None,
    html: Path | None,
    journal: Path | None,
    as_json: bool,
) -> None:
    """Run jobs through the control core and print utilisation, waits, fairness and where the time went.

    The core is the one that schedules real jobs; only time, nodes and processes are simulated. Jobs are
    generated, or come from a trace. A CSV has the columns submit_s, devices and run_s, and perhaps queue,
    priority, predicted_s, job_id, or model, global_batch, seq and steps of a training job, which then runs as
    fast as the performance model says for the place that it gets.
    """
    import msgspec

    from groundplane.control.journal import decode_record
    from groundplane.sim.journal_file import write_journal
    from groundplane.sim.scenario import Question, ask, place_of
    from groundplane.spec.errors import InputError
    from groundplane.spec.units import parse_ns

    every_s = parse_ns(checkpoint_every, field="--checkpoint-every") / 1e9
    if every_s < 1.0:
        raise InputError("must be at least 1 s", field="--checkpoint-every", value=checkpoint_every)
    place = place_of(cluster)
    for path in (html, journal):
        if path is not None and not path.absolute().parent.is_dir():
            raise InputError("cannot be written: no such folder", file=str(path))
    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names:
        raise InputError("must name a policy", field="--policy", value=policies)
    answers = ask(
        Question(
            place=place,
            jobs=_workload(place, trace, run_times, columns, jobs, load, prediction_error, seed),
            policies=names,
            seed=seed,
            reliability=reliability if faults else "",
            fault_factor=fault_factor,
            checkpoint_every_s=every_s,
            usd_per_device_hour=usd_per_device_hour,
            has_timeline=html is not None,
            keeps_journal=journal is not None,
        )
    )
    if html is not None:
        from groundplane.cli.simulate_cluster_page import cluster_page

        cluster_page(cluster, "generated jobs" if trace is None else trace.name, answers).write(html)
    if journal is not None:
        write_journal(journal, (decode_record(payload) for payload in answers[0].run.journal))
    summaries = [answer.summary for answer in answers]
    if as_json:
        found = msgspec.to_builtins(summaries)
        click.echo(json.dumps({**found[0], "runs": found}))
    else:
        _show(answers)


def _workload(
    place: Place,
    trace: Path | None,
    run_times: Path | None,
    columns: str | None,
    num_jobs: int | None,
    load: float | None,
    prediction_error: float,
    seed: int,
) -> list[SimJob]:
    from groundplane.sim.traces import TraceOptions, read_trace
    from groundplane.sim.workload import at_load, generate
    from groundplane.spec.errors import InputError

    if trace is None:
        for option, value in (("--run-times", run_times), ("--columns", columns)):
            if value is not None:
                raise InputError("needs --trace", field=option, value=str(value))
        return generate(
            num_jobs=num_jobs or DEFAULT_JOBS,
            load=load or DEFAULT_LOAD,
            num_nodes=len(place.site),
            devices_per_node=place.devices_per_node,
            seed=seed,
            prediction_sigma=prediction_error,
        )
    options = TraceOptions(
        place.devices_per_node, seed, run_times, _columns(columns), prediction_sigma=prediction_error
    )
    found = read_trace(trace, options)[:num_jobs]
    return found if load is None else at_load(found, load, place.num_devices)


def _columns(text: str | None) -> dict[str, str] | None:
    from groundplane.spec.errors import InputError

    if text is None:
        return None
    found = {}
    for part in text.split(","):
        name, equals, column = part.partition("=")
        if not equals or not name.strip() or not column.strip():
            raise InputError("must be NAME=COLUMN,...", field="--columns", value=text)
        found[name.strip()] = column.strip()
    return found


def _show(answers: Sequence[Answer]) -> None:
    from groundplane.spec.units import show_duration

    summaries = [answer.summary for answer in answers]
    first = summaries[0]
    span = show_duration(first.arrivals_s)
    click.echo(f"{first.nodes} nodes, {first.devices} devices; {first.jobs} jobs in {span}")
    click.echo()
    rows = comparison(summaries)
    widths = [max(12, *(len(row[column + 1]) for row in rows)) for column in range(len(summaries))]
    for name, *cells in rows:
        shown = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        click.echo(f"{name:<26}" + "  ".join(shown))
    for summary in summaries:
        click.echo()
        if len(summaries) > 1:
            click.echo(f"under {summary.policy}")
        _show_waits("by devices of a gang", summary.waits)
        if len(summary.queues) > 1:
            _show_waits("by queue", summary.queues)
        if summary.faults:
            counts = ", ".join(f"{number} {what}" for what, number in summary.faults.items())
            click.echo(f"faults: {counts}")


def comparison(summaries: Sequence[ClusterSummary]) -> list[list[str]]:
    """Rows of a name and one cell a policy."""
    from groundplane.spec.units import show_duration

    def row(name: str, cell: object) -> list[str]:
        return [name, *(str(cell(summary)) for summary in summaries)]  # type: ignore[operator]

    rows = [
        row("policy", lambda s: s.policy),
        row("last job ended after", lambda s: show_duration(s.simulated_s)),
        row("succeeded, failed", lambda s: f"{s.succeeded}, {s.failed}"),
        row("utilisation", lambda s: f"{s.utilisation:.1%}"),
        row("goodput", lambda s: f"{s.goodput:.1%}"),
        row("mean wait", lambda s: show_duration(s.mean_wait_s)),
        row("95th percentile of waits", lambda s: show_duration(s.p95_wait_s)),
        row("mean wait of gangs >= 16",
            lambda s: "-" if s.large_gang_wait_s is None else show_duration(s.large_gang_wait_s)),
        row("fairness of queues (Jain)", lambda s: f"{s.jain:.3f}"),
        row("fragmentation", lambda s: f"{s.fragmentation:.2%}"),
        row("restarts, preemptions", lambda s: f"{s.restarts}, {s.preemptions}"),
        row("lost work, device-hours", lambda s: f"{s.lost_work_device_s / 3600:.1f}"),
    ]  # fmt: skip
    if any(summary.energy_kwh is not None for summary in summaries):
        rows.append(row("energy", lambda s: "-" if s.energy_kwh is None else f"{s.energy_kwh:,.0f} kWh"))
    if any(summary.cost_usd is not None for summary in summaries):
        rows.append(row("cost", lambda s: "-" if s.cost_usd is None else f"{s.cost_usd:,.0f} USD"))
    for account in summaries[0].ledger:
        rows.append(row(f"  {account.replace('_', ' ')}", lambda s, name=account: f"{s.ledger[name]:.2%}"))
    rows.append(row("  sum", lambda s: f"{sum(s.ledger.values()):.2%}"))
    rows.append(row("  sum in integers", lambda s: "exact" if s.ledger_closes else "NOT EXACT: a bug"))
    return rows


def _show_waits(title: str, rows: Sequence[Waits]) -> None:
    from groundplane.spec.units import show_duration

    click.echo(
        f"{title:<26}  {'jobs':>6}  {'mean wait':>10}  {'p50':>10}  {'p95':>10}  {'to the end':>10}  stretch"
    )
    for row in rows:
        cells = [show_duration(value) for value in (row.mean_s, row.p50_s, row.p95_s, row.completion_mean_s)]
        shown = "  ".join(f"{cell:>10}" for cell in cells)
        click.echo(f"  {row.group:<24}  {row.jobs:>6}  {shown}  {row.stretch:7.2f}")
