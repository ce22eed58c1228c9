"""Parts from other nodes' caches, and never a wait for a peer that does not answer well."""

from __future__ import annotations

import http.client
import random
import socket
import threading
from collections.abc import Iterator

import pytest
from storage_rig import PART, Rig

from groundplane.platform.storage import peers as peers_module
from groundplane.platform.storage.peers import PEER_KEY
from groundplane.platform.storage.store import Store

BIG = random.Random(7).randbytes(8 * PART + 3)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PEER_KEY, "secret")
    monkeypatch.setattr(peers_module, "ANSWER_WITHIN_S", 0.5)


@pytest.fixture
def holder(rig: Rig) -> Store:
    """A node that has the file and serves it."""
    store = rig.open("holder", listen="127.0.0.1:0")
    upload = store.create("x", part_bytes=PART)
    upload.write(BIG)
    upload.close().result()
    return store


def address_of(store: Store) -> str:
    assert store.server is not None
    return store.server.address


def test_a_peer_is_asked_before_the_tier(rig: Rig, holder: Store) -> None:
    reader = rig.open("reader", peers=[address_of(holder)])
    assert reader.read("x") == BIG
    assert reader.fetcher.counts.bytes_from["peers"] == len(BIG)
    assert reader.fetcher.counts.bytes_from["durable"] == 0
    reader.fetcher.settle()
    with reader.open("x") as file:
        assert file.read() == BIG
    assert reader.fetcher.counts.bytes_from["cache"] == len(BIG)


def test_a_peer_without_the_part_or_with_a_damaged_one_is_passed_over(rig: Rig, holder: Store) -> None:
    version = holder.look_up("x").version
    holder.cache.path(version, 2).unlink()
    damaged = bytearray(holder.cache.path(version, 3).read_bytes())
    damaged[-1] ^= 1
    holder.cache.path(version, 3).write_bytes(damaged)
    reader = rig.open("reader", peers=[address_of(holder)])
    assert reader.read("x") == BIG
    assert reader.fetcher.counts.bytes_from["durable"] == 2 * PART
    assert reader.peers is not None
    assert (reader.peers.counts.num_damaged, reader.peers.counts.num_failures) == (1, 0)


def test_a_peer_wants_the_key(rig: Rig, holder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PEER_KEY, "guessed")
    reader = rig.open("reader", peers=[address_of(holder)])
    assert reader.read("x") == BIG
    assert reader.fetcher.counts.bytes_from["peers"] == 0


@pytest.mark.parametrize("path", ["/", "/parts/../../etc/0", "/parts/x", "/parts/ab/x", "/other/ab/0"])
def test_a_peer_gives_out_parts_only(holder: Store, path: str) -> None:
    connection = http.client.HTTPConnection(address_of(holder), timeout=5)
    connection.request("GET", path, headers={"authorization": "Bearer secret"})
    assert connection.getresponse().status == 404
    connection.close()


@pytest.fixture
def hung_peer() -> Iterator[str]:
    """Takes connections and never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def take() -> None:
        while True:
            try:
                held.append(server.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=take)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()
    for one in held:
        one.close()


def test_a_hung_or_dead_peer_is_left_alone_after_its_first_failure(
    rig: Rig, holder: Store, hung_peer: str
) -> None:
    reader = rig.open("reader", peers=["127.0.0.1:9", hung_peer])
    assert reader.read("x") == BIG
    assert reader.peers is not None
    # At most one failure a peer and a thread.
    assert 2 <= reader.peers.counts.num_failures <= 16
    before = reader.peers.counts.num_failures
    reader.cache.forget(reader.look_up("x").version)
    assert reader.read("x") == BIG
    assert reader.peers.counts.num_failures == before
