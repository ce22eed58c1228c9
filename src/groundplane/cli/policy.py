"""`groundplane policy`: the rules of queues and of nodes that a running platform follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from groundplane.cli.client import Client, json_option, print_json, print_table, state_option


@click.group("policy", epilog="Example: groundplane policy set policy.yaml")
def policy_command() -> None:
    """Set and show the rules for queues (kind: policy) and for nodes that fail (kind: health)."""


@policy_command.command(
    "set", epilog="Examples: groundplane policy set policy.yaml;  groundplane policy set fair-share"
)
@click.argument("file", metavar="FILE|NAME")
@state_option
@json_option
def set_policy(file: str, state: Path, as_json: bool) -> int:
    """Set rules from a file (kind: policy or kind: health), or a policy by name; what runs goes on.

    The rules replace those of the same kind that were before, and stay over restarts.
    """
    import msgspec

    from groundplane.spec.errors import InputError
    from groundplane.spec.health import HealthSpec
    from groundplane.spec.load import Lines, from_data, read_data
    from groundplane.spec.policy import POLICY_NAMES, PolicySpec, named_policy

    spec: PolicySpec | HealthSpec
    lines: Lines = {}
    if file in POLICY_NAMES or not file.lower().endswith((".yaml", ".yml", ".json", ".toml")):
        spec = named_policy(file)
    else:
        data, lines = read_data(Path(file))
        if isinstance(data, dict) and data.get("kind") == "health":
            spec = from_data(data, HealthSpec, file=file, lines=lines)
        else:
            spec = from_data(data, PolicySpec, file=file, lines=lines)
    what = "health" if isinstance(spec, HealthSpec) else "policy"
    try:
        rules = Client(state).put(f"/api/rules/{what}", msgspec.to_builtins(spec))
    except InputError as error:
        raise error.at(file=file, line=lines.get(error.field or "")) from None
    if as_json:
        print_json(rules)
    else:
        _show(rules)
    return 0


@policy_command.command("show", epilog="Example: groundplane policy show --json")
@state_option
@json_option
def show_policy(state: Path, as_json: bool) -> int:
    """Show the rules that hold now."""
    rules = Client(state).get("/api/rules")
    if as_json:
        print_json(rules)
    else:
        _show(rules)
    return 0


def _show(rules: Any) -> None:
    from groundplane.spec.units import show_duration

    policy, health = rules["policy"], rules["health"]
    print_table(
        ["QUEUE", "BELOW", "WEIGHT", "GUARANTEED", "LIMIT"],
        [
            [
                rule["queue_id"],
                rule["parent"] or "-",
                str(rule["weight"]),
                str(rule["guaranteed_devices"]),
                "-" if rule["limit_devices"] < 0 else str(rule["limit_devices"]),
            ]
            for rule in policy["queues"]
        ],
        empty="No queue has rules of its own: all jobs stand in one order.",
    )
    order, preemption = policy["order"], policy["preemption"]
    click.echo(
        f"half-life {show_duration(policy['half_life_ns'] / 1e9)}, "
        f"backfill {'on' if order['is_backfilling'] else 'off'}, "
        f"preemption {'off' if preemption is None else 'on'}"
    )
    if health is None:
        click.echo("no rules for nodes that fail")
        return
    spares = ", ".join(f"{rule['num_nodes']} x {rule['device_kind']}" for rule in health["spares"])
    click.echo(
        f"quarantine after {health['max_failures']} failures of {health['min_owners']} jobs and services "
        f"within {show_duration(health['window_ns'] / 1e9)}; spares: {spares or 'none'}"
    )
