"""One request on its way through the gateway: what the client sent, and what is known of it so far."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from groundplane.platform.runtime.identity import Key
from groundplane.platform.serving.answers import bad_body
from groundplane.platform.serving.directory import Replica
from groundplane.platform.serving.metering import CountedBy, Outcome, Reservation, Settlement
from groundplane.platform.serving.upstream import ClientGone, Connection

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _StreamOptions(Struct):
    include_usage: bool | None = None


class Envelope(Struct):
    """What the gateway reads of a body; all else passes untouched."""

    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_ASKED: Final = msgspec.Raw(b'{"include_usage":true}')


def read_envelope(body: bytes) -> Envelope:
    """Reads the few fields that the gateway needs.

    Raises:
        ApiError: 400, not a JSON object, or one of these fields missing or of a wrong type.
    """
    try:
        if not body.isascii():
            # What is skipped over is not checked by the decoder, and must be text all the same.
            body.decode()
        return _decode_envelope(body)
    except msgspec.ValidationError as error:
        # "Expected `str`, got `int` - at `$.model`": names types and a place, never content.
        text, _, place = str(error).partition(" - at `$")
        param = place.strip("`.") or ("model" if "`model`" in text else None)
        raise bad_body(f"The body is not right: {text[:1].lower()}{text[1:]}.", param) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise bad_body("The body is not valid JSON.") from None
    except RecursionError:
        raise bad_body("The body is nested too deeply.") from None


def ask_for_usage(body: bytes, envelope: Envelope) -> bytes:
    """The body of a streamed request with `stream_options.include_usage` set; every other byte as it was.

    Raises:
        ApiError: 400, what `read_envelope` skipped over is no JSON.
    """
    if envelope.stream_options is None:
        if b'"stream_options"' not in body:
            start = body.index(b"{") + 1
            return body[:start] + b'"stream_options":{"include_usage":true},' + body[start:]
        return msgspec.json.encode(_fields(body) | {"stream_options": _ASKED})
    fields = _fields(body)
    options = _decode_fields(fields["stream_options"]) | {"include_usage": msgspec.Raw(b"true")}
    return msgspec.json.encode(fields | {"stream_options": msgspec.Raw(msgspec.json.encode(options))})


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _decode_fields(body)
    except msgspec.DecodeError:
        raise bad_body("The body is not valid JSON.") from None


def with_model(body: bytes, model: str) -> bytes:
    """The body with another `model`; the values of all other fields byte by byte as they were."""
    return msgspec.json.encode(_fields(body) | {"model": msgspec.Raw(msgspec.json.encode(model))})


class Call:
    """One request.

    Attributes (beside what the client sent):
        attempt: number of the present attempt, from 0; -1 before the first.
        data: the whole plain answer, or the bytes that a stream began with.
        num_tokens: tokens delivered of a stream so far.
        gone: the client left. finished: settled, or about to be; nothing may cut it any more.

    Times are from the monotonic clock; durations count from its arrival."""

    __slots__ = (
        "arrived_ns", "asked_usage", "attempt", "body", "connection", "data", "envelope", "finished",
        "first_token_ns", "gone", "holding", "is_event_stream", "key", "num_tokens", "num_tokens_logged",
        "path", "queued_ns", "replica", "request_id", "send", "started_ns", "streamed", "suffix",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        key: Key,
        path: str,
        body: bytes,
        envelope: Envelope,
        send: Send,
        arrived_ns: int,
    ) -> None:
        self.request_id = request_id
        self.key = key
        self.path = path
        self.suffix = path.removeprefix("/v1")
        self.body = body
        self.envelope = envelope
        self.send = send
        self.streamed = envelope.stream is True
        options = envelope.stream_options
        self.asked_usage = options is not None and options.include_usage is True
        self.arrived_ns = arrived_ns
        self.started_ns = time.time_ns()
        self.attempt = -1
        self.replica: Replica | None = None
        """The last one that a reservation names."""
        self.holding: Replica | None = None
        """The one among whose outstanding requests this is."""
        self.connection: Connection | None = None
        self.is_event_stream = False
        self.data = b""
        self.num_tokens = 0
        self.num_tokens_logged = 0
        self.queued_ns = 0
        self.first_token_ns = 0
        self.gone = False
        self.finished = False

    def client_left(self) -> None:
        """Cuts the exchange with the model server, unless the request has ended."""
        if self.finished:
            return
        self.gone = True
        if self.connection is not None:
            self.connection.cut(ClientGone())

    @property
    def upstream_id(self) -> str:
        """What the model server gets as `x-request-id`: one for each attempt, so that counts stay apart."""
        return upstream_id(self.request_id, self.attempt)

    def reservation(self, replica: Replica, attempt: int) -> Reservation:
        """The record for an attempt on `replica`."""
        return Reservation(
            request_id=self.request_id,
            attempt=attempt,
            key_id=self.key.key_id,
            project=self.key.project,
            model=self.envelope.model,
            work_id=replica.work_id,
            server=replica.server,
            url=replica.url,
            path=self.path,
            streamed=self.streamed,
            started_ns=self.started_ns,
        )

    def settlement(
        self,
        *,
        tokens: tuple[int, int, int],
        counted_by: CountedBy,
        partial: bool,
        outcome: Outcome,
        status: int,
    ) -> Settlement:
        """The record of its end. `tokens`: in, cached of these, out."""
        return Settlement(
            request_id=self.request_id,
            attempt=self.attempt,
            key_id=self.key.key_id,
            project=self.key.project,
            model=self.envelope.model,
            work_id="" if self.replica is None else self.replica.work_id,
            path=self.path,
            streamed=self.streamed,
            started_ns=self.started_ns,
            tokens_in=tokens[0],
            tokens_cached=tokens[1],
            tokens_out=tokens[2],
            counted_by=counted_by,
            partial=partial,
            outcome=outcome,
            status=status,
            queued_ns=self.queued_ns,
            first_token_ns=self.first_token_ns,
            total_ns=time.monotonic_ns() - self.arrived_ns,
        )


def upstream_id(request_id: str, attempt: int) -> str:
    """The id that an attempt has at the model server."""
    return request_id if attempt <= 0 else f"{request_id}.{attempt}"
