"""The gateway as an ASGI application: who asks, for what, how much; then the relay. No framework here."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec

from groundplane.platform.runtime.identity import Key
from groundplane.platform.serving import answers
from groundplane.platform.serving.answers import ApiError
from groundplane.platform.serving.call import Call, Send, read_envelope
from groundplane.platform.serving.directory import Directory
from groundplane.platform.serving.metrics import GatewayMetrics
from groundplane.platform.serving.relay import Relay
from groundplane.spec.errors import nearest_name

MAX_BODY_BYTES: Final = 16 * 2**20
BODY_LIMIT_S: Final = 30.0
"""Longest time for a request's body to arrive."""
MAX_IN_FLIGHT: Final = 16_384
"""Requests in flight in one gateway process."""
MAX_IN_FLIGHT_PER_KEY: Final = 4_096

RELAYED: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class GatewayApp:
    """Serves the OpenAI API and, without a key, `/health`, `/metrics` and `/inflight`."""

    def __init__(
        self,
        directory: Directory,
        relay: Relay,
        metrics: GatewayMetrics,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self._directory = directory
        self._relay = relay
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._max_in_flight = max_in_flight
        self._num_in_flight = 0
        self._by_key: dict[str, int] = {}
        self._watchers: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        if scope["type"] != "http":
            return
        arrived_ns = time.monotonic_ns()
        request_id = "req_" + secrets.token_hex(12)
        path = scope["path"]
        try:
            if path in RELAYED:
                if scope["method"] != "POST":
                    raise answers.wrong_method(scope["method"], path)
                await self._relayed(scope, receive, send, request_id, arrived_ns)
            else:
                await self._own(scope, send, request_id)
        except ApiError as error:
            self._metrics.refused.labels(error.code).inc()
            await answer(send, error.status, error.body(), request_id, error.headers())

    async def _relayed(
        self, scope: Scope, receive: Receive, send: Send, request_id: str, arrived_ns: int
    ) -> None:
        length, authorization = _headers(scope)
        key = self._key(authorization)
        if not key.may("member"):
            raise answers.may_not(key.role)
        if length > self._max_body_bytes:
            raise answers.too_large(self._max_body_bytes)
        self._enter(key)
        try:
            body = await self._body(receive)
            if body is None:
                return
            envelope = read_envelope(body)
            if envelope.model not in self._directory.by_model:
                raise answers.unknown_model(
                    envelope.model, nearest_name(envelope.model, self._directory.by_model)
                )
            call = Call(request_id, key, scope["path"], body, envelope, send, arrived_ns)
            watcher = asyncio.get_running_loop().create_task(_watch(receive, call))
            self._watchers.add(watcher)
            watcher.add_done_callback(self._watchers.discard)
            try:
                await self._relay.run(call)
            except ApiError as error:
                # Answered here, where the watcher still waits: what it waits for is the end of the answer.
                self._metrics.refused.labels(error.code).inc()
                await answer(send, error.status, error.body(), request_id, error.headers())
        finally:
            self._leave(key)

    def _key(self, authorization: bytes) -> Key:
        if not self._directory.loaded_s:
            raise answers.not_ready("The gateway is starting.")
        scheme, _, text = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not text.strip():
            raise answers.no_key()
        key = self._directory.keys.find(text.strip().decode("latin-1"), time.time_ns())
        if key is None:
            raise answers.wrong_key()
        return key

    def _enter(self, key: Key) -> None:
        if self._num_in_flight >= self._max_in_flight:
            raise answers.overloaded("at this gateway", self._max_in_flight)
        num_of_key = self._by_key.get(key.key_id, 0)
        if num_of_key >= MAX_IN_FLIGHT_PER_KEY:
            raise answers.overloaded("for this key", MAX_IN_FLIGHT_PER_KEY)
        self._by_key[key.key_id] = num_of_key + 1
        self._num_in_flight += 1

    def _leave(self, key: Key) -> None:
        self._num_in_flight -= 1
        left = self._by_key[key.key_id] - 1
        if left:
            self._by_key[key.key_id] = left
        else:
            del self._by_key[key.key_id]

    async def _body(self, receive: Receive) -> bytes | None:
        """The request's body; None when the client left before its end."""
        parts: list[bytes] = []
        size_bytes = 0
        try:
            async with asyncio.timeout(BODY_LIMIT_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    size_bytes += len(part)
                    if size_bytes > self._max_body_bytes:
                        raise answers.too_large(self._max_body_bytes)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            raise answers.too_slow(BODY_LIMIT_S) from None

    # The gateway's own pages ------------------------------------------------------------------------------

    async def _own(self, scope: Scope, send: Send, request_id: str) -> None:
        path, method = scope["path"], scope["method"]
        known = path in {"/health", "/metrics", "/inflight", "/v1/models"} or path.startswith("/v1/models/")
        if not known:
            raise answers.unknown_path(path)
        if method not in {"GET", "HEAD"}:
            raise answers.wrong_method(method, path)
        if path == "/metrics":
            self._metrics.in_flight.set(self._num_in_flight)
            self._metrics.directory_age.set(time.monotonic() - self._directory.loaded_s)
            await answer(
                send, 200, self._metrics.text(), request_id, content_type=b"text/plain; version=0.0.4"
            )
        elif path == "/health":
            if not self._directory.loaded_s:
                raise answers.not_ready("The gateway is starting.")
            await answer(send, 200, msgspec.json.encode(self._health()), request_id)
        elif path == "/inflight":
            replicas = self._directory.replicas
            counts = {work_id: replica.num_outstanding for work_id, replica in replicas.items()}
            await answer(send, 200, msgspec.json.encode(counts), request_id)
        else:
            self._key(_headers(scope)[1])
            await answer(send, 200, self._models(path), request_id)

    def _health(self) -> dict[str, Any]:
        replicas = self._directory.replicas.values()
        return {
            "status": "ok",
            "num_ready_replicas": sum(replica.ready for replica in replicas),
            "num_in_flight": self._num_in_flight,
            "directory_age_s": round(time.monotonic() - self._directory.loaded_s, 3),
        }

    def _models(self, path: str) -> bytes:
        by_model = self._directory.by_model
        if path == "/v1/models":
            return msgspec.json.encode(
                {"object": "list", "data": [self._model(name) for name in sorted(by_model)]}
            )
        name = path.removeprefix("/v1/models/")
        if name not in by_model:
            raise answers.unknown_model(name, nearest_name(name, by_model))
        return msgspec.json.encode(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        created_s = self._directory.created_s.get(name, 0)
        return {"id": name, "object": "model", "created": created_s, "owned_by": "groundplane"}


async def answer(
    send: Send,
    status: int,
    body: bytes,
    request_id: str,
    headers: list[tuple[bytes, bytes]] | None = None,
    content_type: bytes = b"application/json",
) -> None:
    """Sends a whole answer of the gateway's own."""
    all_headers = [
        (b"content-type", content_type),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode()),
        *(headers or []),
    ]
    if status in {408, 413}:
        # The rest of the body is still to come, and nobody is going to read it.
        all_headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


def _headers(scope: Scope) -> tuple[int, bytes]:
    """Content length (0 where absent) and authorization."""
    length, authorization = 0, b""
    for name, value in scope["headers"]:
        if name == b"content-length":
            length = int(value) if value.isdigit() else 0
        elif name == b"authorization":
            authorization = value
    return length, authorization


async def _watch(receive: Receive, call: Call) -> None:
    """Waits until the client leaves or has its answer."""
    while (await receive())["type"] != "http.disconnect":
        pass
    call.client_left()
