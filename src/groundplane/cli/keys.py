"""`groundplane keys`: make, list and revoke API keys."""

from __future__ import annotations

from pathlib import Path

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


@click.group(
    "keys",
    invoke_without_command=True,
    epilog="Example: groundplane keys create ci --role member --expires 30d",
)
@state_option
@json_option
@click.pass_context
def keys_command(context: click.Context, state: Path, as_json: bool) -> None:
    """Make, list and revoke API keys. Roles: viewer (reads), member (submits, deploys), admin (all)."""
    if context.invoked_subcommand is None:
        _list(state, as_json)


@keys_command.command("list", epilog="Example: groundplane keys list --json")
@state_option
@json_option
def list_keys(state: Path, as_json: bool) -> int:
    """List keys; their secrets are not kept anywhere."""
    _list(state, as_json)
    return 0


@keys_command.command("create", epilog="Example: groundplane keys create ci --project speech --expires 30d")
@click.argument("name")
@click.option("--project", default="default", show_default=True, help="Project that its use is counted for.")
@click.option("--role", default="member", show_default=True, help="viewer, member or admin.")
@click.option("--expires", metavar="DURATION", help="It ends after this time (12h, 30d); never by default.")
@state_option
@json_option
def create_key(name: str, project: str, role: str, expires: str | None, state: Path, as_json: bool) -> int:
    """Make a key and print it, this once."""
    from groundplane.spec.units import SECONDS, parse

    body = {"name": name, "project": project, "role": role}
    wanted = body if expires is None else body | {"expires_s": parse(expires, SECONDS, field="expires")}
    made = Client(state).post("/api/keys", wanted)
    if as_json:
        print_json(made)
    else:
        click.echo(made["secret"])
        click.echo(f"Keep it: it is not shown again. Its id is {made['key']['key_id']}.", err=True)
    return 0


@keys_command.command("revoke", epilog="Example: groundplane keys revoke key-0123456789ab")
@click.argument("key")
@state_option
@json_option
def revoke_key(key: str, state: Path, as_json: bool) -> int:
    """End a key, by its id or its first characters."""
    ended = Client(state).delete(f"/api/keys/{quote(key)}")
    if as_json:
        print_json(ended)
    else:
        click.echo(f"{ended['key_id']} ({ended['name']}) is revoked.")
    return 0


def _list(state: Path, as_json: bool) -> None:
    keys = Client(state).get("/api/keys")
    if as_json:
        print_json(keys)
        return
    print_table(
        ["KEY", "BEGINS", "NAME", "PROJECT", "ROLE", "MADE", "EXPIRES", "REVOKED"],
        [
            [
                key["key_id"],
                key["prefix"],
                key["name"],
                key["project"],
                key["role"],
                show_time(key["created_ns"]),
                show_time(key["expires_ns"]),
                show_time(key["revoked_ns"]),
            ]
            for key in keys
        ],
    )
