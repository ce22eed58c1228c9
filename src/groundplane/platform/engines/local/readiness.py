"""Asks a replica whether it is ready: one GET, nothing followed, no proxy, no library beyond asyncio."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

ASK_TIMEOUT_S: Final = 2.0
PERIOD_UNTIL_READY_S: Final = 0.2
PERIOD_WHEN_READY_S: Final = 1.0

FAILURES_UNTIL_UNREADY: Final = 3
"""A ready replica is called unready after this many failures in a row: one slow answer says little."""


def url_trouble(url: str) -> str:
    """Why a URL cannot be asked, or "" when it can."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return f"ready_url {url!r} has no valid port"
    if parts.scheme != "http" or not parts.hostname or port == 0:
        return f"ready_url {url!r} is not of the form http://HOST:PORT/PATH"
    return ""


async def answers(url: str) -> bool:
    """Whether the URL answers 200 within ASK_TIMEOUT_S."""
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            return await _status(url) == 200
    except (TimeoutError, OSError, ValueError):
        return False


async def _status(url: str) -> int:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    reader, writer = await asyncio.open_connection(host, port, limit=8192)
    try:
        writer.write(f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        line = await reader.readline()
        words = line.split()
        if len(words) < 2 or not words[0].startswith(b"HTTP/"):
            raise ValueError("not an HTTP answer")
        return int(words[1])
    finally:
        writer.close()
