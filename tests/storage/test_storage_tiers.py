"""One contract for every kind of durable tier, the faulty one used elsewhere included."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from storage_rig import FaultyTier

from groundplane.platform.storage.bucket import BucketTier
from groundplane.platform.storage.errors import Absent, Changed, Denied, StorageError, Unavailable
from groundplane.platform.storage.folder import FolderTier
from groundplane.platform.storage.tier import Patience, Tier, retried


@pytest.fixture(params=["folder", "faulty", pytest.param("s3", marks=pytest.mark.real)])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        return BucketTier(f"s3://tests/{tmp_path.name}", endpoint=server.endpoint)
    folder = FolderTier(str(tmp_path / "tier"))
    return FaultyTier(folder) if request.param == "faulty" else folder


def test_an_object_comes_back_whole_and_in_ranges(tier: Tier) -> None:
    tier.put("a/b", b"0123456789")
    assert bytes(tier.get("a/b")) == b"0123456789"
    assert bytes(tier.get_range("a/b", 3, 4)) == b"3456"
    assert tier.head("a/b").size_bytes == 10


def test_an_object_is_replaced_and_its_tag_changes(tier: Tier) -> None:
    tier.put("a", b"old!")
    old = tier.head("a")
    assert bytes(tier.get_range("a", 0, 4, old.etag)) == b"old!"
    tier.put("a", b"newer")
    assert bytes(tier.get("a")) == b"newer"
    assert tier.head("a").etag != old.etag
    with pytest.raises(Changed):
        tier.get_range("a", 0, 4, old.etag)


def test_a_long_range_is_of_the_content_it_was_asked_for(tier: Tier) -> None:
    content = bytes(range(256)) * 8192
    tier.put("long", content)
    etag = tier.head("long").etag
    assert bytes(tier.get_range("long", 5, 2**20, etag)) == content[5 : 5 + 2**20]
    tier.put("long", content[::-1])
    with pytest.raises(Changed):
        tier.get_range("long", 5, 2**20, etag)


def test_a_replacement_happens_only_to_what_it_was_made_for(tier: Tier) -> None:
    tier.replace("r/x", b"one", "")
    first = tier.head("r/x").etag
    with pytest.raises(Changed):
        tier.replace("r/x", b"two", "")
    tier.replace("r/x", b"three", first)
    with pytest.raises(Changed):
        tier.replace("r/x", b"four", first)
    assert bytes(tier.get("r/x")) == b"three"
    assert [one.key for one in tier.list("")] == ["r/x"]


def test_of_many_replacements_at_once_one_happens(tier: Tier) -> None:
    tier.put("r", b"start")
    etag = tier.head("r").etag
    done: list[int] = []

    def replace(number: int) -> None:
        try:
            tier.replace("r", b"%d" % number, etag)
        except (Changed, Unavailable):
            return
        done.append(number)

    threads = [threading.Thread(target=replace, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 1
    assert bytes(tier.get("r")) == b"%d" % done[0]


def test_parts_are_there_after_settle(tier: Tier) -> None:
    for number in range(3):
        tier.put_part(f"parts/x/{number}", memoryview(bytearray(b"abc")))
    tier.settle("parts/x/")
    assert [one.key for one in tier.list("parts")] == [f"parts/x/{number}" for number in range(3)]


@pytest.mark.parametrize("name", ["a b/ä ü", "(1)+=@!$&',;:", "-_.x", "a/..b"])
def test_odd_names_come_back_as_they_were(tier: Tier, name: str) -> None:
    tier.put(f"odd/{name}", b"1")
    assert [one.key for one in tier.list("odd")] == [f"odd/{name}"]
    assert bytes(tier.get(f"odd/{name}")) == b"1"


def test_listing_is_below_a_prefix_and_level_is_right_below(tier: Tier) -> None:
    for key in ("p/1", "p/q/2", "p/q/r/3", "pp/4"):
        tier.put(key, key.encode())
    assert sorted((one.key, one.size_bytes) for one in tier.list("p")) == [
        ("p/1", 3),
        ("p/q/2", 5),
        ("p/q/r/3", 7),
    ]
    level = tier.level("p")
    assert [one.key for one in level.objects] == ["p/1"]
    assert [folder.rstrip("/") for folder in level.folders] == ["p/q"]
    assert tier.level("nothing") == ([], [])
    assert list(tier.list("nothing")) == []


def test_what_is_not_there_is_absent_and_deleting_it_is_no_error(tier: Tier) -> None:
    tier.put("p/1", b"1")
    for ask in (tier.get, tier.head, lambda key: tier.get_range(key, 0, 1)):
        with pytest.raises(Absent):
            ask("p/2")
    tier.delete(["p/2", "p/1", "p/3"])
    assert list(tier.list("p")) == []


def test_a_range_beyond_the_end_is_not_taken_for_an_answer(tier: Tier) -> None:
    tier.put("short", b"123")
    with pytest.raises(StorageError):
        tier.get_range("short", 0, 10)


def test_a_replaced_object_is_old_or_new_to_every_reader(tier: Tier) -> None:
    contents = [bytes([number]) * 20_000 for number in range(10)]
    tier.put("x", contents[0])
    seen = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.add(bytes(tier.get("x")))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for content in contents:
        tier.put("x", content)
    stop.set()
    watcher.join()
    assert seen <= set(contents)


def test_a_folder_never_shows_what_a_dead_writer_left(tmp_path: Path) -> None:
    tier = FolderTier(str(tmp_path))
    tier.put("a/b", b"1")
    (tmp_path / "a" / ".groundplane-tmp-dead").write_bytes(b"half")
    assert [one.key for one in tier.list("")] == ["a/b"]
    assert tier.sweep(before_ns=0) == 0
    assert tier.sweep(before_ns=2**62) == 1
    assert not (tmp_path / "a" / ".groundplane-tmp-dead").exists()


def test_a_name_cannot_be_file_and_folder_in_a_folder(tmp_path: Path) -> None:
    tier = FolderTier(str(tmp_path))
    tier.put("a", b"1")
    with pytest.raises(Denied, match="file and a folder"):
        tier.put("a/b", b"2")


@pytest.mark.real
def test_wrong_credentials_and_a_missing_bucket_are_denied_at_once(
    s3: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = s3.endpoint  # type: ignore[attr-defined]
    with pytest.raises(Denied):
        list(BucketTier("s3://no-such-bucket/x", endpoint=endpoint).list("files"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Denied):
        BucketTier("s3://tests/x", endpoint=endpoint).get("files/a")


def test_a_server_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with pytest.raises(Unavailable):
        BucketTier("s3://tests/x", endpoint="http://127.0.0.1:9").get("a")


def test_retries_are_bounded_and_only_for_what_may_help() -> None:
    tries = []

    def fail(error: Exception) -> None:
        tries.append(1)
        raise error

    patience = Patience(num_tries=3, first_wait_s=0.0)
    with pytest.raises(Unavailable):
        retried(lambda: fail(Unavailable("x")), patience)
    assert len(tries) == 3
    with pytest.raises(Denied):
        retried(lambda: fail(Denied("x")), patience)
    assert len(tries) == 4
