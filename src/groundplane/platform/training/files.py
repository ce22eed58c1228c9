"""Files that are whole or not there: durable writes, published folders, checksums.

A thing is built under a temporary name, forced to the disk, and then renamed. Knows nothing of training.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

CHUNK_BYTES: Final = 1 << 20


def write_durable(path: Path, content: bytes, *, attempt: str) -> None:
    """Replaces one file atomically; after the return it survives a loss of power.

    Args:
        path: the file; its folder exists.
        content: all of it.
        attempt: part of the temporary name, so that two attempts never write the same file.
    """
    temporary = path.with_name(f"{path.name}.tmp.{attempt}")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_json(path: Path, value: Any, *, attempt: str) -> None:
    """As `write_durable`, for one JSON value with its keys in order of insertion."""
    write_durable(path, (json.dumps(value, indent=1) + "\n").encode(), attempt=attempt)


def sync_folder(folder: Path) -> None:
    """Forces a folder's entries (not its files' contents) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Forces every file below `folder` and every folder's entries to the disk."""
    for here, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(here, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(here))


def publish_once(built: Path, final: Path) -> None:
    """Makes a finished folder visible as `final`, or drops it where another attempt was quicker.

    Both must have been built from the same input; whoever comes first is kept.
    """
    sync_tree(built)
    try:
        os.rename(built, final)
    except OSError:
        if not final.is_dir():
            raise
        remove_tree(built)
    sync_folder(final.parent)


def publish_over(built: Path, final: Path, *, attempt: str) -> None:
    """Makes a finished folder visible as `final` in place of what may be there.

    Between the two renames nothing is visible under the name; never something half done.
    """
    sync_tree(built)
    if final.exists():
        aside = final.with_name(f"{final.name}.tmp.{attempt}.old")
        remove_tree(aside)
        os.rename(final, aside)
        os.rename(built, final)
        remove_tree(aside)
    else:
        os.rename(built, final)
    sync_folder(final.parent)


def remove_tree(folder: Path) -> None:
    """Removes a folder and what is in it; nothing happens where there is none."""
    shutil.rmtree(folder, ignore_errors=True)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
