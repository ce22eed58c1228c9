"""`groundplane schema`: JSON Schema of what people write, for editors."""

from __future__ import annotations

from typing import Any

import click

from groundplane.cli.client import json_option, print_json

KINDS = ("job", "service", "cluster", "deployment", "workload")


@click.command(
    "schema",
    epilog="\b\nExample: groundplane schema job > job.schema.json\n"
    "Then, as a file's first line: # yaml-language-server: $schema=job.schema.json",
)
@click.argument("kind", metavar="job|service|cluster|deployment|workload")
@json_option
def schema_command(kind: str, as_json: bool) -> int:  # noqa: ARG001 - it is JSON in any case
    """Print the JSON Schema of a job, service, cluster, deployment or workload file."""
    from groundplane.spec.errors import unknown_name

    if kind not in KINDS:
        raise unknown_name("kind of file", kind, KINDS)
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema_of(kind))
    return 0


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of a kind of file."""
    from groundplane.spec.schema import file_schema

    if kind == "job":
        from groundplane.spec.job import JobSpec

        return file_schema(JobSpec)
    if kind == "service":
        from groundplane.spec.service import ServiceSpec

        return file_schema(ServiceSpec)
    if kind == "deployment":
        from groundplane.spec.deployment import DeploymentSpec

        return file_schema(DeploymentSpec)
    if kind == "workload":
        from groundplane.spec.request_trace import WorkloadSpec

        return file_schema(WorkloadSpec)
    from groundplane.catalog.file_schema import cluster_file_schema

    return cluster_file_schema()
