"""A small HTTP/1.1 client for the hot path: kept connections, bodies as they come, cancelled at once.

It does what a gateway needs and nothing more: one request a connection at a time, no redirects, no cookies,
no decompression.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Final, cast
from urllib.parse import urlsplit

import httptools
from msgspec import Struct

from groundplane.spec.errors import GroundplaneError, InputError

CONNECT_TIMEOUT_S: Final = 2.0
SILENCE_LIMIT_S: Final = 600.0
"""Longest wait for the next byte of an answer: a long prompt on a slow machine is silent for minutes."""
IDLE_LIMIT_S: Final = 4.0
"""Kept connections are closed before the model server does so (llama.cpp's waits 5 s)."""
MAX_IDLE_PER_ORIGIN: Final = 256
MAX_ANSWER_BYTES: Final = 64 * 2**20
"""Largest plain answer."""
PAUSE_BYTES: Final = 256 * 2**10
"""Bytes waiting for a slow client before reading from the server stops."""


class UpstreamError(GroundplaneError):
    """The exchange with a model server failed.

    Args:
        detail: what happened, in a few words.
        timeout: the server was silent for too long.
        reused: it failed on a kept connection before any byte of an answer: closed meanwhile, perhaps.
    """

    def __init__(self, detail: str, *, timeout: bool = False, reused: bool = False) -> None:
        super().__init__(detail)
        self.timeout = timeout
        self.reused = reused


class ClientGone(GroundplaneError):
    """The client left; the exchange was cut."""


class Origin(Struct, frozen=True):
    """Where a model server is: from a base URL such as `http://127.0.0.1:8123/v1`."""

    host: str
    port: int
    tls: bool
    prefix: str
    """Path before `/chat/completions`: "/v1"."""
    root: str
    """Path before `/v1`, for what lies outside the OpenAI API."""
    authority: bytes

    @classmethod
    def of(cls, url: str) -> Origin:
        """Parses a base URL; one without a path is taken to mean `/v1`.

        Raises:
            InputError: no http or https URL with a host.
        """
        rule = "must be a base URL such as 'http://127.0.0.1:8000/v1'"
        try:
            parts = urlsplit(url)
            given_port = parts.port
        except ValueError:
            raise InputError(rule, field="url", value=url) from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or not url.isascii():
            raise InputError(rule, field="url", value=url)
        tls = parts.scheme == "https"
        port = given_port or (443 if tls else 80)
        host = parts.hostname
        prefix = parts.path.rstrip("/") or "/v1"
        shown = f"[{host}]" if ":" in host else host
        return cls(
            host=host,
            port=port,
            tls=tls,
            prefix=prefix,
            root=prefix.removesuffix("/v1"),
            authority=f"{shown}:{port}".encode(),
        )

    def request(self, suffix: str, request_id: str, body: bytes) -> bytes:
        """A POST of JSON to the OpenAI API, `suffix` as "/chat/completions". The client's key stays here."""
        head = (
            f"POST {self.prefix}{suffix} HTTP/1.1\r\nhost: {self.authority.decode()}\r\n"
            f"content-type: application/json\r\naccept: */*\r\nx-request-id: {request_id}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def question(self, path: str) -> bytes:
        """A GET of JSON outside the OpenAI API."""
        host = self.authority.decode()
        return f"GET {self.root}{path} HTTP/1.1\r\nhost: {host}\r\naccept: application/json\r\n\r\n".encode()


class Connection(asyncio.Protocol):
    """One connection and the exchange on it now. Made and taken back by `Pool`."""

    __slots__ = (
        "_body", "_bytes_waiting", "_error", "_has_length", "_keep", "_loop", "_parser", "_paused", "_pool",
        "_transport", "_waiter", "complete", "content_type", "deadline_s", "headers_done", "idle_since_s",
        "key", "retry_after", "started", "status", "used",
    )  # fmt: skip

    def __init__(self, pool: Pool, key: tuple[str, int, bool], loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self.key = key
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.used = 0
        self.idle_since_s = 0.0
        self.deadline_s = 0.0
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._bytes_waiting = 0
        self._error: GroundplaneError | None = None
        self._has_length = False
        self._keep = False
        self._paused = False
        self.status = 0
        self.content_type = b""
        self.retry_after = b""
        self.started = False
        self.headers_done = False
        self.complete = False

    # What the relay calls ---------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Writes one request and begins to listen for its answer."""
        self._reset()
        self.used += 1
        self.deadline_s = self._loop.time() + SILENCE_LIMIT_S
        self._pool.active.add(self)
        if self._transport is None or self._transport.is_closing():
            self._error = UpstreamError("the connection was closed", reused=self.used > 1)
        else:
            self._transport.write(data)

    async def head(self) -> int:
        """Waits for status and headers.

        Raises:
            UpstreamError: broken off, not HTTP, or silent for too long.
            ClientGone: `cut` was called.
        """
        while not self.headers_done:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self.status

    async def read(self) -> bytes:
        """The next bytes of the body, empty at its end. Raises as `head` does, after what had arrived."""
        while True:
            if self._body:
                data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
                self._body.clear()
                self._bytes_waiting = 0
                if self._paused:
                    self._paused = False
                    if self._transport is not None:
                        self._transport.resume_reading()
                return data
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read_all(self) -> bytes:
        """The whole body, at most `MAX_ANSWER_BYTES`."""
        parts: list[bytes] = []
        size_bytes = 0
        while data := await self.read():
            parts.append(data)
            size_bytes += len(data)
            if size_bytes > MAX_ANSWER_BYTES:
                raise UpstreamError("its answer is too large")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cut(self, error: GroundplaneError) -> None:
        """Ends the exchange now: the server sees the connection close, the reader gets `error`."""
        if self._error is None and not self.complete:
            self._error = error
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def release(self) -> None:
        """Gives the connection back: kept when its answer was read to the end, closed otherwise."""
        self._pool.active.discard(self)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.complete and self._keep and self._error is None:
            self._pool.keep(self)
        else:
            transport.abort()

    @property
    def usable(self) -> bool:
        """Nothing was heard of its closing."""
        return self._transport is not None and not self._transport.is_closing()

    # What the event loop calls ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.started = True
        self.deadline_s = self._loop.time() + SILENCE_LIMIT_S
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if not self.complete:
                self._fail(UpstreamError("its answer is not HTTP"))
            return
        if self._bytes_waiting > PAUSE_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._pool.forget(self)
        if not self.complete and self._error is None:
            if self.headers_done and not self._has_length:
                self.complete = True
                self._wake()
            else:
                detail = (
                    "the connection broke off"
                    if self.started
                    else "the connection was closed before an answer"
                )
                self._fail(UpstreamError(detail, reused=self.used > 1 and not self.started))

    # What the parser calls --------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == b"content-type":
            self.content_type = value
        elif lowered == b"retry-after":
            self.retry_after = value
        elif lowered in {b"content-length", b"transfer-encoding"}:
            self._has_length = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            self.headers_done = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._bytes_waiting += len(body)

    def on_message_complete(self) -> None:
        if self.headers_done:
            self._keep = self._parser.should_keep_alive()
            self.complete = True

    # Private ----------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: GroundplaneError) -> None:
        self._error = error
        if self._transport is not None:
            self._transport.abort()
        self._wake()


class Pool:
    """Connections to all model servers. `sweep` must be called about once a second."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._idle: dict[tuple[str, int, bool], deque[Connection]] = {}
        self._tls: ssl.SSLContext | None = None
        self.active: set[Connection] = set()

    async def connection(self, origin: Origin, *, fresh: bool = False) -> Connection:
        """A kept connection, the one used last, or a new one.

        Raises:
            UpstreamError: no connection within `CONNECT_TIMEOUT_S`.
        """
        key = (origin.host, origin.port, origin.tls)
        idle = self._idle.get(key)
        while idle and not fresh:
            connection = idle.pop()
            if connection.usable:
                return connection
        tls: ssl.SSLContext | None = None
        if origin.tls:
            self._tls = tls = self._tls or ssl.create_default_context()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self, key, self._loop), origin.host, origin.port, ssl=tls
                )
        except TimeoutError:
            raise UpstreamError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise UpstreamError(f"no connection ({error.strerror or type(error).__name__})") from None
        return connection

    def keep(self, connection: Connection) -> None:
        """Takes back a connection that can be used again."""
        idle = self._idle.setdefault(connection.key, deque())
        if len(idle) >= MAX_IDLE_PER_ORIGIN:
            connection.cut(UpstreamError("not kept"))
            return
        connection.idle_since_s = self._loop.time()
        idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """A connection was lost; an idle one leaves the pool."""
        self.active.discard(connection)
        idle = self._idle.get(connection.key)
        if idle and connection in idle:
            idle.remove(connection)

    def sweep(self) -> None:
        """Closes what was idle too long and fails what was silent too long."""
        now_s = self._loop.time()
        for key, idle in list(self._idle.items()):
            while idle and now_s - idle[0].idle_since_s > IDLE_LIMIT_S:
                idle.popleft().cut(UpstreamError("idle"))
            if not idle:
                del self._idle[key]
        silent = [connection for connection in self.active if connection.deadline_s < now_s]
        for connection in silent:
            connection.cut(UpstreamError("silent for too long", timeout=True))

    def close(self) -> None:
        """Closes every connection."""
        for idle in self._idle.values():
            while idle:
                idle.pop().cut(UpstreamError("closing"))
        for connection in list(self.active):
            connection.cut(UpstreamError("the gateway is stopping"))
