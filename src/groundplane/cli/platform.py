"""`groundplane up`, `down` and `status`."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import click

from groundplane.cli.client import (
    Client,
    FiniteRange,
    fail,
    json_option,
    print_json,
    show_span,
    state_option,
)


@click.command("up", epilog="Example: groundplane up --state /srv/gp --gateway-port 8001")
@state_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8470, show_default=True, type=click.IntRange(1, 65535), help="Control plane's port."
)
@click.option(
    "--gateway-port", default=8000, show_default=True, type=click.IntRange(1, 65535), help="Gateway's port."
)
@click.option(
    "--database", default="", metavar="URL", help="postgresql://... instead of SQLite in the folder."
)
@click.option("--devices", default=0, type=click.IntRange(0), help="Offer so many cores; 0 for all.")
@click.option("--foreground", is_flag=True, help="Stay; Ctrl-C ends the platform and all of its works.")
@click.option("--allow-remote", is_flag=True, help="Let --host be an address that other machines reach.")
@json_option
def up_command(
    state: Path,
    host: str,
    port: int,
    gateway_port: int,
    database: str,
    devices: int,
    foreground: bool,
    allow_remote: bool,
    as_json: bool,
) -> int:
    """Start the platform on this machine: a supervisor, the control plane and the gateway."""
    from groundplane.platform.runtime import bringup
    from groundplane.spec.errors import GroundplaneError, InputError

    if port == gateway_port:
        raise InputError("must differ from --port", field="--gateway-port", value=gateway_port)
    options = bringup.UpOptions(
        state=state.absolute(),
        host=host,
        port=port,
        gateway_port=gateway_port,
        database=database,
        devices=devices,
        allow_remote=allow_remote,
    )
    began_s = time.monotonic()
    # A terminal that closes, or a time limit around us, must end an unfinished `up` as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)

    def show(up: Any, started: bool = True) -> None:
        took_s = time.monotonic() - began_s
        if as_json:
            print_json(
                {
                    "state": str(options.state),
                    "started": started,
                    "url": up.url,
                    "gateway_url": up.gateway_url,
                    "supervisor_pid": up.supervisor.pid,
                    "ready_s": round(took_s, 3),
                }
            )
            return
        click.echo(f"Groundplane is up ({took_s:.1f} s)." if started else "Groundplane is up already.")
        click.echo(f"  control plane  {up.url}   (API document: {up.url}/schema)")
        click.echo(f"  gateway        {up.gateway_url}")
        click.echo(f"  state          {options.state}   (admin.key holds your key)")
        click.echo("Next: groundplane submit JOB.yaml, groundplane status, groundplane down")

    try:
        if foreground:
            return bringup.run_foreground(options, show)
        up, started = bringup.bring_up(options)
    except InputError:
        raise
    except GroundplaneError as error:
        fail(str(error))
    show(up, started)
    return 0


@click.command("down", epilog="Example: groundplane down --grace 30")
@state_option
@click.option(
    "--grace",
    default=5.0,
    show_default=True,
    type=FiniteRange(0.0),
    help="Seconds between asking a work to end and force.",
)
@json_option
def down_command(state: Path, grace: float, as_json: bool) -> int:
    """Stop the platform and everything it runs, and prove that nothing is left.

    Jobs that were running go on from their last checkpoint at the next `up`.
    """
    from groundplane.platform.runtime import bringup

    result = bringup.take_down(state.absolute(), grace)
    if as_json:
        print_json(
            {"was_up": result.was_up, "ended": list(result.works.ended), "left": list(result.works.left)}
        )
    else:
        click.echo("Groundplane is down." if result.was_up else "Groundplane was not up.")
        if result.works.ended:
            click.echo(f"Ended: {', '.join(result.works.ended)}")
    if result.works.left:
        fail(f"could not be ended: {', '.join(result.works.left)}")
    return 0


@click.command("status", epilog="Example: groundplane status --json")
@state_option
@json_option
def status_command(state: Path, as_json: bool) -> int:
    """Show the platform's processes, nodes, jobs, services and where device time went."""
    from groundplane.cli.nodes import show_nodes
    from groundplane.platform.runtime import upfile
    from groundplane.spec.units import show_bytes

    client = Client(state)
    up = upfile.read(state)
    status, nodes, ledger = client.get("/api/status"), client.get("/api/nodes"), client.get("/api/ledger")
    processes = {
        name: {"pid": each.pid, "alive": each.is_alive} if each is not None else None
        for name, each in (
            (("supervisor", up.supervisor), ("control", up.control), ("gateway", up.gateway)) if up else ()
        )
    }
    if as_json:
        restarts = up.restarts if up else None
        print_json(
            {"status": status, "nodes": nodes, "ledger": ledger, "processes": processes, "restarts": restarts}
        )
        return 0
    click.echo(
        f"Groundplane {status['version']}, up for {show_span(0, int(status['uptime_s'] * 1e9))}, "
        f"{show_bytes(status['memory_bytes'])}, journal record {status['journal_seq']}"
    )
    for name, process in processes.items():
        if process is None or not process["alive"]:
            click.echo(f"  {name} is not running" + (f": {up.trouble}" if up and up.trouble else ""))
    show_nodes(nodes)
    for what in ("jobs", "services"):
        counts = ", ".join(f"{count} {name}" for name, count in sorted(status[what].items()))
        click.echo(f"{what}: {counts or 'none'}")
    click.echo("device time: " + show_ledger(ledger))
    return 0


def _interrupt(_number: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def show_ledger(ledger: dict[str, Any]) -> str:
    """Each account's share of all device time; the shares add up to all of it."""
    total_ns = ledger["total_ns"]
    if not total_ns:
        return "none yet"
    accounts = ("busy", "allocated_idle", "wasted_by_failure", "fragmentation", "maintenance", "free")
    parts = [f"{name.replace('_', ' ')} {100 * ledger[f'{name}_ns'] / total_ns:.1f} %" for name in accounts]
    return ", ".join(parts)
