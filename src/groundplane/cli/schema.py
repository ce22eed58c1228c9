"""`groundplane schema`: JSON Schema of what people write, for editors."""

from __future__ import annotations

import importlib
from typing import Any

import click

from groundplane.cli.client import json_option, print_json

SPECS = {
    "job": ("groundplane.spec.job", "JobSpec"),
    "service": ("groundplane.spec.service", "ServiceSpec"),
    "deployment": ("groundplane.spec.deployment", "DeploymentSpec"),
    "workload": ("groundplane.spec.request_trace", "WorkloadSpec"),
    "policy": ("groundplane.spec.policy", "PolicySpec"),
    "window": ("groundplane.spec.window", "WindowSpec"),
    "health": ("groundplane.spec.health", "HealthSpec"),
}
KINDS = (*SPECS, "cluster")


@click.command(
    "schema",
    epilog="\b\nExample: groundplane schema job > job.schema.json\n"
    "Then, as a file's first line: # yaml-language-server: $schema=job.schema.json",
)
@click.argument("kind", metavar="job|service|cluster|deployment|workload|policy|window|health")
@json_option
def schema_command(kind: str, as_json: bool) -> int:  # noqa: ARG001 - it is JSON in any case
    """Print the JSON Schema of a kind of file."""
    from groundplane.spec.errors import unknown_name

    if kind not in KINDS:
        raise unknown_name("kind of file", kind, KINDS)
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema_of(kind))
    return 0


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of a kind of file."""
    from groundplane.spec.schema import file_schema

    if kind in SPECS:
        module, name = SPECS[kind]
        return file_schema(getattr(importlib.import_module(module), name))
    from groundplane.catalog.file_schema import cluster_file_schema

    return cluster_file_schema()
