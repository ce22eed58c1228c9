"""Parts from other nodes' caches: asked before the bucket, because the network between nodes is wider.

A node serves its cache folder over HTTP at one address, to holders of the cluster's peer key; what it sends
is a part as it lies in the cache, checksum included. A reader asks few peers, in an order that all nodes
agree on for a part (highest random weight: Thaler and Ravishankar, IEEE/ACM ToN 1998), and never waits long
for any.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

import xxhash

from groundplane.platform.storage.part_file import header_bytes
from groundplane.platform.storage.spec import split_address

if TYPE_CHECKING:
    from groundplane.platform.storage.cache import PartCache

PEER_KEY: Final = "GROUNDPLANE_STORE_PEER_KEY"
"""Environment variable with the key that all nodes of a cluster share."""
NUM_ASKED: Final = 2
"""Peers asked for one part: the likely holders. More would cost a miss more than it saves."""
ANSWER_WITHIN_S: Final = 2.0
OFF_AFTER_FAILURE_S: Final = 30.0
MAX_CONNECTIONS: Final = 64


class PeerServer:
    """Serves a cache to its peers, in threads of this process.

    Args:
        cache: whose parts.
        address: `host:port`; port 0 takes a free one, see `address` afterwards.
        key: the cluster's peer key.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(self, cache: PartCache, address: str, key: str) -> None:
        handler = type("Handler", (_Handler,), {"cache": cache, "key": key})
        self._server = _BoundedServer(split_address(address), handler)
        self._server.daemon_threads = True
        host, port = self._server.server_address[:2]
        self.address = f"{host!s}:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="peer-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass
class PeerCounts:
    """What peers gave in this process."""

    num_hits: int = 0
    num_misses: int = 0
    num_failures: int = 0
    num_damaged: int = 0


class Peers:
    """The other nodes' caches.

    Args:
        addresses: `host:port` of each.
        key: the cluster's peer key.
    """

    def __init__(self, addresses: list[str], key: str) -> None:
        self._addresses = addresses
        self._key = key
        self._off_until_s: dict[str, float] = {}
        self._connections = threading.local()
        self._opened: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self.counts = PeerCounts()

    def read(self, version: str, number: int, into: memoryview, expected: str = "") -> bool:
        """Fills `into` with a part, as `PartCache.read` does; False where no peer that was asked has it."""
        now_s = time.monotonic()
        ready = [one for one in self._addresses if self._off_until_s.get(one, 0.0) <= now_s]
        ready.sort(key=lambda address: _weight(address, version, number), reverse=True)
        for address in ready[:NUM_ASKED]:
            try:
                if self._ask(address, version, number, into, expected):
                    self.counts.num_hits += 1
                    return True
            except (OSError, http.client.HTTPException):
                self.counts.num_failures += 1
                self._off_until_s[address] = time.monotonic() + OFF_AFTER_FAILURE_S
                self._hang_up(address)
        self.counts.num_misses += 1
        return False

    def close(self) -> None:
        """Ends all connections; no read may be under way."""
        with self._lock:
            for connection in self._opened:
                connection.close()
            self._opened.clear()

    def _ask(self, address: str, version: str, number: int, into: memoryview, expected: str) -> bool:
        connection = self._connection(address)
        connection.request(
            "GET", f"/parts/{version}/{number}", headers={"authorization": f"Bearer {self._key}"}
        )
        answer = connection.getresponse()
        before = header_bytes(into.nbytes)
        if answer.status != 200 or answer.length != into.nbytes + before:
            if answer.length != 0:
                self._hang_up(address)
            else:
                answer.read()
            return False
        header = answer.read(before)
        done = 0
        while done < into.nbytes:
            got = answer.readinto(into[done:])
            if got == 0:
                raise http.client.IncompleteRead(b"", into.nbytes - done)
            done += got
        digest = xxhash.xxh3_128_digest(into)
        if digest != header[: len(digest)] or (expected and digest.hex() != expected):
            self.counts.num_damaged += 1
            return False
        return True

    def _connection(self, address: str) -> http.client.HTTPConnection:
        """This thread's connection to a peer."""
        mine: dict[str, http.client.HTTPConnection] = self._connections.__dict__
        if address not in mine:
            host, port = split_address(address)
            mine[address] = http.client.HTTPConnection(host, port, timeout=ANSWER_WITHIN_S)
            with self._lock:
                self._opened.add(mine[address])
        return mine[address]

    def _hang_up(self, address: str) -> None:
        connection = self._connections.__dict__.pop(address, None)
        if connection is not None:
            connection.close()
            with self._lock:
                self._opened.discard(connection)


class _BoundedServer(ThreadingHTTPServer):
    """Refuses connections beyond a limit instead of starting threads without end."""

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that went away is no event."""


class _Handler(BaseHTTPRequestHandler):
    cache: PartCache
    key: str
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        given = self.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.key}".encode()):
            self._refuse(401)
            return
        kind, _, rest = self.path.removeprefix("/").partition("/")
        version, _, number = rest.partition("/")
        if kind != "parts" or not (version.isalnum() and version.isascii() and number.isdecimal()):
            self._refuse(404)
            return
        try:
            file = self.cache.path(version, int(number)).open("rb", buffering=0)
        except OSError:
            self._refuse(404)
            return
        with file:
            self.send_response(200)
            self.send_header("content-length", str(file.seek(0, 2)))
            self.end_headers()
            file.seek(0)
            with suppress(OSError):
                self.connection.sendfile(file)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a busy cache would write a line a part."""

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()


def _weight(address: str, version: str, number: int) -> bytes:
    return hashlib.blake2b(f"{address} {version} {number}".encode(), digest_size=8).digest()
