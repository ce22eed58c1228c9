"""`groundplane deploy` and `groundplane services`."""

from __future__ import annotations

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
    print_table,
    quote,
    show_span,
    show_time,
    state_option,
)

WAIT_PERIOD_S = 0.2


@click.command("deploy", epilog="Example: groundplane deploy service.yaml --wait")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--wait", is_flag=True, help="Wait until every replica answers.")
@click.option(
    "--timeout", default=120.0, show_default=True, type=FiniteRange(0.0), help="Seconds to wait at most."
)
@state_option
@json_option
def deploy_command(file: Path, wait: bool, timeout: float, state: Path, as_json: bool) -> int:
    """Deploy a service file, or bring a running service to its new description, replica by replica."""
    import msgspec

    from groundplane.spec.errors import InputError
    from groundplane.spec.load import from_data, read_data
    from groundplane.spec.service import ServiceSpec

    data, lines = read_data(file)
    spec = from_data(data, ServiceSpec, file=str(file), lines=lines)
    if spec.model.endswith(".gguf") and not Path(spec.model).is_absolute():
        # A path in a file is meant from the folder of that file.
        spec = msgspec.structs.replace(spec, model=str(file.absolute().parent / spec.model))
    client = Client(state)
    try:
        service = client.post("/api/services", msgspec.to_builtins(spec))
    except InputError as error:
        raise error.at(file=str(file), line=lines.get(error.field or "")) from None
    if wait:
        service = wait_ready(client, spec.name, timeout)
    if as_json:
        print_json(service)
    else:
        click.echo(f"{service['name']}, generation {service['generation']}: {_describe(service)}")
    return 0


@click.group("services", invoke_without_command=True, epilog="Example: groundplane services scale chat 2")
@state_option
@json_option
@click.pass_context
def services_command(context: click.Context, state: Path, as_json: bool) -> None:
    """List, show, scale and remove services."""
    if context.invoked_subcommand is None:
        _list(state, as_json)


@services_command.command("list", epilog="Example: groundplane services list --json")
@state_option
@json_option
def list_services(state: Path, as_json: bool) -> int:
    """List services."""
    _list(state, as_json)
    return 0


@services_command.command("show", epilog="Example: groundplane services show chat")
@click.argument("service")
@state_option
@json_option
def show_service(service: str, state: Path, as_json: bool) -> int:
    """Show one service and every replica it had."""
    client = Client(state)
    view = client.get(f"/api/services/{quote(service)}")
    replicas = client.get(f"/api/services/{quote(service)}/replicas")
    if as_json:
        print_json(view | {"replicas": replicas})
        return 0
    click.echo(f"{view['name']}, generation {view['generation']}: {_describe(view)}")
    print_table(
        ["REPLICA", "DEVICES", "LEASED", "READY AFTER", "HELD FOR", "OUTCOME", "DETAIL"],
        [
            [
                each["work_id"],
                ", ".join(each["devices"]),
                show_time(each["leased_ns"]),
                "-" if each["ready_ns"] is None else show_span(each["leased_ns"], each["ready_ns"]),
                show_span(each["leased_ns"], each["gone_ns"]),
                each["outcome"] or "runs",
                each["detail"],
            ]
            for each in replicas
        ],
        empty="It never had a replica.",
    )
    return 0


@services_command.command("scale", epilog="Example: groundplane services scale chat 2")
@click.argument("service")
@click.argument("replicas", type=click.IntRange(0))
@click.option("--wait", is_flag=True, help="Wait until every replica answers.")
@click.option(
    "--timeout", default=120.0, show_default=True, type=FiniteRange(0.0), help="Seconds to wait at most."
)
@state_option
@json_option
def scale_service(service: str, replicas: int, wait: bool, timeout: float, state: Path, as_json: bool) -> int:
    """Change how many replicas are wanted; those that go drain first."""
    client = Client(state)
    view = client.post(f"/api/services/{quote(service)}/scale", {"replicas": replicas})
    if wait:
        view = wait_ready(client, service, timeout)
    if as_json:
        print_json(view)
    else:
        click.echo(f"{view['name']}: {_describe(view)}")
    return 0


@services_command.command("remove", epilog="Example: groundplane services remove chat")
@click.argument("service")
@state_option
@json_option
def remove_service(service: str, state: Path, as_json: bool) -> int:
    """Remove a service; its replicas end their requests first."""
    view = Client(state).delete(f"/api/services/{quote(service)}")
    if as_json:
        print_json(view)
    else:
        click.echo(f"{view['name']} goes.")
    return 0


def wait_ready(client: Client, name: str, timeout_s: float) -> Any:
    """Asks until every replica of the newest generation answers; gives the last view."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        service = client.get(f"/api/services/{quote(name)}")
        running = service["running"]
        if running is None:
            return service
        fresh = [
            each
            for each in running["replicas"]
            if each["state"] == "ready" and each["generation"] == running["generation"]
        ]
        if len(fresh) == running["num_replicas"] == len(running["replicas"]):
            return service
        if running["state"] == "failed":
            fail(f"{name} failed: {running['reason']}; see: groundplane services show {name}")
        if time.monotonic() > deadline_s:
            fail(f"{name} is not ready after {timeout_s:.0f} s: {_describe(service)}")
        time.sleep(WAIT_PERIOD_S)


def _list(state: Path, as_json: bool) -> None:
    services = Client(state).get("/api/services")
    if as_json:
        print_json(services)
        return
    print_table(
        ["SERVICE", "STATE", "READY", "MODEL", "SERVER", "GENERATION", "RESTARTS", "REASON"],
        [_row(each) for each in services],
        empty="No services yet. Deploy one: groundplane deploy SERVICE.yaml",
    )


def _row(service: Any) -> list[str]:
    spec, running = service["spec"], service["running"]
    ready = f"{running['num_ready']} of {running['num_replicas']}" if running else "-"
    return [
        service["name"],
        running["state"] if running else "external",
        ready,
        spec["model"] or spec["url"],
        spec["server"],
        str(service["generation"]),
        str(running["restarts_used"]) if running else "-",
        running["reason"] if running else "",
    ]


def _describe(service: Any) -> str:
    running = service["running"]
    if running is None:
        return f"run by somebody else at {service['spec'].get('url')}"
    told = f"{running['state']}, {running['num_ready']} of {running['num_replicas']} replicas ready"
    return told + (f" ({running['reason']})" if running["reason"] else "")
