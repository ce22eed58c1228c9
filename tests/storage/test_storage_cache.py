"""The cache: within its limit, checked, shared by processes; and never the reason why a job fails."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_rig import PART, Rig

from groundplane.platform.storage import cache as cache_module
from groundplane.platform.storage import reading
from groundplane.platform.storage.cache import PartCache
from groundplane.platform.storage.part_file import BLOCK_BYTES, PartFile, header_bytes, write_part
from groundplane.platform.storage.upkeep import warm

BIG = random.Random(5).randbytes(10 * PART + 17)
HELD = 1000 + header_bytes(1000)
"""What a part of 1,000 bytes takes."""


def name(number: int) -> str:
    return f"{number:032x}"


def fill(cache: PartCache, count: int, size: int = 1000) -> None:
    """Parts 0, 1, ... used one second after the other, long ago."""
    for number in range(count):
        assert cache.add(name(number), 0, bytes([number % 256]) * size)
        os.utime(cache.path(name(number), 0), (1000 + number, 1000 + number))


def held(cache: PartCache, count: int) -> list[int]:
    return [number for number in range(count) if cache.holds(name(number), 0)]


def test_least_recently_used_parts_go_first_and_the_limit_holds(tmp_path: Path) -> None:
    cache = PartCache(tmp_path, 10 * HELD)
    fill(cache, 10)
    assert cache.used_bytes() == 10 * HELD
    assert cache.read(name(0), 0, memoryview(bytearray(1000)))  # used now
    assert cache.add(name(10), 0, b"x" * 1000)
    # 10 are over 90 % of the limit less the new one: one goes, and it is not the one just used.
    assert held(cache, 11) == [0, *range(2, 11)]
    assert cache.used_bytes() == 10 * HELD
    assert cache.counts.num_evicted == 1


def test_pinned_parts_stay_and_a_part_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = PartCache(tmp_path, 3 * HELD)
    fill(cache, 3)
    for number in range(2):
        cache.pin(name(number))
    assert cache.add(name(3), 0, b"x" * 1000)
    assert held(cache, 4) == [0, 1, 3]
    cache.pin(name(3))
    assert not cache.add(name(4), 0, b"x" * 1000)
    cache.unpin(name(0))
    assert cache.add(name(4), 0, b"x" * 1000)
    assert held(cache, 5) == [1, 3, 4]
    assert not cache.add(name(5), 0, b"x" * 10_000)
    assert cache.counts.num_failures == 0


def test_two_processes_share_one_count(tmp_path: Path) -> None:
    one, two = PartCache(tmp_path, 10 * HELD), PartCache(tmp_path, 10 * HELD)
    fill(one, 3)
    assert two.used_bytes() == 3 * HELD
    assert two.add(name(7), 0, b"7" * 1000)
    assert one.used_bytes() == 4 * HELD
    (tmp_path / "used").unlink()
    assert one.used_bytes() == 4 * HELD  # counted anew


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3000)), max_size=40))
def test_the_limit_holds_after_any_sequence(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int]]
) -> None:
    cache = PartCache(tmp_path_factory.mktemp("cache"), 8000)
    for number, size in parts:
        cache.add(name(number), 0, bytes(size))
        on_disk = sum(path.stat().st_size for path in (cache.folder / "parts").rglob("*.*"))
        assert cache.used_bytes() == on_disk <= 8000


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 5])
def test_a_part_file_knows_its_length_and_finds_every_flipped_byte(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    write_part(tmp_path / "part", memoryview(data), soon=True)
    with PartFile(tmp_path / "part") as part:
        into = bytearray(size)
        assert part.length == size
        assert part.read(memoryview(into))
        assert into == data
    stored = bytearray((tmp_path / "part").read_bytes())
    for at in sorted(
        {header_bytes(size) - 1, header_bytes(size), len(stored) - 1} & set(range(16, len(stored)))
    ):
        flipped = bytearray(stored)
        flipped[at] ^= 1
        (tmp_path / "part").write_bytes(flipped)
        with PartFile(tmp_path / "part") as part:
            assert not part.read(memoryview(into))


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "other"])
def test_a_damaged_part_is_dropped_and_fetched_again(rig: Rig, harm: str) -> None:
    store = rig.open()
    upload = store.create("x", part_bytes=PART)
    upload.write(BIG)
    upload.close().result()
    version = store.look_up("x").version
    path = store.cache.path(version, 4)
    stored = bytearray(path.read_bytes())
    stored[1000] ^= 1
    other = store.cache.path(version, 5).read_bytes()
    path.write_bytes({"flip": bytes(stored), "cut": bytes(stored[:500]), "empty": b"", "other": other}[harm])
    with store.open("x") as file:
        assert file.read() == BIG
    assert store.cache.counts.num_damaged == 1
    store.fetcher.settle()
    assert store.read("x") == BIG
    assert store.cache.counts.num_damaged == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_failing_cache_disk_slows_and_never_fails(
    rig: Rig, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = rig.open("good")
    upload = good.create("x", part_bytes=PART)
    upload.write(BIG)
    upload.close().result()

    def fail(*_: object, **__: object) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(cache_module, "write_part", fail)
    store = rig.open("bad")
    assert store.read("x") == BIG
    store.fetcher.settle()
    assert 1 <= store.cache.counts.num_failures <= 2  # one a thread, then it was left alone
    assert os.strerror(code) in store.cache.counts.last_failure
    assert not store.cache.usable
    with store.open("x") as file:
        assert file.read() == BIG
    assert store.fetcher.counts.bytes_from["durable"] == 2 * len(BIG)


def test_a_cache_that_fails_while_it_is_read_is_left_for_the_tier(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rig.open()
    upload = store.create("x", part_bytes=PART)
    upload.write(BIG)
    upload.close().result()
    reads = []

    def fail_later(part: PartFile, number: int, into: memoryview) -> bool:
        reads.append(number)
        if len(reads) > 3:
            raise OSError(errno.EIO, "bad disk")
        return whole(part, number, into)

    whole = PartFile.read_block
    monkeypatch.setattr(PartFile, "read_block", fail_later)
    with store.open("x") as file:
        assert file.read() == BIG
    assert store.fetcher.counts.bytes_from["cache"] == 3 * PART
    assert store.cache.counts.num_failures == 1


@pytest.mark.parametrize("when", ["from the start", "in the middle", "at the seal"])
def test_a_write_outlives_a_failing_local_disk(rig: Rig, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from groundplane.platform.storage import staging, writing

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    store = rig.open()
    if when == "from the start":
        (rig.folder / "node").write_bytes(b"not a folder")
    upload = store.create("x", part_bytes=PART)
    upload.write(BIG[: 4 * PART])
    if when == "in the middle":
        monkeypatch.setattr(writing, "write_part", full)
    upload.write(BIG[4 * PART :])
    if when == "at the seal":
        monkeypatch.setattr(staging, "write_durable", full)
    sending = upload.close()
    assert sending.done()  # without a whole local copy, close waits until it is durable
    assert rig.open("other").read("x") == BIG


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_really_full_disk(rig: Rig, tmp_path: Path) -> None:
    import subprocess

    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", disk], check=False)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    try:
        store = rig.open("disk")
        upload = store.create("x", part_bytes=PART)
        upload.write(BIG)
        upload.close().result()
        assert store.read("x") == BIG
        store.fetcher.settle()
        assert store.read("x") == BIG
        assert rig.open("other").read("x") == BIG
    finally:
        rig.close()
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_hung_cache_disk_stops_being_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    good = rig.open("good")
    upload = good.create("x", part_bytes=PART // 4)
    upload.write(BIG)
    upload.close().result()
    goes_on = threading.Event()
    monkeypatch.setattr(cache_module, "write_part", lambda *_, **__: goes_on.wait(60) and b"")
    monkeypatch.setattr(reading, "KEEP_WITHIN_S", 0.01)
    store = rig.open("hung")
    assert store.read("x") == BIG
    assert store.fetcher.counts.num_not_kept > 0
    goes_on.set()


def test_a_shared_cache_serves_the_next_node(rig: Rig, tmp_path: Path) -> None:
    store = rig.open("one", shared_cache=str(tmp_path / "shared"))
    upload = store.create("x", part_bytes=PART)
    upload.write(BIG)
    upload.close().result()
    reader = rig.open("two", shared_cache=str(tmp_path / "shared"))
    assert reader.read("x") == BIG
    reader.fetcher.settle()
    third = rig.open("three", shared_cache=str(tmp_path / "shared"))
    assert third.read("x") == BIG
    assert third.fetcher.counts.bytes_from == {
        "cache": 0,
        "shared_cache": len(BIG),
        "peers": 0,
        "durable": 0,
    }
    third.fetcher.settle()
    assert third.read("x") == BIG
    assert third.fetcher.counts.bytes_from["cache"] == len(BIG)


def test_warming_fills_the_cache_and_can_keep(rig: Rig) -> None:
    store = rig.open()
    for number in range(3):
        upload = store.create(f"set/{number}", part_bytes=PART, local=False)
        upload.write(BIG)
        upload.close().result()
    reader = rig.open("reader", cache_limit_bytes=2 * len(BIG) + 100 * 1024)
    assert warm(reader, "set/0", keep=True) == (1, len(BIG))
    assert warm(reader, "set") == (3, 3 * len(BIG))
    before = reader.fetcher.counts.bytes_from["durable"]
    assert reader.read("set/0") == BIG
    assert reader.fetcher.counts.bytes_from["durable"] == before
    assert reader.cache.used_bytes() <= reader.cache.limit_bytes
