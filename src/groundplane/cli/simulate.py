"""`groundplane simulate`: rehearse a cluster, or a service, before it is bought."""

from __future__ import annotations

import click

from groundplane.cli.simulate_cluster import cluster_command
from groundplane.cli.simulate_serving import serving_command


@click.group(epilog="Example: groundplane simulate cluster 64x8 --jobs 500 --faults")
def simulate_command() -> None:
    """Rehearse a cluster before it is bought: the real scheduler on simulated time."""


simulate_command.add_command(cluster_command)
simulate_command.add_command(serving_command)
