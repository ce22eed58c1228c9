"""`groundplane nodes`, `cordon`, `uncordon` and `drain`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from groundplane.cli.client import Client, fail, json_option, print_json, print_table, quote, state_option

WAIT_PERIOD_S = 0.3


class Duration(click.ParamType[float]):
    """A time as people write it ("10 min", "30s"), in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from groundplane.spec.errors import InputError
        from groundplane.spec.units import SECONDS, parse

        try:
            return parse(value, SECONDS)
        except InputError as error:
            self.fail(f"{value!r} {error.rule}", param, ctx)


@click.command("nodes", epilog="Example: groundplane nodes --json")
@state_option
@json_option
def nodes_command(state: Path, as_json: bool) -> int:
    """List nodes: what is free, who holds devices and parts of them, and why a node takes no work."""
    nodes = Client(state).get("/api/nodes")
    if as_json:
        print_json(nodes)
    else:
        show_nodes(nodes)
    return 0


@click.command("cordon", epilog="Example: groundplane cordon local")
@click.argument("node")
@state_option
@json_option
def cordon_command(node: str, state: Path, as_json: bool) -> int:
    """Take a node out of placement; what runs there goes on."""
    return _change(state, node, "cordon", None, as_json)


@click.command("uncordon", epilog="Example: groundplane uncordon local")
@click.argument("node")
@state_option
@json_option
def uncordon_command(node: str, state: Path, as_json: bool) -> int:
    """Let a node take work again, whether it was cordoned, drained or in quarantine."""
    return _change(state, node, "uncordon", None, as_json)


@click.command(
    "drain",
    epilog="Examples: groundplane drain local --within '10 min' --wait;  groundplane drain local --within 0s",
)
@click.argument("node")
@click.option(
    "--within",
    type=Duration(),
    metavar="TIME",
    help="Stop what is still there after this time; by default works may end by themselves.",
)
@click.option("--wait", is_flag=True, help="Wait until the node is empty.")
@state_option
@json_option
def drain_command(node: str, within: float | None, wait: bool, state: Path, as_json: bool) -> int:
    """Empty a node: jobs leave at their next checkpoint, replicas are replaced one at a time."""
    _change(state, node, "drain", {"wait_s": within}, as_json and not wait, quiet=wait)
    if not wait:
        return 0
    client = Client(state)
    while True:
        view = _one(client.get("/api/nodes"), node)
        if not any(view["holders"]):
            break
        if not view["is_draining"]:
            fail(f"{node} is no longer drained: somebody opened it again")
        time.sleep(WAIT_PERIOD_S)
    if as_json:
        print_json(view)
    else:
        click.echo(f"{node} is empty.")
    return 0


def show_nodes(nodes: list[Any]) -> None:
    """A table of nodes."""
    from groundplane.spec.units import show_bytes

    print_table(
        ["NODE", "STATE", "DEVICES", "FREE", "MEMORY FREE", "HELD BY", "WHY CLOSED"],
        [
            [
                node["node_id"],
                node["state"],
                f"{node['num_devices']} {node['device_kind']}",
                str(node["num_free"]),
                f"{show_bytes(node['free_memory_bytes'])} of {show_bytes(node['memory_bytes'])}",
                ", ".join(dict.fromkeys(holder for holder in node["holders"] if holder)) or "-",
                node["why_closed"] or "-",
            ]
            for node in nodes
        ],
        empty="No node has joined.",
    )
    for node in nodes:
        for shared in node["shared"]:
            parts = ", ".join(f"{work} {_part(part)}" for work, part in shared["parts"].items())
            click.echo(
                f"{node['node_id']}/{shared['device']}: {parts}; {_per_mille(shared['free_units'])} free"
            )


def _change(state: Path, node: str, change: str, body: Any, as_json: bool, *, quiet: bool = False) -> int:
    nodes = Client(state).post(f"/api/nodes/{quote(node)}/{change}", body)
    view = _one(nodes, node)
    if as_json:
        print_json(view)
    elif not quiet:
        click.echo(f"{node}: {view['why_closed'] or 'takes work'}")
    return 0


def _one(nodes: list[Any], node_id: str) -> Any:
    return next(node for node in nodes if node["node_id"] == node_id)


def _part(part: Any) -> str:
    if part["profile"]:
        return f"{part['profile']} at slice {part['start']}"
    return _per_mille(part["units"])


def _per_mille(units: int) -> str:
    return f"{units // 7}/1000"
