"""Connections of both HTTP servers, bounded: how large and how slow a request's head may be, and how long a
client may leave an answer unread. uvicorn bounds neither, and a client without a key must not fill memory.

Bodies are bounded by the applications, which know who asks.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT_BYTES: Final = 64 * 2**10
"""Largest request line with headers."""
HEAD_LIMIT_S: Final = 30.0
"""Longest time from a connection's begin, or a head's first byte, until the head is whole."""
STALL_LIMIT_S: Final = 300.0
"""Longest time that a client may leave its answer unread once all buffers are full."""

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n"
    b"connection: close\r\n\r\n"
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the limits above. A timer is made only for a head that comes in pieces."""

    head_limit_s: float = HEAD_LIMIT_S
    stall_limit_s: float = STALL_LIMIT_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_limit_s, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_LIMIT_BYTES:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_TOO_LARGE)
                self.transport.close()
            else:
                self._end()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_limit_s, self._end)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.stall_limit_s, self._end)

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def _end(self) -> None:
        self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
