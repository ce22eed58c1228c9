"""The local folder of one upload: its lock, its parts, and the seal that makes it survive a kill.

outgoing/VERSION/lock          held by the process that works on this upload
outgoing/VERSION/000000 ...    parts, as the cache keeps them
outgoing/VERSION/manifest      written last: from here on the upload is taken up again after a kill
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from groundplane.platform.storage.errors import Damaged
from groundplane.platform.storage.manifest import Manifest, decode, encode
from groundplane.platform.storage.part_file import PartFile, sync_part
from groundplane.platform.training.files import sync_folder, write_durable

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from groundplane.platform.storage.cache import PartCache


def make_folder(folder: Path) -> int | None:
    """Makes the folder of an upload and holds its lock; None where the local disk does not let it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return take(folder)
    except OSError:
        return None


def take(folder: Path) -> int | None:
    """The lock of an upload's folder; None where another process holds it or it is gone."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def seal(folder: Path, manifest: Manifest, content: bytes) -> bool:
    """Writes the manifest; False where the disk does not take it."""
    try:
        write_durable(folder / "manifest", encode(manifest, content), attempt="seal")
        sync_folder(folder.parent)
    except OSError:
        return False
    return True


def sealed(folder: Path) -> tuple[Manifest | None, bytes]:
    try:
        stored = (folder / "manifest").read_bytes()
        name = _name_in(stored)
        return decode(name, stored)
    except (OSError, Damaged):
        return None, b""


def staged_part(folder: Path, number: int) -> Buffer:
    """A part from the local disk.

    Raises:
        Damaged: it is not what was written.
    """
    try:
        with PartFile(folder / f"{number:06d}") as part:
            content = memoryview(bytearray(part.length))
            if part.read(content):
                return content
    except OSError as error:
        raise Damaged(f"{folder.name}: part {number} cannot be read back: {error.strerror}") from None
    except ValueError:
        pass
    raise Damaged(f"{folder.name}: part {number} is damaged on the local disk")


def synced(path: Path) -> bool:
    """Forces a part to the local disk; False where the disk fails."""
    try:
        sync_part(path)
    except OSError:
        return False
    return True


def settle(folder: Path, manifest: Manifest, cache: PartCache) -> None:
    """The manifest's mark goes first: from then on the folder is only waste."""
    with suppress(OSError):
        (folder / "manifest").unlink(missing_ok=True)
        for number in range(0 if manifest.inline else manifest.num_parts):
            staged = folder / f"{number:06d}"
            if staged.exists():
                cache.adopt(staged, manifest.version, number)
    shutil.rmtree(folder, ignore_errors=True)


def _name_in(stored: bytes) -> str:
    try:
        return str(msgspec.json.decode(stored.partition(b"\n")[0], type=Manifest).name)
    except msgspec.MsgspecError:
        raise Damaged("a sealed upload's manifest cannot be read") from None
