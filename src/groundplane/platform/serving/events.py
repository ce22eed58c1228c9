"""The tail of an OpenAI-compatible stream: whole events, tokens delivered, usage, the end. No I/O.

Bytes leave as they came in, event by event. The one exception: the usage chunk that the gateway asked for on
its own account is withheld from a client that did not ask for it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

MAX_EVENT_BYTES: Final = 4 * 2**20
"""An event longer than this is passed on in pieces, unparsed."""


class PromptDetails(Struct):
    """Part of OpenAI's `usage`."""

    cached_tokens: int | None = None


class Usage(Struct):
    """OpenAI's `usage` object, as far as it is metered."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the server's cache."""
        return (self.prompt_tokens_details.cached_tokens or 0) if self.prompt_tokens_details else 0


class Answer(Struct):
    """A plain answer, as far as it is metered."""

    usage: Usage | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Timings(Struct):
    """What llama.cpp's server adds to the last chunk when usage was not asked for."""

    prompt_n: int = 0
    cache_n: int = 0
    predicted_n: int = 0


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    timings: _Timings | None = None
    error: object = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_answer = msgspec.json.Decoder(Answer).decode


def usage_of_answer(body: bytes) -> Usage | None:
    """The `usage` of a plain answer, or None when there is none that can be read."""
    try:
        return _decode_answer(body).usage
    except msgspec.DecodeError:
        return None


class StreamTail:
    """Follows one stream.

    Args:
        withhold_usage: drop the event that carries only `usage`; for clients that did not ask for it.

    Attributes:
        num_tokens: events that delivered something to read (text, reasoning, a piece of a tool call). Model
            servers send one event a token, except where bytes of one character span tokens.
        usage: the server's own count, once it was seen.
        done: `[DONE]` was seen: the stream is complete.
        failed: the server reported an error within the stream.
    """

    __slots__ = ("_rest", "_separator", "_withhold_usage", "done", "failed", "num_tokens", "usage")

    def __init__(self, *, withhold_usage: bool) -> None:
        self._withhold_usage = withhold_usage
        self._rest = b""
        self._separator = b"\n\n"
        self.num_tokens = 0
        self.usage: Usage | None = None
        self.done = False
        self.failed = False

    def feed(self, data: bytes) -> bytes:
        """Takes what the server sent and gives what the client gets now: whole events only."""
        if self._rest:
            data = self._rest + data
        end = data.rfind(self._separator)
        if end < 0:
            if b"\r\n\r\n" in data:
                self._separator = b"\r\n\r\n"
                self._rest = b""
                return self.feed(data)
            if len(data) > MAX_EVENT_BYTES:
                self._rest = b""
                return data
            self._rest = data
            return b""
        end += len(self._separator)
        if end == len(data):
            whole, self._rest = data, b""
        else:
            whole, self._rest = data[:end], data[end:]
        return self._scan(whole)

    def finish(self) -> bytes:
        """What is left when the server ends without closing its last event."""
        rest, self._rest = self._rest, b""
        return rest

    def _scan(self, whole: bytes) -> bytes:
        events = whole.split(self._separator)
        withheld: list[int] = []
        for index, event in enumerate(events):
            if not event.startswith(b"data:"):
                continue
            payload = event[5:].lstrip()
            if payload.startswith(b"[DONE]"):
                self.done = True
                continue
            if self._take(payload):
                withheld.append(index)
        if not withheld:
            return whole
        return self._separator.join(event for index, event in enumerate(events) if index not in withheld)

    def _take(self, payload: bytes) -> bool:
        """Counts one event; True when it is to be withheld."""
        try:
            chunk = _decode_chunk(payload)
        except msgspec.DecodeError:
            return False
        if chunk.error is not None:
            self.failed = True
        for choice in chunk.choices or ():
            delta = choice.delta
            if choice.text or (
                delta is not None
                and (
                    delta.content
                    or delta.reasoning_content
                    or delta.reasoning
                    or delta.refusal
                    or delta.tool_calls
                )
            ):
                self.num_tokens += 1
        if chunk.usage is None:
            if chunk.timings is not None:
                timings = chunk.timings
                prompt_tokens = timings.cache_n + timings.prompt_n
                self.usage = Usage(prompt_tokens, timings.predicted_n, PromptDetails(timings.cache_n))
            return False
        self.usage = chunk.usage
        return self._withhold_usage and not chunk.choices
