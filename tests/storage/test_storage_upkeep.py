"""Garbage goes, what is referenced stays, whoever writes at the same time; checks find what is wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from storage_rig import PART, Rig, refuse

from groundplane.platform.storage.errors import Absent, Unavailable
from groundplane.platform.storage.store import Store
from groundplane.platform.storage.upkeep import Problem, collect, verify

BIG = random.Random(6).randbytes(4 * PART)
NOW = -3600.0
"""A grace that everything written so far has passed, whatever the clock's steps."""


def write(store: Store, name: str, data: bytes = BIG) -> None:
    upload = store.create(name, part_bytes=PART)
    upload.write(data)
    upload.close().result()


def parts(rig: Rig) -> list[str]:
    return [one.key for one in rig.tier.inner.list("parts")]


def test_garbage_goes_in_two_runs_and_files_stay(rig: Rig) -> None:
    store = rig.open()
    for name in ("kept", "replaced", "removed"):
        write(store, name)
    write(store, "replaced", BIG[::-1])
    store.remove("removed")
    assert collect(store, grace_s=3600).num_versions_retired == 0  # too young
    plan = collect(store, grace_s=NOW, dry_run=True)
    assert (plan.num_versions_retired, plan.num_versions_removed) == (2, 0)
    first = collect(store, grace_s=NOW)
    assert (first.num_versions_retired, first.num_versions_removed, first.num_bytes_freed) == (2, 0, 0)
    second = collect(store, grace_s=NOW)
    assert (second.num_versions_retired, second.num_versions_removed) == (0, 2)
    assert second.num_bytes_freed == 2 * len(BIG)
    assert len(parts(rig)) == 8
    fresh = rig.open("fresh")
    assert fresh.read("kept") == BIG
    assert fresh.read("replaced") == BIG[::-1]
    assert collect(store, grace_s=NOW).num_versions_removed == 0


def test_a_pinned_version_is_no_garbage_until_unpinned(rig: Rig) -> None:
    store = rig.open()
    write(store, "x")
    version = store.pin("x", "job-1")
    write(store, "x", b"new")
    for _ in range(3):
        collect(store, grace_s=NOW)
    assert rig.open("fresh").open("x", version).read() == BIG
    store.unpin("x", version, "job-1")
    for _ in range(2):
        collect(store, grace_s=NOW)
    assert parts(rig) == []


def test_a_writer_that_rested_too_long_is_told_and_begins_anew(rig: Rig) -> None:
    store = rig.open()
    rig.tier.fault = lambda method, key: refuse(method, key) if key.startswith("files/") else None
    upload = store.create("x", part_bytes=PART)
    upload.write(BIG)
    with pytest.raises(Unavailable):
        upload.close().result()
    rig.tier.fault = lambda method, key: None
    for _ in range(2):
        collect(store, grace_s=NOW)
    assert parts(rig) == []
    again = rig.open()
    assert again.resume() == ["x"]
    again.flush()
    assert rig.open("fresh").read("x") == BIG


def test_a_resumed_upload_that_was_retired_takes_another_version(rig: Rig) -> None:
    store = rig.open()
    rig.tier.fault = lambda method, key: refuse(method, key) if key.startswith("files/") else None
    upload = store.create("x", part_bytes=PART)
    upload.write(BIG)
    with pytest.raises(Unavailable):
        upload.close().result()
    rig.tier.fault = lambda method, key: None
    collect(store, grace_s=NOW)  # marks it
    again = rig.open()
    again.resume()
    again.flush()
    assert again.look_up("x").version != upload.version
    for _ in range(3):
        collect(store, grace_s=NOW)
    assert rig.open("fresh").read("x") == BIG


@pytest.mark.parametrize("step", range(12))
def test_a_collection_at_any_moment_of_a_publication_loses_no_acknowledged_file(rig: Rig, step: int) -> None:
    """The collector runs to its end between any two operations of a writer that was retired meanwhile."""
    store, collector = rig.open(), rig.open("collector")
    count = 0

    def interleave(method: str, key: str) -> None:
        nonlocal count
        count += 1
        if count == step:
            rig.tier.fault = lambda method, key: None
            for _ in range(2):
                collect(collector, grace_s=NOW)

    rig.tier.fault = interleave
    upload = store.create("x", part_bytes=PART)
    upload.write(BIG)
    try:
        upload.close().result()
    except Unavailable:
        with pytest.raises(Absent):
            rig.open("fresh").read("x")
        again = rig.open()
        again.resume()
        again.flush()
    for _ in range(2):
        collect(collector, grace_s=NOW)
    assert rig.open("fresh").read("x") == BIG


def test_a_damaged_manifest_protects_its_parts(rig: Rig) -> None:
    store = rig.open()
    write(store, "x")
    manifest = Path(rig.folder / "durable" / "files" / "x")
    manifest.write_bytes(b"{}\n")
    for _ in range(3):
        collect(store, grace_s=NOW)
    assert len(parts(rig)) == 4


def test_verify_finds_what_is_wrong_in_the_tier_itself(rig: Rig) -> None:
    store = rig.open()
    for name in ("good", "flipped", "short", "missing", "manifest"):
        write(store, f"v/{name}")
    store.write("v/small", b"1").result()
    durable = rig.folder / "durable"
    flipped = next((durable / "parts/v/flipped").rglob("000002"))
    data = bytearray(flipped.read_bytes())
    data[0] ^= 1
    flipped.write_bytes(data)
    next((durable / "parts/v/short").rglob("000001")).write_bytes(b"1")
    next((durable / "parts/v/missing").rglob("000000")).unlink()
    (durable / "files/v/manifest").write_bytes(b"x")
    found = list(verify(store, "v"))
    assert sorted(one for one in found if isinstance(one, str)) == ["v/good", "v/small"]
    assert {one.name: one.what for one in found if isinstance(one, Problem)} == {
        "v/flipped": "part 2 has another checksum than its manifest says",
        "v/short": "part 1 has 1 bytes instead of 65536",
        "v/missing": "part 0 is missing",
        "v/manifest": "v/manifest: its manifest cannot be read",
    }
    quick = [one.name for one in verify(store, "v", deep=False) if isinstance(one, Problem)]
    assert sorted(quick) == ["v/manifest", "v/missing", "v/short"]
    assert list(verify(store, "v/good")) == ["v/good"]
