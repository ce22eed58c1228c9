"""Models are stored once by content, versions never change, and a name finds its newest."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundplane.platform.runtime.database import Database
from groundplane.platform.serving import registry
from groundplane.platform.serving.registry import Lineage
from groundplane.spec.errors import InputError


def gguf(content: bytes = b"", architecture: str = "llama") -> bytes:
    key, value = b"general.architecture", architecture.encode()
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair + content


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path / 'test.db'}", migrate=True)
    yield made
    made.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


def test_register_and_find(state: Path, database: Database, tmp_path: Path) -> None:
    file = tmp_path / "some.gguf"
    file.write_bytes(gguf(b"one"))
    first = registry.register(state, database, "m", file, 5, Lineage("job-1", 40, "data-1"))
    assert (first.name, first.version, first.architecture, first.job_id) == ("m", 1, "llama", "job-1")
    assert (first.checkpoint_step, first.data_id, first.created_ns) == (40, "data-1", 5)
    assert registry.register(state, database, "m", file, 9) == first, "the same content is the same version"
    file.unlink()
    file.write_bytes(gguf(b"two"))
    second = registry.register(state, database, "m", file, 6)
    assert second.version == 2
    assert registry.find(database, "m") == second
    assert registry.find(database, "m:1") == first
    assert registry.model_path(state, database, "m:1").read_bytes() == gguf(b"one")
    assert registry.model_path(state, database, "m").read_bytes() == gguf(b"two")
    other = registry.register(state, database, "other", file, 7)
    assert (other.version, other.path) == (1, second.path), "stored once"
    assert [f"{one.name}:{one.version}" for one in registry.list_versions(database)] == [
        "m:2",
        "m:1",
        "other:1",
    ]


def test_folder_keeps_what_is_beside_the_model(state: Path, database: Database, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.gguf").write_bytes(gguf())
    (folder / "config.json").write_text("{}")
    (folder / "deep" / "more").write_text("x")
    version = registry.register(state, database, "m", folder, 1)
    stored = state / version.path
    assert (stored / "config.json").read_text() == "{}"
    assert (stored / "deep" / "more").read_text() == "x"
    assert (stored / "model.gguf").stat().st_ino == (folder / "model.gguf").stat().st_ino, (
        "linked, not copied"
    )
    assert [path.name for path in (state / "models").iterdir()] == [version.sha256]


def test_bad_input(state: Path, database: Database, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no model")
    with pytest.raises(InputError, match="must be a GGUF file"):
        registry.register(state, database, "m", text, 1)
    with pytest.raises(InputError, match=r"model\.gguf"):
        registry.register(state, database, "m", tmp_path, 1)
    with pytest.raises(InputError, match="lower-case"):
        registry.register(state, database, "M!", text, 1)
    good = tmp_path / "good.gguf"
    good.write_bytes(gguf())
    registry.register(state, database, "tiny-model", good, 1)
    with pytest.raises(InputError, match="did you mean 'tiny-model'"):
        registry.model_path(state, database, "tiny-modle")
    with pytest.raises(InputError, match="did you mean 'tiny-model:1'"):
        registry.find(database, "tiny-model:2")
    with pytest.raises(InputError, match="has no version yet"):
        registry.find(database, next(iter(registry.PACKAGED)))
    with pytest.raises(InputError, match="unknown packaged model"):
        registry.register_packaged(state, database, "nothing", 1)
    (state / registry.find(database, "tiny-model").path / "model.gguf").unlink()
    with pytest.raises(InputError, match="missing or damaged"):
        registry.model_path(state, database, "tiny-model")
    assert not list((state / "models").glob(".*")), "nothing half done"


def test_a_file_is_a_model_too(state: Path, database: Database, tmp_path: Path) -> None:
    file = tmp_path / "plain.gguf"
    file.write_bytes(gguf(architecture="qwen2"))
    assert registry.model_path(state, database, str(file)) == file
    assert registry.gguf_architecture(file) == "qwen2"
    file.write_bytes(gguf()[:40])
    assert registry.gguf_architecture(file) == ""


def test_packaged_model_is_registered_when_asked_for(state: Path, database: Database) -> None:
    path = registry.model_path(state, database, "smollm2-135m-instruct")
    (version,) = registry.list_versions(database)
    assert (version.name, version.version, version.architecture) == ("smollm2-135m-instruct", 1, "llama")
    assert path.stat().st_size == version.size_bytes == 98_362_432
