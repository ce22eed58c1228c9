"""When a draining replica is said to be empty: by the gateway's count, never by its silence."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from groundplane.control import events as ev
from groundplane.platform.runtime import draining


@contextmanager
def gateway(counts: dict[str, int], status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(counts).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class FakeDriver:
    def __init__(self, since_ns: int) -> None:
        self.said: list[ev.AnyEvent] = []
        self._since_ns = since_ns

    def now_ns(self) -> int:
        return 10 * draining.SETTLE_NS

    def draining(self) -> list[tuple[str, int, int]]:
        return [] if self.said else [("chat.r1", 4, self._since_ns)]

    async def handle(self, event: ev.AnyEvent) -> None:
        self.said.append(event)


def watched(address: str, *, since_ns: int = 0, for_s: float = 1.0) -> list[ev.AnyEvent]:
    async def body() -> list[ev.AnyEvent]:
        driver = FakeDriver(since_ns)
        task = asyncio.create_task(draining.watch_drains(driver, address))  # type: ignore[arg-type]
        await asyncio.wait([task], timeout=for_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return driver.said

    return asyncio.run(body())


def test_an_empty_replica_is_drained() -> None:
    with gateway({"chat.r1": 0, "other": 3}) as address:
        assert watched(address) == [ev.WorkDrained(work_id="chat.r1", fence=4)]
    with gateway({}) as address:
        assert watched(address) == [ev.WorkDrained(work_id="chat.r1", fence=4)]


def test_requests_in_flight_silence_and_haste_say_nothing() -> None:
    with gateway({"chat.r1": 1}) as address:
        assert watched(address, for_s=0.6) == []
    with gateway({}, status=503) as address:
        assert watched(address, for_s=0.6) == []
    with gateway({}) as address:
        assert watched(address, since_ns=10 * draining.SETTLE_NS - 1, for_s=0.6) == []
    assert watched("127.0.0.1:1", for_s=0.6) == []
    assert watched("", for_s=0.1) == []
