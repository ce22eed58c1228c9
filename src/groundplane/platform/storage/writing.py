"""Writing a file: to the local disk, from there to the durable tier, and visible when all is there.

Parts are sent while later ones are still being written. A part that the local disk does not take is sent from
memory, and the writer waits until all is durable: slower, not lost. Then the parts move to the cache.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import xxhash

from groundplane.platform.storage.errors import StorageError
from groundplane.platform.storage.manifest import (
    INLINE_BYTES,
    Manifest,
    make_manifest,
    part_key,
    version_prefix,
)
from groundplane.platform.storage.part_file import write_part
from groundplane.platform.storage.sending import Sender
from groundplane.platform.storage.staging import make_folder, seal, settle, staged_part, synced
from groundplane.spec.errors import InvariantError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_UNSENT: Final = 6
"""Parts that may wait in memory for the tier, where there is no local copy."""
ANSWER_WITHIN_S: Final = 2.0
"""How long `close` waits to hear what the file replaces; without it the clock alone orders two writes."""


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
        self._lock = make_folder(self._folder) if local else None
        self._pending: memoryview | None = None
        self._filled = 0
        self._checksums: list[str] = []
        self._size_bytes = 0
        self._synced: list[Future[bool]] = []
        self._unstaged = False
        self._sent: list[Future[None]] = []
        self._opened: Future[None] | None = None
        self._before = sender.senders.submit(sender.current, name)
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
        etag, created_ns = self._begin()
        manifest = make_manifest(
            self.name,
            self.version,
            size_bytes=size_bytes,
            part_bytes=self._part_bytes,
            created_ns=created_ns,
            inline=inline,
            checksums=self._checksums,
        )
        staged = [future.result() for future in self._synced]
        whole = self._lock is not None and not self._unstaged and all(staged)
        safe = whole and seal(self._folder, manifest, content)
        sending = self._sender.finish(self._finish, manifest, content, etag)
        if not safe:
            sending.result()
        return sending

    def abort(self) -> None:
        """Drops the file; nothing of it was ever visible."""
        if not self._ended:
            self._end()
            begun: list[Future[Any]] = [self._before, *self._synced, *self._sent]
            if self._opened is not None:
                begun.append(self._opened)
            for one in begun:
                if not one.cancel():
                    one.exception()
            self._clean()
            with suppress(StorageError):
                prefix = version_prefix(self.name, self.version)
                self._sender.tier.delete([one.key for one in self._sender.tier.list(prefix.rstrip("/"))])

    def _begin(self) -> tuple[str | None, int]:
        """The etag of what this write replaces, None where the tier did not say in time, and when it began.

        That is after what it replaces was begun, whatever this machine's clock says.
        """
        try:
            etag, current = self._before.result(timeout=ANSWER_WITHIN_S)
        except (StorageError, TimeoutError):
            return None, self._created_ns
        return etag, self._created_ns if current is None else max(self._created_ns, current.created_ns + 1)

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
        self._synced.append(self._sender.syncers.submit(synced, path))
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
        self._send(number, staged_part(self._folder, number))

    def _send(self, number: int, data: Buffer) -> None:
        """Puts a part, after the mark: a collector must never find parts that have none yet."""
        if self._opened is not None:
            self._opened.result()
        self._sender.put_part(part_key(self.name, self.version, number), data)

    def _finish(self, manifest: Manifest, content: bytes, etag: str | None) -> None:
        """Waits for the parts, publishes, and hands the local copy to the cache."""
        try:
            if self._opened is not None:
                self._opened.result()
            for future in self._sent:
                future.result()
            self._sender.publish(manifest, content, etag)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
        settle(self._folder, manifest, self._sender.cache)

    def _clean(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        shutil.rmtree(self._folder, ignore_errors=True)
