"""`groundplane schema`: JSON Schema of what people write, for editors."""

from __future__ import annotations

import click

from groundplane.cli.client import json_option, print_json

KINDS = ("job", "service", "cluster")


@click.command(
    "schema",
    epilog="Example: groundplane schema job > job.schema.json, then in a file: "
    "# yaml-language-server: $schema=job.schema.json",
)
@click.argument("kind", metavar="job|service|cluster")
@json_option
def schema_command(kind: str, as_json: bool) -> int:  # noqa: ARG001 - it is JSON in any case
    """Print the JSON Schema of a job, service or cluster file."""
    import msgspec

    from groundplane.spec.errors import unknown_name

    if kind not in KINDS:
        raise unknown_name("kind of file", kind, KINDS)
    print_json(
        {"$schema": "https://json-schema.org/draft/2020-12/schema"} | msgspec.json.schema(struct_of(kind))
    )
    return 0


def struct_of(kind: str) -> type:
    """The struct that a kind of file is checked by."""
    if kind == "job":
        from groundplane.spec.job import JobSpec

        return JobSpec
    if kind == "service":
        from groundplane.spec.service import ServiceSpec

        return ServiceSpec
    from groundplane.spec.cluster import ClusterSpec

    return ClusterSpec
