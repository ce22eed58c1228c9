"""`groundplane simulate`: the control core over a described cluster, on simulated time."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import click

from groundplane.cli.client import FiniteRange

if TYPE_CHECKING:
    from groundplane.sim.summary import ClusterSummary

MAX_DEVICES = 200_000


@click.group(epilog="Example: groundplane simulate cluster 64x8 --jobs 500 --faults")
def simulate_command() -> None:
    """Rehearse a cluster before it is bought: the real scheduler on simulated time."""


@simulate_command.command(
    name="cluster",
    epilog="Examples: groundplane simulate cluster 64x8;  "
    "groundplane simulate cluster cluster.yaml --jobs 2000 --load 0.9 --faults --json",
)
@click.argument("cluster", metavar="CLUSTER.yaml|PRESET|NODESxDEVICES")
@click.option("--jobs", type=click.IntRange(1), default=500, show_default=True, help="How many jobs come.")
@click.option(
    "--load",
    type=FiniteRange(0.0, 100.0, min_open=True),
    default=0.8,
    show_default=True,
    help="Device-time asked for over device-time there is, while jobs arrive.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Picks jobs and faults.")
@click.option("--faults", is_flag=True, help="Ranks, nodes and the control plane fail, at published rates.")
@click.option(
    "--fault-factor",
    type=FiniteRange(0.0, 1000.0),
    default=1.0,
    show_default=True,
    help="With --faults: how many times as often.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cluster_command(
    cluster: str, jobs: int, load: float, seed: int, faults: bool, fault_factor: float, as_json: bool
) -> None:
    """Run a generated workload through the control core and print utilisation, waits and the ledger.

    The core is the one that schedules real jobs; only time, nodes and processes are simulated.
    """
    import msgspec

    from groundplane.sim.cluster import run_cluster
    from groundplane.sim.faults import FaultRates
    from groundplane.sim.summary import summarise
    from groundplane.sim.workload import generate

    num_nodes, devices_per_node = _size_of(cluster)
    workload = generate(
        num_jobs=jobs, load=load, num_nodes=num_nodes, devices_per_node=devices_per_node, seed=seed
    )
    run = run_cluster(
        num_nodes=num_nodes,
        devices_per_node=devices_per_node,
        jobs=workload,
        seed=seed,
        fault_rates=FaultRates().scaled(fault_factor) if faults else None,
    )
    summary = summarise(run)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(summary)))
    else:
        _show(summary)


def _size_of(cluster: str) -> tuple[int, int]:
    """Nodes and devices a node, from "64x8", a preset or a cluster file."""
    from groundplane.catalog.resolve import resolve_cluster
    from groundplane.spec.errors import InputError

    match = re.fullmatch(r"(\d+)x(\d+)", cluster)
    if match is None:
        spec = resolve_cluster(cluster)
        num_nodes, devices_per_node = spec.num_nodes, spec.server.num_chips
    else:
        num_nodes, devices_per_node = int(match[1]), int(match[2])
    if not 1 <= num_nodes * devices_per_node <= MAX_DEVICES:
        raise InputError(f"must have 1 to {MAX_DEVICES} devices", field="CLUSTER", value=cluster)
    return num_nodes, devices_per_node


def _show(summary: ClusterSummary) -> None:
    from groundplane.spec.units import show_duration

    click.echo(
        f"{summary.nodes} nodes, {summary.devices} devices; {summary.jobs} jobs in "
        f"{show_duration(summary.arrivals_s)}, the last ended after {show_duration(summary.simulated_s)}"
    )
    click.echo(f"succeeded {summary.succeeded}, failed {summary.failed}, restarts {summary.restarts}")
    click.echo(f"utilisation {summary.utilisation:.1%}, goodput {summary.goodput:.1%} (while jobs arrived)")
    if summary.faults:
        counts = ", ".join(f"{number} {what}" for what, number in summary.faults.items())
        lost_h = summary.lost_work_device_s / 3600
        click.echo(f"faults: {counts}; lost work {lost_h:.1f} device-hours")
    click.echo()
    click.echo(f"{'devices':>8}  {'jobs':>6}  {'mean wait':>12}  {'p50':>12}  {'p95':>12}")
    for row in summary.waits:
        cells = [show_duration(value) for value in (row.mean_s, row.p50_s, row.p95_s)]
        click.echo(f"{row.devices:>8}  {row.jobs:>6}  " + "  ".join(f"{cell:>12}" for cell in cells))
    click.echo()
    click.echo("where the device-time went, over the whole run:")
    for account, share in summary.ledger.items():
        click.echo(f"  {account.replace('_', ' '):<18} {share:>7.2%}")
    closes = "exactly" if summary.ledger_closes else "NOT EXACTLY, which is a bug"
    click.echo(f"  {'sum':<18} {sum(summary.ledger.values()):>7.2%}  ({closes})")
