"""`groundplane models` and `groundplane usage`: registered models, and what was used.

`deploy` and `services` are in `services.py` and only named here.
"""

from __future__ import annotations

import csv
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from groundplane.cli.client import (
    Client,
    json_option,
    print_json,
    print_table,
    quote,
    show_time,
    state_option,
)
from groundplane.cli.services import deploy_command as deploy_command  # noqa: PLC0414
from groundplane.cli.services import services_command as services_command  # noqa: PLC0414


@click.group(
    "models",
    invoke_without_command=True,
    epilog="Example: groundplane models register my-model ./export --job train-1",
)
@state_option
@json_option
@click.pass_context
def models_command(context: click.Context, state: Path, as_json: bool) -> None:
    """List and register models. A version never changes; `name` means its newest, `name:3` the third."""
    if context.invoked_subcommand is None:
        _list_models(state, as_json)


@models_command.command("list", epilog="Example: groundplane models list --json")
@state_option
@json_option
def list_models(state: Path, as_json: bool) -> int:
    """List all versions, newest first."""
    _list_models(state, as_json)
    return 0


@models_command.command("show", epilog="Example: groundplane models show my-model:1")
@click.argument("model")
@state_option
@json_option
def show_model(model: str, state: Path, as_json: bool) -> int:
    """Show one version and where it came from."""
    _print_version(Client(state).get(f"/api/models/{quote(model)}"), as_json)
    return 0


@models_command.command("register", epilog="Example: groundplane models register smollm2-135m-instruct")
@click.argument("name")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--job", default="", metavar="ID", help="Job that made it.")
@click.option("--step", type=click.IntRange(min=0), help="Checkpoint step it was exported from.")
@click.option("--data", default="", metavar="ID", help="Data it was trained on.")
@state_option
@json_option
def register_model(
    name: str, path: Path | None, job: str, step: int | None, data: str, state: Path, as_json: bool
) -> int:
    """Register a GGUF file or a Hugging Face folder with model.gguf in it; without PATH, a packaged model."""
    body = {"name": name, "job_id": job, "checkpoint_step": step, "data_id": data}
    if path is not None:
        body["path"] = str(path.absolute())
    _print_version(Client(state).post("/api/models", body), as_json)
    return 0


@click.command("usage", epilog="Example: groundplane usage --by model --csv > usage.csv")
@click.option(
    "--by",
    type=click.Choice(["project", "key", "model", "day"]),
    default="project",
    show_default=True,
    help="What to sum by.",
)
@click.option(
    "--day",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="Only requests that began on this UTC day.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of text.")
@state_option
@json_option
def usage_command(by: str, day: datetime | None, as_csv: bool, state: Path, as_json: bool) -> int:
    """Requests and tokens used, and device time, from the ledgers. Partial requests were cut short."""
    if as_csv and as_json:
        raise click.UsageError("--csv and --json are one or the other.")
    client = Client(state)
    sums = client.get("/api/usage", by=by, day=None if day is None else f"{day:%Y-%m-%d}")
    columns = ["num_requests", "num_partial", "tokens_in", "tokens_cached", "tokens_out"]
    if as_json:
        requests = [{by: one["group"], **{name: one[name] for name in columns}} for one in sums]
        print_json({"requests": requests, "devices": client.get("/api/ledger")})
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([by, *columns])
        writer.writerows([one["group"], *(one[name] for name in columns)] for one in sums)
    else:
        rows = [[one["group"], *(f"{one[name]:,}" for name in columns)] for one in sums]
        heads = [by, "requests", "partial", "tokens in", "of these cached", "tokens out"]
        print_table(heads, rows, empty="No requests were metered yet.")
        click.echo(_device_time(client.get("/api/ledger")))
    return 0


def _device_time(ledger: dict[str, int]) -> str:
    accounts = ("busy", "allocated_idle", "wasted_by_failure", "fragmentation", "maintenance", "free")
    parts = [f"{name.replace('_', ' ')} {ledger[f'{name}_ns'] / 1e9:,.1f}" for name in accounts]
    total = f"{ledger['total_ns'] / 1e9:,.1f}"
    return f"Device-seconds of {ledger['num_devices']} devices: {total} = " + " + ".join(parts)


def _list_models(state: Path, as_json: bool) -> None:
    from groundplane.spec.units import show_bytes

    versions = Client(state).get("/api/models")
    if as_json:
        print_json(versions)
        return
    rows = [
        [
            f"{one['name']}:{one['version']}",
            one["architecture"] or "-",
            show_bytes(one["size_bytes"]),
            one["sha256"][:12],
            one["job_id"] or "-",
            show_time(one["created_ns"]),
        ]
        for one in versions
    ]
    empty = "No models yet. Try: groundplane models register smollm2-135m-instruct"
    print_table(["model", "architecture", "size", "sha256", "job", "registered"], rows, empty=empty)


def _print_version(version: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(version)
        return
    rows = [[name, "-" if value in ("", None) else str(value)] for name, value in version.items()]
    print_table(["field", "value"], rows)
