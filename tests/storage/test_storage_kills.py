"""kill -9 of a writer at random moments: every file is one that was written whole, or not there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from s3_server import S3Server
from storage_writer import content

from groundplane.platform.storage.errors import Absent
from groundplane.platform.storage.spec import StoreSpec
from groundplane.platform.storage.store import Store
from groundplane.platform.storage.upkeep import collect, verify

WRITER = Path(__file__).with_name("storage_writer.py")


def killed_writer(spec: StoreSpec, log: Path, first: int, after_s: float) -> None:
    """Runs a writer and kills it so long after its first line."""
    process = subprocess.Popen([sys.executable, WRITER, msgspec.json.encode(spec).decode(), log, str(first)])
    try:
        before = log.stat().st_size if log.exists() else 0
        deadline_s = time.monotonic() + 60
        while not log.exists() or log.stat().st_size == before:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        time.sleep(after_s)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def generations(log: Path) -> dict[str, dict[str, int]]:
    """For each file the last generation that was begun, safe and durable."""
    last: dict[str, dict[str, int]] = {}
    for line in log.read_text().splitlines():
        state, name, generation = line.split()
        last.setdefault(name, {})[state] = int(generation)
    return last


def check(spec: StoreSpec, log: Path) -> None:
    """Reads from another node what is visible, and compares with what was promised."""
    other = msgspec.structs.replace(spec, cache=spec.cache + "-reader")
    with Store(other) as store:
        for name, seen in generations(log).items():
            promised = max(seen.get("safe", -1), seen.get("durable", -1))
            try:
                data = store.read(name)
            except Absent:
                assert promised == -1, f"{name}: generation {promised} was promised and is not there"
                continue
            possible = [g for g in range(promised, seen["begun"] + 1) if g >= 0 and g % 5 == int(name[1:])]
            assert any(data == content(name, g) for g in possible), (
                f"{name}: not one of generations {possible}"
            )
        assert all(isinstance(one, str) for one in verify(store))


def storm(spec: StoreSpec, tmp_path: Path, seed: int, num_kills: int) -> None:
    """Kills one writer after the other; between them everything visible must be whole."""
    pick = random.Random(seed)
    log = tmp_path / "log"
    for kill in range(num_kills):
        killed_writer(spec, log, 1000 * kill, pick.random() * 0.5)
        with Store(msgspec.structs.replace(spec, cache=spec.cache + "-reader")) as store:
            assert all(isinstance(one, str) for one in verify(store)), f"seed {seed}, kill {kill}"
    with Store(spec) as store:
        store.resume()
        store.flush()
        assert store.num_unsent() == 0
        check(spec, log)
        for _ in range(2):
            collect(store, grace_s=-3600)
    check(spec, log)
    assert list((Path(spec.cache) / "outgoing").iterdir()) == []


@pytest.mark.real
@pytest.mark.parametrize("seed", [1])
def test_kills_of_a_writer_to_a_folder(tmp_path: Path, seed: int) -> None:
    spec = StoreSpec(durable=f"file://{tmp_path}/durable", cache=str(tmp_path / "cache"))
    storm(spec, tmp_path, seed, int(os.environ.get("GROUNDPLANE_STORAGE_KILLS", "5")))


@pytest.mark.real
def test_kills_of_a_writer_to_a_bucket(s3: S3Server, tmp_path: Path) -> None:
    spec = StoreSpec(
        durable=f"s3://tests/{tmp_path.name}", endpoint=s3.endpoint, cache=str(tmp_path / "cache")
    )
    storm(spec, tmp_path, 2, int(os.environ.get("GROUNDPLANE_STORAGE_KILLS", "5")))
