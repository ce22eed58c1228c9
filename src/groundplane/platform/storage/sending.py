"""Sending parts and manifests to the durable tier, and making a version visible when all of it is there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from groundplane.platform.storage.cache import PartCache
from groundplane.platform.storage.errors import Absent, Changed, Damaged, StorageError, Unavailable
from groundplane.platform.storage.manifest import OPEN, Manifest, decode, encode, file_key, version_prefix
from groundplane.platform.storage.tier import Patience, Tier, retried

if TYPE_CHECKING:
    from typing_extensions import Buffer

NUM_SENDERS: Final = 4
"""Parts of one process on their way at a time."""
NUM_SYNCERS: Final = 2
MAX_UNFINISHED: Final = 64
"""Files of one process that are safe on the local disk and not yet durable; with more, a writer waits."""
NUM_TURNS: Final = 50
"""How often a publication yields to others of the same name."""
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
        self._finishers = ThreadPoolExecutor(NUM_SENDERS, thread_name_prefix="store-finish")
        self._room = threading.BoundedSemaphore(MAX_UNFINISHED)

    def finish(self, last: Callable[..., None], *arguments: object) -> Future[None]:
        """Has the last steps of an upload done beside the caller, who waits while too many are under way."""
        self._room.acquire()
        future = self._finishers.submit(last, *arguments)
        future.add_done_callback(lambda _: self._room.release())
        return future

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

    def publish(self, manifest: Manifest, content: bytes = b"", etag: str | None = None) -> None:
        """Makes a version visible whose parts are all there, unless a later write of the name is there.

        Args:
            manifest: of the version.
            content: of a small file.
            etag: of what was under the name when the write began, where that is known: then it is not asked.

        Raises:
            Collected: the upload must begin anew under another version.
        """
        if not manifest.inline:
            prefix = version_prefix(manifest.name, manifest.version)
            try:
                retried(lambda: self.tier.settle(prefix), self.patience)
            except Absent:
                raise Collected(manifest.name) from None
        for _ in range(NUM_TURNS):
            if etag is None:
                etag, current = retried(lambda: self.current(manifest.name), self.patience)
                if current is not None and _order(current) >= _order(manifest):
                    break
            try:
                self._replace(file_key(manifest.name), encode(manifest, content), etag)
                break
            except Changed:
                # Another writer's, or ours whose answer was lost: the next turn sees which.
                etag = None
        else:
            raise Unavailable(f"{manifest.name}: {NUM_TURNS} other writes of it came between")
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
        for pool in (self.syncers, self.senders, self._finishers):
            pool.shutdown()

    def current(self, name: str) -> tuple[str, Manifest | None]:
        """The etag of what is under a name now, empty for nothing, and its manifest where it can be read.

        Raises:
            StorageError: the tier failed; it is asked once.
        """
        try:
            etag = self.tier.head(file_key(name)).etag
            return etag, decode(name, self.tier.get(file_key(name)))[0]
        except Absent:
            return "", None
        except Damaged:
            return etag, None

    def _replace(self, key: str, stored: bytes, etag: str) -> None:
        retried(lambda: self.tier.replace(key, stored, etag), self.patience)

    def _withdraw(self, manifest: Manifest) -> None:
        with suppress(StorageError):
            current, _ = decode(manifest.name, self.tier.get(file_key(manifest.name)))
            if current.version == manifest.version:
                self.tier.delete([file_key(manifest.name)])


def _order(manifest: Manifest) -> tuple[int, str]:
    """Of two writes of a name the one begun later stays, whichever comes first."""
    return manifest.created_ns, manifest.version
