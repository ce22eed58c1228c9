"""What others use a store through: fsspec, samples for training, the command."""

from __future__ import annotations

import json
import random
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner, Result
from storage_rig import PART, Rig

from groundplane.cli.store import store_command
from groundplane.platform.storage.filesystem import StoreFileSystem
from groundplane.platform.storage.samples import SampleIndex, read_samples
from groundplane.platform.storage.spec import StoreSpec
from groundplane.platform.storage.store import Store
from groundplane.spec.errors import InputError

BIG = random.Random(8).randbytes(3 * PART)


@pytest.fixture
def spec(tmp_path: Path) -> StoreSpec:
    return StoreSpec(durable=f"file://{tmp_path}/durable", cache=str(tmp_path / "cache"))


def test_a_store_is_an_fsspec_file_system(spec: StoreSpec) -> None:
    files = StoreFileSystem(spec, skip_instance_cache=True)
    with files.open("a/b.txt", "wb") as target:
        target.write(b"hello ")
        target.write(b"world")
    files.pipe_file("a/big", BIG)
    assert files.cat_file("a/b.txt") == b"hello world"
    assert files.cat_file("a/b.txt", start=-5) == b"world"
    assert files.cat_file("a/big", start=10, end=20) == BIG[10:20]
    assert files.ls("a", detail=False) == ["a/b.txt", "a/big"]
    assert files.ls("a") == [
        {"name": "a/b.txt", "size": 11, "type": "file"},
        {"name": "a/big", "size": len(BIG), "type": "file"},
    ]
    assert files.find("") == ["a/b.txt", "a/big"]
    assert files.glob("a/*.txt") == ["a/b.txt"]
    assert files.isdir("a")
    assert files.isfile("a/big")
    assert not files.exists("a/none")
    files.mv("a/b.txt", "c/d.txt")
    assert files.find("") == ["a/big", "c/d.txt"]
    files.rm("a", recursive=True)
    assert files.find("") == ["c/d.txt"]
    with pytest.raises(FileNotFoundError):
        files.open("a/big")
    with pytest.raises(FileExistsError):
        files.open("c/d.txt", "xb")
    with pytest.raises(NotImplementedError, match="'ab'"):
        files.open("c/d.txt", "ab")
    files.store.close()


def test_a_file_whose_writer_failed_is_never_there(spec: StoreSpec) -> None:
    files = StoreFileSystem(spec, skip_instance_cache=True)

    def fail() -> None:
        with files.open("x", "wb") as target:
            target.write(BIG)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    lost = files.open("y", "wb")
    lost.write(BIG)
    del lost
    assert files.find("") == []
    files.store.close()


def test_pandas_like_libraries_find_it_by_url(spec: StoreSpec) -> None:
    fsspec.register_implementation("groundplane", StoreFileSystem, clobber=True)
    with fsspec.open("groundplane://t/x.txt", "w", store=spec) as target:
        target.write("lines\n")
    with fsspec.open("groundplane://t/x.txt", "r", store=spec) as source:
        assert source.read() == "lines\n"
    fsspec.filesystem("groundplane", store=spec).store.close()
    StoreFileSystem.clear_instance_cache()


@pytest.fixture
def samples(rig: Rig, tmp_path: Path) -> tuple[Store, SampleIndex]:
    folder = tmp_path / "plain"
    folder.mkdir()
    for number in range(50):
        (folder / f"{number:03d}").write_bytes(b"%d" % number)
    store = rig.open(sources={"plain": f"file://{folder}"})
    return store, SampleIndex(store, "plain")


def test_samples_are_in_the_order_of_the_run_at_any_world_size(samples: tuple[Store, SampleIndex]) -> None:
    store, index = samples
    assert len(index) == 50
    assert [index[number].name for number in (0, 49)] == ["plain/000", "plain/049"]
    whole = dict(read_samples(store, index, seed=1, stop=120, num_readers=4))
    assert list(whole) == list(range(120))
    assert sorted(whole[position] for position in range(50)) == sorted(b"%d" % n for n in range(50))
    assert [whole[p] for p in range(50)] != [whole[p] for p in range(50, 100)]  # each epoch another order
    for world_size in (2, 3):
        split = {}
        for rank in range(world_size):
            split |= dict(read_samples(store, index, seed=1, start=rank, stop=120, stride=world_size))
        assert split == whole
    resumed = dict(read_samples(store, index, seed=1, start=77, stop=120))
    assert resumed == {position: whole[position] for position in range(77, 120)}
    assert dict(read_samples(store, index, seed=2, stop=120)) != whole


def test_an_index_is_ordered_by_name_and_wants_files(rig: Rig) -> None:
    store = rig.open()
    for name in ("s/b", "s/a/2", "s/a0", "s/a/1"):
        store.write(name, name.encode()).result()
    index = SampleIndex(store, "s")
    assert [index[number].name for number in range(4)] == ["s/a/1", "s/a/2", "s/a0", "s/b"]
    assert {data for _, data in read_samples(store, index, seed=0, stop=4)} == {
        b"s/a/1", b"s/a/2", b"s/a0", b"s/b",
    }  # fmt: skip
    with pytest.raises(InputError, match="must have files"):
        SampleIndex(store, "none")


@pytest.mark.real
def test_a_data_loader_with_workers_gives_each_position_once(samples: tuple[Store, SampleIndex]) -> None:
    from itertools import islice

    from torch.utils.data import DataLoader

    from groundplane.platform.storage.torch_dataset import SampleDataset

    store, index = samples
    whole = dict(read_samples(store, index, seed=3, stop=40))
    dataset = SampleDataset(store.spec, index, seed=3, rank=1, world_size=2)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    got = dict(islice(loader, 20))
    del loader
    assert got == {position: whole[position] for position in range(1, 40, 2)}
    assert dict(islice(iter(SampleDataset(store.spec, index, seed=3, start=7)), 3)) == {
        p: whole[p] for p in (7, 8, 9)
    }


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(store_command, list(arguments), catch_exceptions=code == 0)
    assert done.exit_code == code, done.output + str(done.exception)
    return done


def test_the_command_puts_lists_checks_and_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUNDPLANE_STORE", f"file://{tmp_path}/durable")
    monkeypatch.setenv("GROUNDPLANE_STORE_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "big").write_bytes(BIG)
    (source / "deep" / "text").write_text("hello")
    assert json.loads(run("put", str(source), "in", "--json").output) == {"files": 2, "bytes": len(BIG) + 5}
    assert run("cat", "in/deep/text").output == "hello"
    assert run("ls").output.split() == ["in/"]
    assert run("ls", "in").output.split() == ["in/deep/", "in/big"]
    lines = [json.loads(line) for line in run("ls", "-r", "-l", "--json").output.splitlines()]
    assert [(line["name"], line["bytes"]) for line in lines] == [("in/big", len(BIG)), ("in/deep/text", 5)]
    assert run("ls", "in/big").output.split() == ["in/big"]
    run("get", "in", str(tmp_path / "target"))
    assert (tmp_path / "target" / "big").read_bytes() == BIG
    run("get", "in/big", str(tmp_path / "one"))
    assert (tmp_path / "one").read_bytes() == BIG
    facts = json.loads(run("stat", "in/big", "--json").output)
    assert (facts["bytes"], facts["parts"], facts["parts_cached"]) == (len(BIG), 1, 1)
    assert json.loads(run("warm", "in", "--json").output)["files"] == 2
    assert json.loads(run("verify", "--json").output) == {"good": 2, "damaged": []}
    version = json.loads(run("pin", "in/big", "me", "--json").output)["version"]
    run("unpin", "in/big", version, "me")
    run("rm", "in/big")
    assert json.loads(run("gc", "--grace", "0s", "--dry-run", "--json").output)["num_bytes_freed"] == 0
    next((tmp_path / "durable" / "files" / "in" / "deep").glob("text")).write_bytes(b"x")
    assert json.loads(run("verify", "--json", code=1).output)["damaged"][0]["name"] == "in/deep/text"
    assert json.loads(run("stat", "--json").output)["unsent"] == 0
