"""The limits of connections: heads that are too large or too slow, and answers that nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import uvicorn

from groundplane.platform.runtime.connections import HEAD_LIMIT_BYTES, BoundedHttpProtocol


class Impatient(BoundedHttpProtocol):
    head_limit_s = 0.2
    stall_limit_s = 0.2


async def app(_scope: Any, receive: Any, send: Any) -> None:
    """Answers 64 MiB until its client has left."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(64):
        await send({"type": "http.response.body", "body": bytes(2**20), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def served(talk: Talk, http: type[BoundedHttpProtocol] = Impatient) -> None:
    async def main() -> None:
        config = uvicorn.Config(app, http=http, ws="none", lifespan="off", log_config=None, log_level="error")
        config.load()
        state = uvicorn.server.ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: http(config, state, {}), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            try:
                async with asyncio.timeout(30):
                    await talk(reader, writer)
            finally:
                writer.transport.abort()
            async with asyncio.timeout(30):
                while state.connections or state.tasks:
                    await asyncio.sleep(0)

    asyncio.run(main())


@pytest.mark.parametrize("endless", [b"x: y\r\n", b"x: " + b"y" * 100, b"y"])
def test_an_endless_head_is_refused(endless: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\n" if b":" in endless else b"GET /")
        while not writer.transport.is_closing() and not reader.at_eof():
            writer.write(endless * (4096 // len(endless)))
            await writer.drain()
            await asyncio.sleep(0)
        assert b" 431 " in await reader.read()

    # The server closes while more comes: its answer may be lost with that.
    with suppress(ConnectionError):
        served(talk, BoundedHttpProtocol)


def test_a_large_head_within_the_limit_passes() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        value = b"y" * (HEAD_LIMIT_BYTES - 1000)
        writer.write(b"GET / HTTP/1.1\r\nx: " + value + b"\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"

    served(talk, BoundedHttpProtocol)


@pytest.mark.parametrize("begin", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"])
def test_a_head_that_does_not_come_ends_the_connection(begin: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        with suppress(ConnectionError):  # closed, or reset
            assert await reader.read() == b""

    served(talk)


def test_an_answer_that_nobody_reads_ends_the_connection() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        # The reader takes 128 KiB and no more, the rest stays with the server.
        await reader.readexactly(1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.01)

    served(talk)
