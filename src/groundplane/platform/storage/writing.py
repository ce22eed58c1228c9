"""Writing a file: to the local disk, from there to the durable tier, and visible when all is there.

    outgoing/VERSION/lock          held by the process that works on this upload
    outgoing/VERSION/000000 ...    parts, as the cache keeps them
    outgoing/VERSION/manifest      written last: from here on the upload survives a kill and is taken up again

Parts are sent while later ones are still being written. A part that the local disk does not take is sent from
memory at once, and the writer waits for it: slower, not lost. When everything is durable the parts move to
the cache. Of an upload that is taken up again, only parts that are not in the tier are sent.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import xxhash

from groundplane.platform.storage.cache import PartCache
from groundplane.platform.storage.errors import Absent, Damaged, StorageError, Unavailable
from groundplane.platform.storage.manifest import (
    INLINE_BYTES,
    OPEN,
    RETIRED,
    Manifest,
    decode,
    encode,
    file_key,
    make_manifest,
    part_key,
    version_prefix,
)
from groundplane.platform.storage.part_file import PartFile, sync_part, write_part
from groundplane.platform.storage.tier import Patience, Tier, retried
from groundplane.platform.training.files import sync_folder, write_durable
from groundplane.spec.errors import InvariantError

if TYPE_CHECKING:
    from typing_extensions import Buffer

NUM_SENDERS: Final = 4
"""Parts of one process on their way at a time."""
NUM_SYNCERS: Final = 2
MAX_UNSENT: Final = 6
"""Parts that may wait in memory for the tier, where there is no local copy."""
_OUTGOING: Final = "outgoing"


class Collected(Unavailable):
    """The parts of an upload were collected as garbage, because it rested too long."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: the upload rested so long that its parts were removed")


class Sender:
    """Sends parts and manifests to the durable tier for one process.

    Args:
        tier: the durable one.
        cache: this node's, whose folder also holds what is on its way.
        patience: with the tier.
    """

    def __init__(self, tier: Tier, cache: PartCache, patience: Patience) -> None:
        self.tier = tier
        self.cache = cache
        self.patience = patience
        self.outgoing = cache.folder / _OUTGOING
        self.syncers = ThreadPoolExecutor(NUM_SYNCERS, thread_name_prefix="store-sync")
        self.senders = ThreadPoolExecutor(NUM_SENDERS, thread_name_prefix="store-send")
        self.finishers = ThreadPoolExecutor(NUM_SENDERS, thread_name_prefix="store-finish")

    def put(self, key: str, data: Buffer) -> None:
        """Puts one object, with patience.

        Raises:
            StorageError: the tier failed for good.
        """
        retried(lambda: self.tier.put(key, data), self.patience)

    def put_part(self, key: str, data: Buffer) -> None:
        """Puts one part, with patience.

        Raises:
            StorageError: the tier failed for good.
        """
        retried(lambda: self.tier.put_part(key, data), self.patience)

    def begin(self, name: str, version: str) -> None:
        """Marks that a version's parts are about to come."""
        self.put(version_prefix(name, version) + OPEN, b"")

    def publish(self, manifest: Manifest, content: bytes = b"") -> None:
        """Makes a version visible whose parts are all there.

        Raises:
            Collected: the upload must begin anew under another version.
        """
        if not manifest.inline:
            prefix = version_prefix(manifest.name, manifest.version)
            try:
                retried(lambda: self.tier.settle(prefix), self.patience)
            except Absent:
                raise Collected(manifest.name) from None
        self.put(file_key(manifest.name), encode(manifest, content))
        if manifest.inline:
            return
        mark = version_prefix(manifest.name, manifest.version) + OPEN
        try:
            retried(lambda: self.tier.head(mark), self.patience)
        except Absent:
            self._withdraw(manifest)
            raise Collected(manifest.name) from None
        # Parts of a manifest need no mark; one that stays is removed with them.
        with suppress(StorageError):
            self.tier.delete([mark])

    def close(self) -> None:
        """Ends the threads, after what they do now."""
        for pool in (self.syncers, self.senders, self.finishers):
            pool.shutdown()

    def _withdraw(self, manifest: Manifest) -> None:
        with suppress(StorageError):
            current, _ = decode(manifest.name, self.tier.get(file_key(manifest.name)))
            if current.version == manifest.version:
                self.tier.delete([file_key(manifest.name)])


class Upload:
    """One file being written: `write` as often as wanted, then `close`. By one thread.

    Args:
        sender: of the store.
        name: of the file.
        version: its new id.
        created_ns: time of writing.
        part_bytes: size of a part.
        local: False skips the local copy: parts go from memory straight to the tier.
        allow: called with the bytes about to be added; raises what refuses them.
    """

    def __init__(
        self,
        sender: Sender,
        name: str,
        version: str,
        *,
        created_ns: int,
        part_bytes: int,
        local: bool,
        allow: Callable[[int], None],
    ) -> None:
        self.name = name
        self.version = version
        self._sender = sender
        self._created_ns = created_ns
        self._part_bytes = part_bytes
        self._allow = allow
        self._folder = sender.outgoing / version
        self._lock = _make_folder(self._folder) if local else None
        self._pending: memoryview | None = None
        self._filled = 0
        self._checksums: list[str] = []
        self._size_bytes = 0
        self._synced: list[Future[bool]] = []
        self._unstaged = False
        self._sent: list[Future[None]] = []
        self._opened: Future[None] | None = None
        self._room = threading.BoundedSemaphore(MAX_UNSENT)
        self._ended = False

    def write(self, data: Buffer) -> int:
        """Adds bytes; they are copied or written before it returns. Quickest in multiples of the part size.

        Raises:
            StorageError: a quota is reached, or the tier failed while there is no local copy.
        """
        view = memoryview(data).cast("B")
        self._allow(view.nbytes)
        total = view.nbytes
        while view:
            if not self._filled and view.nbytes >= self._part_bytes:
                self._add_part(view[: self._part_bytes])
                view = view[self._part_bytes :]
                continue
            if self._pending is None:
                self._pending = memoryview(bytearray(self._part_bytes))
            taken = min(self._part_bytes - self._filled, view.nbytes)
            self._pending[self._filled : self._filled + taken] = view[:taken]
            self._filled += taken
            view = view[taken:]
            if self._filled == self._part_bytes:
                self._add_part(self._pending)
                self._filled = 0
        return total

    def close(self) -> Future[None]:
        """Ends writing; returns once the file is safe on the local disk, with what tells when it is durable.

        Where the local disk did not take it, returns once it is durable.

        Raises:
            StorageError: it could not be made durable, and no local copy is left to try again from.
        """
        self._end()
        left = memoryview(b"") if self._pending is None else self._pending[: self._filled]
        size_bytes = self._size_bytes + left.nbytes
        inline = size_bytes <= INLINE_BYTES and not self._checksums
        content = bytes(left) if inline else b""
        if inline and content:
            self._checksums.append(xxhash.xxh3_128_hexdigest(content))
        elif left:
            self._add_part(left)
        manifest = make_manifest(
            self.name,
            self.version,
            size_bytes=size_bytes,
            part_bytes=self._part_bytes,
            created_ns=self._created_ns,
            inline=inline,
            checksums=self._checksums,
        )
        staged = [future.result() for future in self._synced]
        whole = self._lock is not None and not self._unstaged and all(staged)
        safe = whole and _seal(self._folder, manifest, content)
        sending = self._sender.finishers.submit(self._finish, manifest, content)
        if not safe:
            sending.result()
        return sending

    def abort(self) -> None:
        """Drops the file; nothing of it was ever visible."""
        if not self._ended:
            self._end()
            begun: list[Future[Any]] = [*self._synced, *self._sent]
            if self._opened is not None:
                begun.append(self._opened)
            for one in begun:
                if not one.cancel():
                    one.exception()
            self._clean()
            with suppress(StorageError):
                prefix = version_prefix(self.name, self.version)
                self._sender.tier.delete([one.key for one in self._sender.tier.list(prefix.rstrip("/"))])

    def _end(self) -> None:
        if self._ended:
            raise InvariantError(f"{self.name}: an upload was ended twice")
        self._ended = True

    def _add_part(self, data: memoryview) -> None:
        """Puts one part on its way; `data` is the caller's again when this returns."""
        number = len(self._checksums)
        if self._opened is None:
            self._opened = self._sender.senders.submit(self._sender.begin, self.name, self.version)
        digest = self._stage(number, data)
        if digest is None:
            digest = xxhash.xxh3_128_digest(data)
            self._send_unstaged(number, data)
        self._checksums.append(digest.hex())
        self._size_bytes += data.nbytes

    def _stage(self, number: int, data: memoryview) -> bytes | None:
        """Writes a part to the local disk and queues its sending; None where the disk does not take it."""
        if self._lock is None:
            return None
        path = self._folder / f"{number:06d}"
        try:
            digest = write_part(path, data, soon=True)
        except OSError:
            self._unstaged = True
            with suppress(OSError):
                path.unlink()
            return None
        self._synced.append(self._sender.syncers.submit(_synced, path))
        self._sent.append(self._sender.senders.submit(self._send_staged, number))
        return digest

    def _send_unstaged(self, number: int, data: memoryview) -> None:
        """Sends a part from memory.

        Raises:
            StorageError: an earlier part failed for good: nothing can be tried again from here.
        """
        self._unstaged = True
        if self._sender.tier.buffered:
            self._send(number, data)
            return
        for future in self._sent:
            if future.done():
                future.result()
        self._room.acquire()
        copied = bytes(data)

        def send() -> None:
            try:
                self._send(number, copied)
            finally:
                self._room.release()

        self._sent.append(self._sender.senders.submit(send))

    def _send_staged(self, number: int) -> None:
        self._send(number, _staged_part(self._folder, number))

    def _send(self, number: int, data: Buffer) -> None:
        """Puts a part, after the mark: a collector must never find parts that have none yet."""
        if self._opened is not None:
            self._opened.result()
        self._sender.put_part(part_key(self.name, self.version, number), data)

    def _finish(self, manifest: Manifest, content: bytes) -> None:
        """Waits for the parts, publishes, and hands the local copy to the cache."""
        try:
            if self._opened is not None:
                self._opened.result()
            for future in self._sent:
                future.result()
            self._sender.publish(manifest, content)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
        _settle(self._folder, manifest, self._sender.cache)

    def _clean(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        shutil.rmtree(self._folder, ignore_errors=True)


def resume(sender: Sender, name_version: Callable[[], str]) -> list[tuple[str, Future[None]]]:
    """Takes up the uploads that processes of this node left when they died.

    Sealed ones are sent; unsealed ones were never promised to anybody, and go.

    Args:
        sender: of the store.
        name_version: gives a new id, for an upload whose parts were collected as garbage meanwhile.

    Returns:
        The name of each file that is being sent, with what tells when it is durable.
    """
    taken = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for folder in sorted(sender.outgoing.iterdir()):
            lock = _take(folder)
            if lock is None:
                continue
            manifest, content = _sealed(folder)
            if manifest is None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
                continue
            sending = sender.finishers.submit(_resend, sender, folder, lock, manifest, content, name_version)
            taken.append((manifest.name, sending))
    return taken


def _resend(
    sender: Sender,
    folder: Path,
    lock: int,
    manifest: Manifest,
    content: bytes,
    new_version: Callable[[], str],
) -> None:
    try:
        try:
            if not _superseded(sender, manifest):
                _send_missing(sender, folder, manifest)
                sender.publish(manifest, content)
        except Collected:
            fields = {field: getattr(manifest, field) for field in _KEPT}
            again = make_manifest(manifest.name, new_version(), **fields)
            _send_missing(sender, folder, again)
            sender.publish(again, content)
        _settle(folder, manifest, sender.cache)
    finally:
        os.close(lock)


_KEPT: Final = ("size_bytes", "part_bytes", "created_ns", "inline", "checksums")


def _superseded(sender: Sender, manifest: Manifest) -> bool:
    """Whether a later write of the name has become durable already."""
    try:
        current, _ = decode(
            manifest.name, retried(lambda: sender.tier.get(file_key(manifest.name)), sender.patience)
        )
    except (Absent, Damaged):
        return False
    return current.created_ns > manifest.created_ns


def _send_missing(sender: Sender, folder: Path, manifest: Manifest) -> None:
    if manifest.inline:
        return
    sender.begin(manifest.name, manifest.version)
    prefix = version_prefix(manifest.name, manifest.version)
    there = {one.key: one.size_bytes for one in sender.tier.list(prefix.rstrip("/"))}
    if prefix + RETIRED in there:
        raise Collected(manifest.name)
    for number in range(manifest.num_parts):
        key = part_key(manifest.name, manifest.version, number)
        content = _staged_part(folder, number)
        # A buffered tier may show a part whose bytes a loss of power took.
        if sender.tier.buffered or there.get(key) != memoryview(content).nbytes:
            sender.put_part(key, content)


def _synced(path: Path) -> bool:
    """Forces a part to the local disk; False where the disk fails."""
    try:
        sync_part(path)
    except OSError:
        return False
    return True


def _settle(folder: Path, manifest: Manifest, cache: PartCache) -> None:
    """The manifest's mark goes first: from then on the folder is only waste."""
    with suppress(OSError):
        (folder / "manifest").unlink(missing_ok=True)
        for number in range(0 if manifest.inline else manifest.num_parts):
            staged = folder / f"{number:06d}"
            if staged.exists():
                cache.adopt(staged, manifest.version, number)
    shutil.rmtree(folder, ignore_errors=True)


def _make_folder(folder: Path) -> int | None:
    """Makes the folder of an upload and holds its lock; None where the local disk does not let it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _take(folder)
    except OSError:
        return None


def _take(folder: Path) -> int | None:
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


def _seal(folder: Path, manifest: Manifest, content: bytes) -> bool:
    """Writes the manifest; False where the disk does not take it."""
    try:
        write_durable(folder / "manifest", encode(manifest, content), attempt="seal")
        sync_folder(folder.parent)
    except OSError:
        return False
    return True


def _sealed(folder: Path) -> tuple[Manifest | None, bytes]:
    try:
        stored = (folder / "manifest").read_bytes()
        name = _name_in(stored)
        return decode(name, stored)
    except (OSError, Damaged):
        return None, b""


def _name_in(stored: bytes) -> str:
    try:
        return str(msgspec.json.decode(stored.partition(b"\n")[0], type=Manifest).name)
    except msgspec.MsgspecError:
        raise Damaged("a sealed upload's manifest cannot be read") from None


def _staged_part(folder: Path, number: int) -> Buffer:
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
