"""Checkpoints in a store: complete or invisible, checked, resharded, kept as long as promised."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from storage_rig import Rig, refuse

from groundplane.platform.storage.checkpoints import Lineage, StoreCheckpoints
from groundplane.platform.storage.errors import Damaged, StorageError
from groundplane.platform.storage.spec import StoreSpec
from groundplane.platform.storage.store import Store
from groundplane.spec.errors import InputError

RANK = Path(__file__).with_name("checkpoint_rank.py")


@pytest.fixture
def store(rig: Rig) -> Store:
    return rig.open()


def state(value: float) -> dict[str, object]:
    return {
        "weights": torch.full((300, 257), value),
        "step": torch.tensor(int(value)),
        "name": f"run {value}",
    }


def saved(store: Store, *steps: int, keep: int = 10, **options: object) -> StoreCheckpoints:
    checkpoints = StoreCheckpoints(store, "runs/a", attempt="1", keep=keep, **options)  # type: ignore[arg-type]
    for step in steps:
        checkpoints.save(state(step), step=step)
        checkpoints.finish()
    return checkpoints


def test_a_checkpoint_comes_back_with_its_lineage(rig: Rig, store: Store) -> None:
    checkpoints = saved(store)
    checkpoints.save(state(3), step=3, lineage=Lineage(code="abc", data_position=96, parents=("runs/b 7",)))
    assert checkpoints.finish() > 0
    into = state(0)
    found = saved(rig.open("other")).load(into)
    assert found is not None
    assert (found.step, found.lineage.code, found.lineage.data_position) == (3, "abc", 96)
    assert found.lineage.parents == ("runs/b 7",)
    assert torch.equal(into["weights"], torch.full((300, 257), 3.0))  # type: ignore[arg-type]


def test_what_is_trained_after_the_copy_is_not_in_the_checkpoint(store: Store) -> None:
    checkpoints = saved(store)
    training = state(1)
    weights = training["weights"]
    assert isinstance(weights, torch.Tensor)
    for step in (1, 2, 3):
        weights.fill_(step)
        checkpoints.save(training, step=step)
        weights.fill_(-1)
    checkpoints.finish()
    for step in (1, 2, 3):
        into = state(0)
        checkpoints.load(into, step=step)
        assert torch.equal(into["weights"], torch.full((300, 257), float(step)))  # type: ignore[arg-type]


def test_no_checkpoint_is_none(store: Store) -> None:
    assert saved(store).load(state(0)) is None


def test_the_newest_are_kept_and_pinned_ones_beyond_that(store: Store) -> None:
    checkpoints = saved(store, 1, 2, keep=2)
    store.pin("runs/a/complete/000000000001", "eval")
    saved(store, 3, 4, 5, keep=2)
    assert checkpoints.steps() == [5, 4, 1]
    assert {entry.name.split("/")[3] for entry in store.files("runs/a/data")} == {
        "000000000001-1", "000000000004-1", "000000000005-1",
    }  # fmt: skip
    into = state(0)
    checkpoints.load(into, step=1)
    assert into["step"] == 1


@pytest.mark.parametrize("harm", ["part", "file", "manifest", "metadata"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(rig: Rig, store: Store, harm: str) -> None:
    saved(store, 1, 2)
    durable = rig.folder / "durable"
    if harm == "part":
        part = next((durable / "parts/runs/a/data/000000000002-1").rglob("000000"))
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(data)
    else:
        path = {
            "file": "files/runs/a/data/000000000002-1/__0_0.distcp",
            "manifest": "files/runs/a/complete/000000000002",
            "metadata": "files/runs/a/data/000000000002-1/.metadata",
        }[harm]
        if harm == "manifest":
            (durable / path).write_bytes(b"torn")
        else:
            (durable / path).unlink()
    lines: list[str] = []
    other = saved(rig.open("other"), log=lines.append)
    into = state(0)
    found = other.load(into)
    assert found is not None
    assert found.step == 1
    assert torch.equal(into["weights"], torch.full((300, 257), 1.0))  # type: ignore[arg-type]
    assert len(lines) == 1
    assert "checkpoint 2 is passed over" in lines[0]
    with pytest.raises(Damaged):
        other.load(state(0), step=2)


def test_a_store_that_does_not_answer_is_no_reason_to_go_back(rig: Rig, store: Store) -> None:
    saved(store, 1, 2)
    other = saved(rig.open("other"))
    rig.tier.fault = lambda method, key: refuse(method, key) if key.startswith("parts/") else None
    with pytest.raises(StorageError, match="refused by the test"):
        other.load(state(0))


@pytest.mark.parametrize("where", ["parts/", "files/runs/a/data", "files/runs/a/complete"])
def test_a_save_that_fails_is_told_and_never_visible(rig: Rig, store: Store, where: str) -> None:
    checkpoints = saved(store, 1)
    rig.tier.fault = lambda method, key: (
        refuse(method, key) if method in {"put", "put_part", "replace"} and key.startswith(where) else None
    )
    checkpoints.save(state(2), step=2)
    with pytest.raises(StorageError, match="could not be written"):
        checkpoints.finish()
    rig.tier.fault = lambda method, key: None
    assert checkpoints.steps() == [1]
    checkpoints.save(state(3), step=3)
    checkpoints.finish()
    assert checkpoints.steps() == [3, 1]


def test_a_checkpoint_of_another_model_is_refused(rig: Rig, store: Store) -> None:
    saved(store, 1, identity={"model": "a"})
    with pytest.raises(InputError, match="was made with model 'a'"):
        saved(rig.open("other"), identity={"model": "b"}).load(state(0))


def gang(mode: str, world: int, spec: StoreSpec, rendezvous: Path, *more: str) -> None:
    encoded = msgspec.json.encode(spec).decode()
    env = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, RANK, mode, str(rank), str(world), encoded, rendezvous, *more], env=env
        )
        for rank in range(world)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0] * world
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.real
def test_a_sharded_checkpoint_is_loaded_by_another_number_of_ranks(tmp_path: Path) -> None:
    spec = StoreSpec(durable=f"file://{tmp_path}/durable", cache=str(tmp_path / "cache"))
    gang("save", 2, spec, tmp_path / "two")
    gang("load", 1, spec, tmp_path / "one", str(tmp_path / "two.whole"))
