"""A folder, usually on a shared file system, as durable tier.

Keys are paths. An object is written under a temporary name in its own folder, forced to the disk and renamed;
names that begin with the temporary mark are never shown.
"""

from __future__ import annotations

import fcntl
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from groundplane.platform.storage.errors import Absent, Changed, Denied, Unavailable
from groundplane.platform.storage.part_file import begin_writeback
from groundplane.platform.storage.tier import Level, ObjectInfo
from groundplane.platform.training.files import sync_folder

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TEMPORARY: Final = ".groundplane-tmp-"
_LOCKS: Final = ".groundplane-locks"
_NUM_LOCKS: Final = 64


class FolderTier:
    """Args:
    root: the folder; made by the first write.
    """

    buffered = True

    def __init__(self, root: str) -> None:
        self.url = f"file://{root}"
        self._root = root

    def get(self, key: str) -> Buffer:
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                return file.read()
        except OSError as error:
            raise self._named(error, key) from None

    def get_range(self, key: str, start: int, length: int, etag: str = "") -> Buffer:
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY)
            try:
                if etag and _etag(os.fstat(descriptor)) != etag:
                    raise Changed(f"{self._path(key)}: it was replaced meanwhile")
                data = bytearray(length)
                view = memoryview(data)
                done = 0
                while done < length:
                    got = os.preadv(descriptor, [view[done:]], start + done)
                    if got == 0:
                        raise Unavailable(f"{self._path(key)}: {done} bytes came instead of {length}")
                    done += got
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._named(error, key) from None
        return data

    def put(self, key: str, data: Buffer) -> None:
        self._write(key, data, sync=True)

    def replace(self, key: str, data: Buffer, etag: str) -> None:
        with self._locked(key):
            try:
                now = _etag(os.stat(self._path(key)))
            except (FileNotFoundError, NotADirectoryError):
                now = ""
            if now != etag:
                raise Changed(f"{self._path(key)}: it was replaced meanwhile")
            self._write(key, data, sync=True)

    def put_part(self, key: str, data: Buffer) -> None:
        self._write(key, data, sync=False)

    def settle(self, prefix: str) -> None:
        folder = self._path(prefix.rstrip("/"))
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    descriptor = os.open(entry.path, os.O_RDONLY)
                    try:
                        os.fsync(descriptor)
                    finally:
                        os.close(descriptor)
            while folder.startswith(self._root):
                sync_folder(Path(folder))
                folder = os.path.dirname(folder)
        except OSError as error:
            raise self._named(error, prefix) from None

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Keeps other processes, on whatever node, from `replace` of the same key."""
        number = zlib.crc32(key.encode()) % _NUM_LOCKS
        try:
            os.makedirs(self._path(_LOCKS), exist_ok=True)
            lock = os.open(self._path(f"{_LOCKS}/{number:02x}"), os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            finally:
                os.close(lock)
        except OSError as error:
            raise self._named(error, key) from None

    def _write(self, key: str, data: Buffer, *, sync: bool) -> None:
        path = self._path(key)
        folder = os.path.dirname(path)
        temporary = os.path.join(folder, _TEMPORARY + uuid.uuid4().hex)
        try:
            os.makedirs(folder, exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                view = memoryview(data).cast("B")
                while view:
                    view = view[os.write(descriptor, view) :]
                if sync:
                    os.fsync(descriptor)
                else:
                    begin_writeback(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
            if sync:
                sync_folder(Path(folder))
        except OSError as error:
            _forget(temporary)
            if isinstance(error, FileNotFoundError):  # another process pruned the folder just now
                raise Unavailable(f"{path}: its folder was removed meanwhile") from None
            if isinstance(error, NotADirectoryError | IsADirectoryError | FileExistsError):
                raise Denied(f"{path}: a name cannot be a file and a folder at once") from None
            raise self._named(error, key) from None

    def head(self, key: str) -> ObjectInfo:
        try:
            found = os.stat(self._path(key))
        except OSError as error:
            raise self._named(error, key) from None
        if not os.path.isfile(self._path(key)):
            raise Absent(f"{self._path(key)}: no such object")
        return ObjectInfo(key, found.st_size, _etag(found), found.st_mtime_ns)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        waiting = [prefix.rstrip("/")]
        while waiting:
            level = self.level(waiting.pop())
            yield from level.objects
            waiting.extend(reversed(level.folders))

    def level(self, prefix: str) -> Level:
        bare = prefix.rstrip("/")
        start = f"{bare}/" if bare else ""
        objects, folders = [], []
        try:
            with os.scandir(self._path(bare) if bare else self._root) as entries:
                for entry in sorted(entries, key=lambda one: one.name):
                    if entry.name.startswith((_TEMPORARY, _LOCKS)):
                        continue
                    if entry.is_dir():
                        folders.append(start + entry.name)
                        continue
                    try:
                        found = entry.stat()
                    except FileNotFoundError:
                        continue
                    key = start + entry.name
                    objects.append(ObjectInfo(key, found.st_size, _etag(found), found.st_mtime_ns))
        except (FileNotFoundError, NotADirectoryError):
            return Level([], [])
        except OSError as error:
            raise self._named(error, prefix) from None
        return Level(objects, folders)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise self._named(error, key) from None
            self._prune(os.path.dirname(path))

    def sweep(self, before_ns: int) -> int:
        num_removed = 0
        for here, _, names in os.walk(self._root):
            for name in names:
                path = os.path.join(here, name)
                try:
                    if name.startswith(_TEMPORARY) and os.stat(path).st_mtime_ns < before_ns:
                        os.unlink(path)
                        num_removed += 1
                except FileNotFoundError:
                    continue
        return num_removed

    def _prune(self, folder: str) -> None:
        """Removes folders that became empty: in a bucket they would not be there either."""
        while folder != self._root and folder.startswith(self._root):
            try:
                os.rmdir(folder)
            except OSError:
                return
            folder = os.path.dirname(folder)

    def _path(self, key: str) -> str:
        return os.path.join(self._root, key)

    def _named(self, error: OSError, key: str) -> Absent | Denied | Unavailable:
        text = f"{self._path(key)}: {error.strerror or error}"
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            return Absent(f"{self._path(key)}: no such object")
        if isinstance(error, PermissionError):
            return Denied(text)
        return Unavailable(text)


def _etag(found: os.stat_result) -> str:
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
