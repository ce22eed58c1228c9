"""The hot path: one request to a replica and its answer back, bytes unchanged.

A request may be tried on another replica as long as its client has not had a byte. The settlement is in the
log before the client has the end of its answer. The client leaving ends the exchange at once, streamed or
plain.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from groundplane.platform.serving.answers import (
    ApiError,
    no_replica,
    not_ready,
    upstream_failed,
    upstream_timeout,
)
from groundplane.platform.serving.call import Call, ask_for_usage, with_model
from groundplane.platform.serving.directory import SUSPECT_S, Directory, Replica
from groundplane.platform.serving.events import StreamTail, Usage, usage_of_answer
from groundplane.platform.serving.ledger import Cut, Ledger
from groundplane.platform.serving.metering import CountedBy
from groundplane.platform.serving.metrics import GatewayMetrics
from groundplane.platform.serving.upstream import SILENCE_LIMIT_S, ClientGone, Connection, Pool, UpstreamError

MAX_ATTEMPTS: Final = 3
RETRIED_STATUSES: Final = frozenset({502, 503, 504})
"""A replica that answers so is starting, stopping or broken: another one may do better."""


class Relay:
    """Carries requests between clients and replicas."""

    def __init__(self, directory: Directory, pool: Pool, ledger: Ledger, metrics: GatewayMetrics) -> None:
        self._directory = directory
        self._pool = pool
        self._ledger = ledger
        self._metrics = metrics

    async def run(self, call: Call) -> None:
        """Answers a call and settles it.

        Raises:
            ApiError: nothing was sent to the client yet; what it is to be told.
        """
        try:
            connection = await self._exchange(call)
            if call.is_event_stream:
                await self._stream(call, connection)
            else:
                await self._plain(call, connection)
        except ClientGone:
            self._cut(call, "cancelled", 499)
        except asyncio.CancelledError:
            # Only the end of the process cancels, after `DRAIN_S`: the client is told, and the task ends.
            if call.finished:
                raise
            self._cut(call, "interrupted", 503)
            stopping = not_ready("The gateway is stopping.")
            if not call.is_event_stream:
                raise stopping from None
            await call.send({"type": "http.response.body", "body": stopping.event()})
        finally:
            if not call.finished and call.replica is not None:
                # A fault of our own: the request is settled all the same.
                self._cut(call, "failed", 500)
            call.finished = True
            _let_go(call)

    # Attempts ---------------------------------------------------------------------------------------------

    async def _exchange(self, call: Call) -> Connection:
        """Finds a replica that answers; `call.data` then holds the whole answer, or how a stream begins."""
        tried: list[str] = []
        failure: ApiError | None = None
        fresh: Replica | None = None
        while call.attempt + 1 < MAX_ATTEMPTS:
            replica = fresh or self._directory.choose(call.envelope.model, time.monotonic(), tried)
            if replica is None:
                break
            try:
                self._ledger.reserve(call, replica)
            except ApiError as error:
                failure = error
                break
            _hold(call, replica)
            try:
                connection = await self._attempt(call, replica, fresh=fresh is not None)
            except UpstreamError as error:
                _let_go(call)
                if error.reused and fresh is None:
                    # A kept connection that the server had just closed says nothing about the server.
                    fresh = replica
                    continue
                failure = upstream_timeout(SILENCE_LIMIT_S) if error.timeout else upstream_failed(str(error))
            else:
                if not self._worth_another(call, connection, [*tried, replica.work_id]):
                    return connection
                _let_go(call)
            replica.suspect_until_s = time.monotonic() + SUSPECT_S
            fresh = None
            tried.append(replica.work_id)
            self._metrics.retries.inc()
        if call.replica is None:
            raise failure or no_replica(call.envelope.model)
        failure = failure or upstream_failed("it is not available")
        self._cut(call, "failed", failure.status)
        raise failure

    def _worth_another(self, call: Call, connection: Connection, tried: list[str]) -> bool:
        if connection.status not in RETRIED_STATUSES or call.attempt + 1 >= MAX_ATTEMPTS:
            return False
        return self._directory.choose(call.envelope.model, time.monotonic(), tried) is not None

    async def _attempt(self, call: Call, replica: Replica, *, fresh: bool) -> Connection:
        """One exchange up to its first bytes (of a stream) or its end (of a plain answer)."""
        connection = await self._pool.connection(replica.origin, fresh=fresh)
        call.connection = connection
        body = call.body
        if call.streamed and not call.asked_usage and not replica.adapter.counts_unasked:
            body = ask_for_usage(body, call.envelope)
        if replica.model_there:
            body = with_model(body, replica.model_there)
        connection.send(replica.origin.request(call.suffix, call.upstream_id, body))
        call.queued_ns = time.monotonic_ns() - call.arrived_ns
        if call.gone:
            connection.cut(ClientGone())
        status = await connection.head()
        call.is_event_stream = (
            call.streamed and status == 200 and connection.content_type.startswith(b"text/event-stream")
        )
        call.data = await (connection.read() if call.is_event_stream else connection.read_all())
        return connection

    # Answers ----------------------------------------------------------------------------------------------

    async def _plain(self, call: Call, connection: Connection) -> None:
        status = connection.status
        body = call.data
        # Given back before the client has its answer: by its next request connection and replica are free.
        _let_go(call)
        call.first_token_ns = time.monotonic_ns() - call.arrived_ns
        usage = usage_of_answer(body) if status == 200 else None
        if status == 200 and not self._complete(call, usage):
            raise not_ready("The request could not be metered.")
        if status != 200:
            self._cut(call, "failed", status)
            if status >= 500 and not connection.content_type.startswith(b"application/json"):
                raise upstream_failed(f"it answered with status {status}")
        headers = [
            (b"content-type", connection.content_type or b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", call.request_id.encode()),
        ]
        if connection.retry_after:
            headers.append((b"retry-after", connection.retry_after))
        call.finished = True
        await call.send({"type": "http.response.start", "status": status, "headers": headers})
        await call.send({"type": "http.response.body", "body": body})

    async def _stream(self, call: Call, connection: Connection) -> None:
        send = call.send
        adapter = call.replica.adapter if call.replica is not None else None
        withhold = not call.asked_usage and adapter is not None and not adapter.counts_unasked
        tail = StreamTail(withhold_usage=withhold)
        headers = [
            (b"content-type", connection.content_type),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (b"x-request-id", call.request_id.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        data = call.data
        call.data = call.body = b""
        try:
            while data:
                out = tail.feed(data)
                if tail.num_tokens != call.num_tokens:
                    call.num_tokens = tail.num_tokens
                    if not call.first_token_ns:
                        call.first_token_ns = time.monotonic_ns() - call.arrived_ns
                if tail.done and not call.finished:
                    self._end_stream(call, tail)
                if out:
                    await send({"type": "http.response.body", "body": out, "more_body": True})
                data = await connection.read()
        except UpstreamError as error:
            if not call.finished:
                failure = upstream_timeout(SILENCE_LIMIT_S) if error.timeout else upstream_failed(str(error))
                self._cut(call, "failed", failure.status)
                await send({"type": "http.response.body", "body": failure.event(), "more_body": True})
        else:
            if not call.finished:
                self._end_stream(call, tail)
        await send({"type": "http.response.body", "body": tail.finish()})

    def _end_stream(self, call: Call, tail: StreamTail) -> None:
        if tail.failed:
            self._cut(call, "failed", 200)
        else:
            self._complete(call, tail.usage)
        call.finished = True

    # Books ------------------------------------------------------------------------------------------------

    def _complete(self, call: Call, usage: Usage | None) -> bool:
        """Settles a request that ran to its end. False when the settlement could not be written yet."""
        call.finished = True
        if usage is None:
            tokens = (0, 0, call.num_tokens)
            counted_by: CountedBy = "delivered" if call.num_tokens else "nobody"
        else:
            tokens = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens or 0)
            counted_by = "usage"
        return self._ledger.settle(
            call.settlement(
                tokens=tokens, counted_by=counted_by, partial=False, outcome="completed", status=200
            )
        )

    def _cut(self, call: Call, outcome: Cut, status: int) -> None:
        call.finished = True
        self._ledger.cut(call, outcome, status)


def _hold(call: Call, replica: Replica) -> None:
    call.holding = replica
    replica.num_outstanding += 1


def _let_go(call: Call) -> None:
    """Gives back what the present attempt holds: its connection and its place at the replica."""
    if call.connection is not None:
        call.connection.release()
        call.connection = None
    if call.holding is not None:
        call.holding.num_outstanding -= 1
        call.holding = None
