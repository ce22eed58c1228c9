"""Files in a store: written, read, listed, replaced, removed, whatever the tier does."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_rig import HASTY, PART, Rig, refuse

from groundplane.platform.storage.errors import Absent, Changed, Damaged, Pinned, QuotaExceeded, Unavailable
from groundplane.platform.storage.manifest import INLINE_BYTES, check_name, decode, encode, make_manifest
from groundplane.platform.storage.spec import StoreSpec, load_store
from groundplane.platform.storage.store import Store
from groundplane.spec.errors import InputError

BIG = random.Random(1).randbytes(10 * PART + 17)


def write(store: Store, name: str, data: bytes, *, local: bool = True) -> None:
    upload = store.create(name, part_bytes=PART, local=local)
    upload.write(data)
    upload.close().result()


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 3 * PART, len(BIG)])
def test_a_file_comes_back_as_it_was(rig: Rig, size: int, local: bool) -> None:
    store = rig.open()
    write(store, "runs/a", BIG[:size], local=local)
    assert store.read("runs/a") == BIG[:size]
    assert rig.open("other").read("runs/a") == BIG[:size]
    with store.open("runs/a") as file:
        assert b"".join(bytes(piece) for piece in iter(file.next_piece, b"")) == BIG[:size]
    into = bytearray(size + 3)
    assert store.read_into("runs/a", into) == size
    assert into[:size] == BIG[:size]


@pytest.mark.real
def test_a_file_goes_through_a_real_bucket(s3: object, tmp_path: Path) -> None:
    spec = {"durable": f"s3://tests/{tmp_path.name}", "endpoint": s3.endpoint}  # type: ignore[attr-defined]
    with Store(StoreSpec(**spec, cache=str(tmp_path / "one"))) as store:
        write(store, "runs/a", BIG)
        store.write("small", b"x").result()
        assert sorted(entry.name for entry in store.files()) == ["runs/a", "small"]
    with Store(StoreSpec(**spec, cache=str(tmp_path / "two"))) as store:
        assert store.read("runs/a") == BIG
        assert store.fetcher.counts.bytes_from["durable"] == len(BIG)
        store.fetcher.settle()
        assert store.read("runs/a") == BIG
        assert store.fetcher.counts.bytes_from["cache"] == len(BIG)


def test_pieces_written_in_any_size_make_the_same_file(rig: Rig) -> None:
    store = rig.open()
    sizes = random.Random(2)
    upload = store.create("x", part_bytes=PART)
    rest = memoryview(BIG)
    while rest:
        taken = sizes.choice([1, 1000, PART, 3 * PART])
        upload.write(rest[:taken])
        rest = rest[taken:]
    upload.close().result()
    assert store.read("x") == BIG


@pytest.mark.parametrize("warm", [True, False])
def test_a_file_is_read_as_python_reads_files(rig: Rig, warm: bool) -> None:
    store = rig.open()
    write(store, "x", BIG)
    reader = store if warm else rig.open("cold")
    plain, stored = io.BytesIO(BIG), reader.open("x")
    places = random.Random(3)
    for _ in range(200):
        where = places.randrange(len(BIG) + 10)
        size = places.choice([0, 1, 100, PART - 1, PART, 2 * PART + 5])
        if places.random() < 0.5:
            plain.seek(where)
            stored.seek(where)
        assert stored.read(size) == plain.read(size)
        assert stored.tell() == plain.tell()
    assert stored.seek(-7, io.SEEK_END) == plain.seek(-7, io.SEEK_END)
    assert stored.read() == plain.read()
    with pytest.raises(ValueError):
        stored.seek(-1)
    stored.close()


def test_names_are_listed_by_prefix_and_by_level(rig: Rig) -> None:
    store = rig.open()
    for name in ("a/1", "a/b/2", "ab/3", "4"):
        store.write(name, b"x").result()
    assert sorted(entry.name for entry in store.files("a")) == ["a/1", "a/b/2"]
    entries, folders = store.level("")
    assert [entry.name for entry in entries] == ["4"]
    assert folders == ["a", "ab"]
    entries, folders = store.level("a/")
    assert ([entry.name for entry in entries], folders) == (["a/1"], ["a/b"])


def test_a_replaced_file_is_still_read_by_who_opened_it(rig: Rig) -> None:
    store = rig.open()
    write(store, "x", BIG)
    other = rig.open("cold").open("x")
    write(store, "x", BIG[::-1])
    assert other.read() == BIG
    assert store.read("x") == BIG[::-1]
    other.close()


def test_a_removed_file_is_gone_and_an_unknown_one_is_absent(rig: Rig) -> None:
    store = rig.open()
    store.write("x", b"1").result()
    store.remove("x")
    for ask in (store.read, store.remove, lambda name: store.pin(name, "me")):
        with pytest.raises(Absent):
            ask("x")


def test_a_pinned_version_is_neither_removed_nor_lost_when_replaced(rig: Rig) -> None:
    store = rig.open()
    write(store, "x", BIG)
    version = store.pin("x", "release-7")
    with pytest.raises(Pinned, match="release-7"):
        store.remove("x")
    write(store, "x", b"new")
    assert bytes(store.open("x", version).read()) == BIG
    store.unpin("x", version, "release-7")
    with pytest.raises(Absent, match="neither current nor pinned"):
        store.open("x", version)


def test_a_source_is_read_in_place_and_never_written(rig: Rig, tmp_path: Path) -> None:
    folder = tmp_path / "others"
    (folder / "deep").mkdir(parents=True)
    (folder / "one.bin").write_bytes(BIG)
    (folder / "deep" / "two.txt").write_bytes(b"two")
    store = rig.open(sources={"data/plain": f"file://{folder}"})
    store.write("data/own", b"own").result()
    assert store.read("data/plain/one.bin") == BIG
    assert sorted((entry.name, entry.size_bytes) for entry in store.files("data")) == [
        ("data/own", None),
        ("data/plain/deep/two.txt", 3),
        ("data/plain/one.bin", len(BIG)),
    ]
    assert [entry.name for entry in store.files("data/plain/deep")] == ["data/plain/deep/two.txt"]
    entries, folders = store.level("data")
    assert ([entry.name for entry in entries], folders) == (["data/own"], ["data/plain"])
    entries, folders = store.level("data/plain")
    assert ([entry.name for entry in entries], folders) == (["data/plain/one.bin"], ["data/plain/deep"])
    for write_it in (lambda: store.write("data/plain/x", b"1"), lambda: store.remove("data/plain/one.bin")):
        with pytest.raises(InputError, match="read-only"):
            write_it()
    opened = store.open("data/plain/deep/two.txt")
    (folder / "deep" / "two.txt").write_bytes(b"changed")
    with pytest.raises(Changed):
        opened.read()
    assert store.read("data/plain/deep/two.txt") == b"changed"


def test_a_quota_refuses_before_it_is_passed_and_says_what_is_left(rig: Rig) -> None:
    store = rig.open(quotas_bytes={"jobs": 5 * PART})
    write(store, "jobs/a", BIG[: 3 * PART])
    with pytest.raises(QuotaExceeded, match=r"quota of 'jobs': 192 KiB needed, 1\d\d(\.\d)? KiB available"):
        store.write("jobs/b", BIG[: 3 * PART])
    write(store, "other/b", BIG)
    assert [entry.name for entry in store.files("jobs")] == ["jobs/a"]
    assert store.num_unsent() == 0


def test_a_tier_that_refuses_now_and_then_only_slows(rig: Rig) -> None:
    pick = random.Random(4)

    def sometimes(method: str, key: str) -> None:
        if pick.random() < 0.2:
            refuse(method, key)

    rig.tier.fault = sometimes
    store = rig.open()
    write(store, "x", BIG)
    write(store, "y", BIG, local=False)
    cold = rig.open("cold")
    assert cold.read("x") == cold.read("y") == BIG
    assert cold.fetcher.counts.num_repeats > 0


def test_answers_that_are_cut_or_garbled_are_asked_for_again(rig: Rig) -> None:
    store = rig.open()
    write(store, "x", BIG)
    bad = iter([lambda data: data[:-1], lambda data: b"\0" * len(data), lambda data: data[:100]])
    rig.tier.mangle = lambda key, data: (
        next(bad, lambda same: same)(data) if key.startswith("parts/") else data
    )
    cold = rig.open("cold")
    assert cold.read("x") == BIG
    assert cold.fetcher.counts.num_repeats == 3


def test_what_is_damaged_in_the_tier_is_never_given_out(rig: Rig) -> None:
    store = rig.open()
    write(store, "x", BIG)
    part = next(Path(rig.folder / "durable").rglob("000003"))
    damaged = bytearray(part.read_bytes())
    damaged[5] ^= 1
    part.write_bytes(damaged)
    assert store.read("x") == BIG  # this node still has it
    with pytest.raises(Damaged, match="x: part 3"):
        rig.open("cold").read("x")


def test_a_write_that_cannot_be_sent_stays_and_is_sent_later(rig: Rig) -> None:
    store = rig.open()
    rig.tier.fault = refuse
    sending = store.write("x", BIG)
    with pytest.raises(Unavailable):
        sending.result()
    store.write("small", b"1")
    with pytest.raises(Unavailable):
        store.flush()
    assert store.num_unsent() == 2
    rig.tier.fault = lambda method, key: None
    with pytest.raises(Absent):
        store.read("x")
    again = rig.open()
    assert sorted(again.resume()) == ["small", "x"]
    again.flush()
    assert again.read("x") == BIG
    assert again.read("small") == b"1"
    assert again.num_unsent() == 0


def test_a_resumed_upload_sends_only_what_is_missing(rig: Rig) -> None:
    rig.tier.buffered = False
    store = rig.open()

    def not_the_last(method: str, key: str) -> None:
        if key.endswith("000010") or key.startswith("files/"):
            refuse(method, key)

    rig.tier.fault = not_the_last
    upload = store.create("x", part_bytes=PART)
    upload.write(BIG)
    with pytest.raises(Unavailable):
        upload.close().result()
    rig.tier.fault = lambda method, key: None
    rig.tier.calls.clear()
    again = rig.open()
    again.resume()
    again.flush()
    assert [key[-6:] for method, key in rig.tier.calls if method == "put_part"] == ["000010"]
    assert again.read("x") == BIG


def test_an_older_write_that_comes_late_does_not_replace_a_newer_one(rig: Rig) -> None:
    store = rig.open()
    rig.tier.fault = refuse
    with pytest.raises(Unavailable):
        store.write("x", b"older").result()
    rig.tier.fault = lambda method, key: None
    rig.open("elsewhere").write("x", b"newer").result()
    again = rig.open()
    again.resume()
    again.flush()
    assert again.read("x") == b"newer"


def test_a_clock_that_jumps_back_loses_no_write(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from groundplane.platform.storage import store as store_module

    store = rig.open()
    store.write("x", b"first").result()
    now_ns = store_module.time.time_ns()
    monkeypatch.setattr(store_module.time, "time_ns", lambda: now_ns - 10**15)
    store.write("x", b"second").result()
    assert store.read("x") == b"second"


def test_of_two_writes_at_once_the_later_begun_stays(rig: Rig) -> None:
    store = rig.open()
    for late in (False, True):
        first = store.create("x", part_bytes=PART)
        second = store.create("x", part_bytes=PART)
        first.write(BIG)
        second.write(BIG[::-1])
        for upload in [second, first] if late else [first, second]:
            upload.close().result()
        assert store.read("x") == BIG[::-1]


def test_without_a_local_copy_the_failure_is_the_writers(rig: Rig) -> None:
    rig.tier.buffered = False
    store = rig.open()
    rig.tier.fault = refuse
    with pytest.raises(Unavailable):
        write(store, "x", BIG, local=False)
    rig.tier.fault = lambda method, key: None
    assert list(store.files()) == []


def test_an_aborted_upload_leaves_nothing(rig: Rig) -> None:
    store = rig.open()
    for local in (True, False):
        upload = store.create("x", part_bytes=PART, local=local)
        upload.write(BIG)
        upload.abort()
    assert list(store.files()) == []
    assert list(rig.tier.inner.list("parts")) == []
    assert store.num_unsent() == 0


def test_files_of_the_disk_go_in_and_out(rig: Rig, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(BIG)
    store = rig.open()
    store.put_file(source, "x").result()
    assert store.get_file("x", target) == len(BIG)
    assert target.read_bytes() == BIG
    with pytest.raises(InputError, match="cannot be read"):
        store.put_file(tmp_path / "none", "y")
    with pytest.raises(InputError, match="cannot be written"):
        store.get_file("x", tmp_path / "none" / "target")
    assert sorted(os.listdir(tmp_path)) == ["durable", "node", "source", "target"]


def test_a_manifest_with_any_flipped_bit_is_damaged() -> None:
    manifest = make_manifest(
        "a", "v" * 32, size_bytes=3, part_bytes=PART, created_ns=5, inline=True, checksums=["x"]
    )
    with pytest.raises(Damaged):
        decode("a", encode(manifest, b"abc"))  # its checksum is not the content's
    store_like = encode(
        make_manifest("a", "v" * 32, size_bytes=0, part_bytes=PART, created_ns=5, inline=False, checksums=[])
    )
    assert decode("a", store_like)[0].name == "a"
    with pytest.raises(Damaged, match="something else"):
        decode("b", store_like)
    for at in range(len(store_like) - 1):
        flipped = bytearray(store_like)
        flipped[at] ^= 4
        with pytest.raises(Damaged):
            decode("a", flipped)


@given(st.text(min_size=1, max_size=30))
def test_a_name_is_taken_as_it_is_or_refused(name: str) -> None:
    try:
        assert check_name(name) == name
    except InputError:
        return
    else:
        assert not name.startswith("/")
        assert ".." not in name.split("/")


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", ".", "a/../b", "a\n", "a\\b", "a%20", "x" * 201])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        check_name(name)


def test_a_store_is_described_by_a_file_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "store.yaml"
    file.write_text(
        "durable: s3://b/p\nendpoint: http://127.0.0.1:1\ncache: /nvme\ncache_limit: 2 TiB\n"
        "sources: {web: gs://c/d}\nquotas: {jobs: 1 GB}\npeers: ['10.0.0.2:7070']\n"
    )
    spec = load_store(str(file))
    assert (spec.cache_limit_bytes, spec.quotas_bytes, spec.sources) == (
        2**41,
        {"jobs": 10**9},
        {"web": "gs://c/d"},
    )
    monkeypatch.setenv("GROUNDPLANE_STORE_CACHE", "/here")
    assert load_store("file:///x").cache == "/here"
    for url, rule in (
        ("s4://b", "unknown kind of storage"),
        ("s3:///x", "must name a bucket"),
        ("file://host/x", "file:///folder"),
        ("s3://b/p?x=1", "query"),
    ):
        with pytest.raises(InputError, match=rule):
            load_store(url)
    for text, rule in (
        ("durable: here\n", "URL"),
        ("durable: s3://b\npeers: [x]\n", "10.0.0.1:7070"),
        ("durable: s3://b\nendpoint: b\n", "http"),
        ("durable: s3://b\ncash: /x\n", "cache"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=rule):
            load_store(str(file))


def test_peers_without_a_key_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GROUNDPLANE_STORE_PEER_KEY", raising=False)
    with pytest.raises(InputError, match="GROUNDPLANE_STORE_PEER_KEY"):
        Store(
            StoreSpec(durable=f"file://{tmp_path}", cache=str(tmp_path / "c"), peers=["127.0.0.1:1"]),
            patience=HASTY,
        )
