"""How commands reach a platform: its state folder's `up.json` and `admin.key`, or GROUNDPLANE_URL and _KEY.

Plain `http.client`: a command that asks one thing should not wait for an HTTP library to be imported.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import sys
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from groundplane.spec.errors import InputError

TIMEOUT_S = 30.0
RETRY_FOR_S = 10.0
"""How long a request is repeated while the control plane is being restarted."""

Command = TypeVar("Command", bound=Callable[..., Any])


def state_option(command: Command) -> Command:
    """`--state DIR`."""
    return click.option(
        "--state",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="GROUNDPLANE_STATE",
        default=Path(".groundplane"),
        show_default=True,
        help="State folder of the platform (or $GROUNDPLANE_STATE).",
    )(command)


class FiniteRange(click.FloatRange):
    """A number in a range, as click's own; nan, which no range keeps out, and infinity are refused too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def json_option(command: Command) -> Command:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)


class Client:
    """Requests to one control plane, as its administrator or with the key of the environment.

    Args:
        state: the state folder.

    Raises:
        InputError: nothing is up there.
    """

    def __init__(self, state: Path) -> None:
        url = os.environ.get("GROUNDPLANE_URL", "")
        if url:
            self._address = checked_address(url)
            key = os.environ.get("GROUNDPLANE_KEY", "")
            if not key:
                raise InputError("is needed with GROUNDPLANE_URL", field="GROUNDPLANE_KEY")
            self._key = key
            return
        from groundplane.platform.runtime import upfile

        up = upfile.read(state)
        if up is None or not up.alive:
            raise InputError(
                "no platform is up in this state folder; start it with: groundplane up",
                field="state",
                value=str(state),
            )
        self._address = upfile.address(up.host, up.port)
        try:
            self._key = os.environ.get("GROUNDPLANE_KEY", "") or (state / "admin.key").read_text().strip()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", file=str(state / "admin.key")) from None

    def get(self, path: str, **query: Any) -> Any:
        """GET; query values that are None are left out."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._request("GET", path + (f"?{urllib.parse.urlencode(given)}" if given else ""))

    def post(self, path: str, body: Any = None, *, idempotency_key: str = "") -> Any:
        """POST of a JSON body. With an idempotency key it is repeated while the control plane restarts."""
        return self._request("POST", path, body, idempotency_key=idempotency_key)

    def put(self, path: str, body: Any) -> Any:
        """PUT of a JSON body, which may be repeated."""
        return self._request("PUT", path, body)

    def delete(self, path: str) -> Any:
        """DELETE."""
        return self._request("DELETE", path)

    def _request(self, method: str, path: str, body: Any = None, *, idempotency_key: str = "") -> Any:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        if idempotency_key:
            headers["idempotency-key"] = idempotency_key
        payload = None if body is None else json.dumps(body).encode()
        may_repeat = method in {"GET", "PUT"} or bool(idempotency_key)
        deadline_s = time.monotonic() + RETRY_FOR_S
        while True:
            try:
                status, text = self._once(method, path, payload, headers)
            except socket.gaierror:
                host = self._address.rpartition(":")[0] or self._address
                raise InputError("no such host", field="GROUNDPLANE_URL", value=host) from None
            except (OSError, http.client.HTTPException) as error:
                if may_repeat and time.monotonic() < deadline_s:
                    time.sleep(0.1)
                    continue
                fail(f"the control plane at {self._address} does not answer: {error or type(error).__name__}")
            return _answer(status, text)

    def _once(
        self, method: str, path: str, payload: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._address, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, payload, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def checked_address(url: str) -> str:
    """Host and port of GROUNDPLANE_URL.

    Raises:
        InputError: it is no http://HOST:PORT.
    """
    rule = "must be http://HOST:PORT, as groundplane up prints it"
    try:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InputError(rule, field="GROUNDPLANE_URL", value=url) from None
    if parts.scheme != "http" or not host or port is None or parts.path.strip("/") or parts.query:
        raise InputError(rule, field="GROUNDPLANE_URL", value=url)
    return parts.netloc


def quote(name: str) -> str:
    """A name as one part of a path.

    Raises:
        InputError: empty, or it would be more than one part.
    """
    if not name or "/" in name:
        raise InputError("must be a name: not empty and without '/'", value=name)
    return urllib.parse.quote(name, safe="")


def print_json(data: Any) -> None:
    """JSON for programs, on standard output."""
    click.echo(json.dumps(data, indent=2))


def print_table(columns: list[str], rows: list[list[str]], *, empty: str = "") -> None:
    """A table for people; plain text when standard output is no terminal."""
    if not rows and empty:
        click.echo(empty)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 240
    Console(width=width, highlight=False, markup=False).print(table)


def show_time(time_ns: int | None) -> str:
    """A time of day as people write it, in their zone."""
    if time_ns is None or time_ns < 0:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns / 1e9))


def show_span(from_ns: int | None, to_ns: int | None) -> str:
    """The time between two moments; to now where the second is None."""
    from groundplane.spec.units import show_duration

    if from_ns is None or from_ns < 0:
        return "-"
    return show_duration(max(0, (to_ns if to_ns is not None else time.time_ns()) - from_ns) / 1e9)


def fail(message: str) -> NoReturn:
    """What was asked for failed, through no fault of the input: one line, exit code 1."""
    click.echo(f"groundplane: {message}", err=True)
    raise click.exceptions.Exit(1)


def _answer(status: int, text: bytes) -> Any:
    try:
        data = json.loads(text) if text else None
    except ValueError:
        fail(f"the control plane's answer ({status}) cannot be read")
    if status < 400:
        return data
    error = data.get("error") if isinstance(data, dict) else None
    if not isinstance(error, dict):
        fail(f"the control plane answered {status}")
    if status >= 500:
        fail(str(error.get("message")))
    value = error.get("value")
    raise InputError(
        str(error.get("message")),
        field=error.get("field"),
        value=... if value is None else value,
        nearest=error.get("nearest"),
    )
