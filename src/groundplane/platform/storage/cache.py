"""Parts kept near: on the local disk, or on a shared file system for all nodes.

A part is one file, `parts/ab/VERSION.NUMBER` (see `part_file`). It is written beside and renamed, so it is
whole or not there, and checked whenever it is read. All processes of a node share one folder. No method
raises for what the disk does: a cache that is full, slow or broken answers "not here", and is left alone for
a while after a failure. Knows nothing of names or tiers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import time
import uuid
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from groundplane.platform.storage.part_file import PartFile, header_bytes, write_part

if TYPE_CHECKING:
    from typing_extensions import Buffer

ANNOUNCED_BYTES: Final = 2**20
"""What the kernel is told to read of a part that is wanted soon: its begin. The rest is quicker left to the
kernel's own read-ahead, which uses larger pages."""
EVICT_TO: Final = 0.9
"""Share of the limit that is left after an eviction: room for many parts, so that scans are rare."""
OFF_AFTER_FAILURE_S: Final = 10.0
"""How long a cache is left alone after its disk failed."""
TOUCH_AFTER_S: Final = 60.0
"""A part that is read counts as used now, at most so often."""
_USAGE: Final = struct.Struct("<q")
_NUM_SHARDS: Final = 256


@dataclass
class CacheCounts:
    """What a cache did in this process."""

    num_hits: int = 0
    num_misses: int = 0
    num_added: int = 0
    num_evicted: int = 0
    num_damaged: int = 0
    num_failures: int = 0
    last_failure: str = ""


class PartCache:
    """Args:
    folder: of this cache; made when first needed.
    limit_bytes: what it may hold; the least recently used parts go first. 0 keeps nothing.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.counts = CacheCounts()
        self._off_until_s = 0.0
        self._made = False

    @property
    def usable(self) -> bool:
        """False while it is left alone after a failure."""
        return self.limit_bytes > 0 and time.monotonic() >= self._off_until_s

    def path(self, version: str, number: int) -> Path:
        """Where a part lies."""
        return self.folder / "parts" / version[:2] / f"{version}.{number:06d}"

    def holds(self, version: str, number: int) -> bool:
        """Whether a part is here; it may be gone, or turn out damaged, a moment later."""
        return self.usable and self.path(version, number).exists()

    def open(self, version: str, number: int, length: int, expected: str = "") -> PartFile | None:
        """A part's file for reading block by block; None where it is not here.

        Args:
            version: of the file.
            number: of the part.
            length: of the part.
            expected: checksum of the part in hexadecimal, where it is known.
        """
        if not self.usable:
            return None
        path = self.path(version, number)
        try:
            part = PartFile(path)
        except FileNotFoundError:
            self.counts.num_misses += 1
            return None
        except ValueError:
            self.damaged(version, number)
            return None
        except OSError as error:
            self.failed(error)
            return None
        if part.length != length or (expected and part.digest.hex() != expected):
            part.close()
            self.damaged(version, number)
            return None
        self.counts.num_hits += 1
        if time.time() - part.used_s > TOUCH_AFTER_S:
            with suppress(OSError):
                part.touch()
        return part

    def read(self, version: str, number: int, into: memoryview, expected: str = "") -> bool:
        """Fills `into` with a part, whose length it has; False where it is not here.

        Args:
            version: of the file.
            number: of the part.
            into: filled also when the answer is False, with nothing of use.
            expected: as for `open`.
        """
        part = self.open(version, number, into.nbytes, expected)
        if part is None:
            return False
        try:
            whole = part.read(into)
        except OSError as error:
            self.failed(error)
            return False
        finally:
            part.close()
        if not whole:
            self.damaged(version, number)
        return whole

    def damaged(self, version: str, number: int) -> None:
        """Drops a part that turned out not to be what it was."""
        self.counts.num_damaged += 1
        self._drop(self.path(version, number))

    def announce(self, version: str, number: int) -> bool:
        """Has the kernel begin to read a part; waits for nothing; False where it is not here."""
        if not self.usable:
            return False
        try:
            descriptor = os.open(self.path(version, number), os.O_RDONLY)
        except OSError:
            return False
        try:
            os.posix_fadvise(descriptor, 0, ANNOUNCED_BYTES, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)
        return True

    def add(self, version: str, number: int, data: Buffer) -> bool:
        """Keeps a part; False where there was no room or the disk failed.

        Args:
            version: of the file.
            number: of the part.
            data: the part.
        """
        view = memoryview(data).cast("B")
        size = view.nbytes + header_bytes(view.nbytes)
        if not self.usable or not self._make_room(size):
            return False
        path = self.path(version, number)
        temporary = self.folder / "adding" / uuid.uuid4().hex
        try:
            self._make()
            write_part(temporary, view, soon=False)
            self._place(temporary, path, size)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            self.failed(error)
            return False
        self.counts.num_added += 1
        return True

    def adopt(self, staged: Path, version: str, number: int) -> None:
        """Takes over a file that `write_part` wrote on the same file system; it is gone afterwards."""
        try:
            size = staged.stat().st_size
            if self.usable and self._make_room(size):
                self._make()
                self._place(staged, self.path(version, number), size)
                self.counts.num_added += 1
                return
        except OSError as error:
            self.failed(error)
        with suppress(OSError):
            staged.unlink(missing_ok=True)

    def failed(self, error: OSError) -> None:
        """Counts a failure, frees a tenth of a full disk, and leaves the disk alone for a while."""
        self.counts.num_failures += 1
        self.counts.last_failure = f"{self.folder}: {error.strerror or error}"
        self._made = False
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            with suppress(OSError), self._evicting() as alone:
                if alone:
                    self.evict(int(self.used_bytes() * EVICT_TO))
        self._off_until_s = time.monotonic() + OFF_AFTER_FAILURE_S

    def pin(self, version: str) -> None:
        """Keeps the parts of a version here, whatever else is read.

        Raises:
            OSError: the mark cannot be written.
        """
        self._make()
        (self.folder / "pins" / version).touch()

    def unpin(self, version: str) -> None:
        """Takes the mark away."""
        (self.folder / "pins" / version).unlink(missing_ok=True)

    def used_bytes(self) -> int:
        """What the cache holds, all processes together; 0 where it cannot be told."""
        try:
            with self._usage() as file:
                return _USAGE.unpack(os.pread(file, _USAGE.size, 0))[0]  # type: ignore[no-any-return]
        except OSError:
            return 0

    def evict(self, target_bytes: int) -> int:
        """Removes the least recently used parts until at most so many bytes are held; returns what is held.

        Parts of pinned versions stay. Costs about 50 bytes of memory a part while it runs.

        Raises:
            OSError: the folder cannot be read.
        """
        self._make()
        pinned = set(os.listdir(self.folder / "pins"))
        used, sizes = array("q"), array("q")
        total = kept = 0
        for name, _, found in self._entries():
            size = found.st_size
            total += size
            if name.partition(".")[0] in pinned:
                kept += size
                continue
            used.append(found.st_mtime_ns)
            sizes.append(size)
        excess = total - max(target_bytes, kept)
        if excess > 0:
            newest_ns = _cut(used, sizes, excess)
            for name, path, found in self._entries():
                if excess <= 0:
                    break
                if found.st_mtime_ns <= newest_ns and name.partition(".")[0] not in pinned:
                    Path(path).unlink(missing_ok=True)
                    self.counts.num_evicted += 1
                    total -= found.st_size
                    excess -= found.st_size
        with self._usage() as file:
            os.pwrite(file, _USAGE.pack(total), 0)
        return total

    def forget(self, version: str) -> None:
        """Removes a version's parts; used when the file is gone."""
        shard = self.folder / "parts" / version[:2]
        with suppress(OSError):
            for path in shard.glob(f"{version}.*"):
                self._drop(path)

    def _entries(self) -> Iterator[tuple[str, str, os.stat_result]]:
        for shard in range(_NUM_SHARDS):
            try:
                with os.scandir(self.folder / "parts" / f"{shard:02x}") as entries:
                    for entry in entries:
                        with suppress(FileNotFoundError):
                            yield entry.name, entry.path, entry.stat()
            except FileNotFoundError:
                continue

    def _make_room(self, size: int) -> bool:
        """Whether so many bytes more may be kept, after an eviction where one is due."""
        if size > self.limit_bytes:
            return False
        try:
            if self.used_bytes() + size <= self.limit_bytes:
                return True
            with self._evicting() as alone:
                if not alone:
                    return False
                target = min(int(self.limit_bytes * EVICT_TO), self.limit_bytes - size)
                return self.evict(target) + size <= self.limit_bytes
        except OSError as error:
            self.failed(error)
            return False

    def _place(self, staged: Path, path: Path, size: int) -> None:
        path.parent.mkdir(exist_ok=True)
        before = path.stat().st_size if path.exists() else 0
        os.replace(staged, path)
        self._account(size - before)

    def _drop(self, path: Path) -> None:
        with suppress(OSError):
            size = path.stat().st_size
            path.unlink()
            self._account(-size)

    def _account(self, change: int) -> None:
        with self._usage() as file:
            held = _USAGE.unpack(os.pread(file, _USAGE.size, 0))[0]
            os.pwrite(file, _USAGE.pack(max(0, held + change)), 0)

    @contextmanager
    def _usage(self) -> Iterator[int]:
        """The counter's file, locked against the other processes; counted anew where it was lost."""
        self._make()
        file = os.open(self.folder / "used", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_size != _USAGE.size:
                total = sum(found.st_size for _, _, found in self._entries())
                os.pwrite(file, _USAGE.pack(total), 0)
            yield file
        finally:
            os.close(file)

    @contextmanager
    def _evicting(self) -> Iterator[bool]:
        """Whether this process is the one that evicts now."""
        self._make()
        file = os.open(self.folder / "evicting", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(file)

    def _make(self) -> None:
        if not self._made:
            for name in ("parts", "pins", "adding"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            self._made = True


def remove_remains(folder: Path, before_ns: int) -> None:
    """Removes what writers that died left in a cache's `adding` folder before a time."""
    with suppress(OSError), os.scandir(folder / "adding") as entries:
        for entry in entries:
            if entry.stat().st_mtime_ns < before_ns:
                with suppress(OSError):
                    os.unlink(entry.path)


def disk_free_bytes(folder: Path) -> int:
    """Free space where a folder is, or will be."""
    here = folder
    while not here.exists() and here != here.parent:
        here = here.parent
    return shutil.disk_usage(here).free


def _cut(used_ns: array[int], sizes: array[int], excess: int) -> int:
    """The time up to which parts must go so that `excess` bytes become free."""
    order = sorted(range(len(used_ns)), key=used_ns.__getitem__)
    newest_ns = -1
    for index in order:
        if excess <= 0:
            break
        newest_ns = used_ns[index]
        excess -= sizes[index]
    return newest_ns
