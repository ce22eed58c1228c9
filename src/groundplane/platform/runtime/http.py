"""What all routes share: who may call them, one shape for every error, and bodies read by our own loader.

{"error": {"message": "...", "field": "...", "value": ..., "nearest": "..."}}
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers.base import BaseRouteHandler

from groundplane.platform.runtime.database import StorageError
from groundplane.platform.runtime.driver import Busy, Driver
from groundplane.platform.runtime.identity import Key, KeyRing, Role
from groundplane.platform.runtime.job_desk import MissingError
from groundplane.spec.errors import InputError, InvariantError
from groundplane.spec.load import from_data

SpecT = TypeVar("SpecT")
log = logging.getLogger("groundplane.http")


def authenticate(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
    """Refuses a request without a usable key; `request.user` is the key from here on."""
    kind, _, text = connection.headers.get("authorization", "").partition(" ")
    ring: KeyRing = connection.app.state.key_ring
    key = ring.find(text.strip(), time.time_ns()) if kind.lower() == "bearer" else None
    if key is None:
        raise HTTPException(
            "a usable API key is needed: Authorization: Bearer gp-...", status_code=401,
            headers={"www-authenticate": "Bearer"},
        )  # fmt: skip
    connection.scope["user"] = key


async def settle(request: Request[Any, Any, State]) -> None:
    """Before each request: what is going to be read from the core is durable, and so cannot be unsaid."""
    driver: Driver = request.app.state.driver
    await driver.settled()


def needs(role: Role) -> Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], None]:
    """A guard that lets a role and those above it pass."""

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
        key: Key = connection.scope["user"]
        if not key.may(role):
            raise HTTPException(f"needs a key with role {role!r}, this one is {key.role!r}", status_code=403)

    return guard


def _failure(status: int, message: str, **parts: object) -> Response[dict[str, Any]]:
    error = {"message": message, "field": None, "value": None, "nearest": None} | parts
    return Response({"error": error}, status_code=status)


def _input_error(_request: Request[Any, Any, Any], error: InputError) -> Response[dict[str, Any]]:
    value = error.value if isinstance(error.value, str | int | float | bool) else None
    status = 404 if isinstance(error, MissingError) else 400
    return _failure(status, error.rule, field=error.field, value=value, nearest=error.nearest)


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, Any]]:
    message = error.detail
    if error.status_code == 404:
        message = f"no such path: {request.url.path}"
    elif isinstance(error.extra, list) and error.extra and isinstance(error.extra[0], dict):
        message = f"{error.extra[0].get('key', 'request')}: {error.extra[0].get('message', message)}"
    answer = _failure(error.status_code, message)
    answer.headers.update(error.headers or {})
    return answer


def _unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _failure(500, "this is a bug in Groundplane; its log says more")


async def read_body(request: Request[Any, Any, State], kind: type[SpecT]) -> SpecT:
    """The request's JSON body, checked.

    Raises:
        InputError: no JSON, or anything that `spec.load.from_data` refuses.
    """
    try:
        content = await request.body()
        data = msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise InputError(f"the body must be JSON ({error})") from None
    except RecursionError:
        raise InputError("the body is nested too deeply") from None
    if rb"\u0000" in content and _has_zero_byte(data):
        raise InputError("the body must not contain a zero byte")
    return from_data(data, kind, bare=True)


def _has_zero_byte(data: Any) -> bool:
    """Whether a string has one: no path, command or column of Postgres can hold it."""
    if isinstance(data, dict):
        return any(_has_zero_byte(part) for pair in data.items() for part in pair)
    if isinstance(data, list):
        return any(map(_has_zero_byte, data))
    return isinstance(data, str) and "\0" in data


EXCEPTION_HANDLERS: Final[dict[Any, Any]] = {
    InputError: _input_error,
    Busy: lambda _request, error: _failure(503, str(error)),
    StorageError: lambda _request, error: _failure(503, str(error)),
    InvariantError: lambda _request, error: _failure(500, f"this is a bug in Groundplane: {error}"),
    HTTPException: _http_error,
    Exception: _unexpected,
}
