"""`groundplane window`: maintenance windows and reservations of a running platform."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from groundplane.cli.client import Client, json_option, print_json, print_table, quote, state_option


@click.group("window", epilog="Example: groundplane window set window.yaml")
def window_command() -> None:
    """Set nodes aside for maintenance or for one queue, and list or take back such windows."""


@window_command.command("set", epilog="Example: groundplane window set window.yaml --json")
@click.argument("file", type=click.Path(path_type=Path))
@state_option
@json_option
def set_window(file: Path, state: Path, as_json: bool) -> int:
    """Announce a window from a file (kind: window)."""
    import msgspec

    from groundplane.spec.errors import InputError
    from groundplane.spec.load import from_data, read_data
    from groundplane.spec.window import WindowSpec

    data, lines = read_data(file)
    spec = from_data(data, WindowSpec, file=str(file), lines=lines)
    try:
        windows = Client(state).post("/api/windows", msgspec.to_builtins(spec))
    except InputError as error:
        raise error.at(file=str(file), line=lines.get(error.field or "")) from None
    return _show(windows, as_json)


@window_command.command("list", epilog="Example: groundplane window list --json")
@state_option
@json_option
def list_windows(state: Path, as_json: bool) -> int:
    """List windows that are not over."""
    return _show(Client(state).get("/api/windows"), as_json)


@window_command.command("remove", epilog="Example: groundplane window remove swap-disks")
@click.argument("name")
@state_option
@json_option
def remove_window(name: str, state: Path, as_json: bool) -> int:
    """Take a window back, or end it early."""
    return _show(Client(state).delete(f"/api/windows/{quote(name)}"), as_json)


def _show(windows: list[Any], as_json: bool) -> int:
    if as_json:
        print_json(windows)
        return 0
    print_table(
        ["WINDOW", "FROM", "TO", "FOR", "STATE", "NODES"],
        [
            [
                window["name"],
                _time(window["begin_ns"]),
                _time(window["end_ns"]),
                window["queue"] or "maintenance",
                "begun" if window["has_begun"] else "announced",
                ", ".join(window["nodes"]),
            ]
            for window in windows
        ],
        empty="No window is announced.",
    )
    return 0


def _time(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 10**9, UTC).isoformat().replace("+00:00", "Z")
