"""Fetching parts: from the nearest place that has them, checked, and kept on the way.

The order is: this node's cache, the shared cache, peers' caches, the durable tier. Only the last one may fail
a read, and it is asked again as long as that may help. Knows no names beyond what an opened file carries.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import xxhash

from groundplane.platform.storage.errors import Damaged, StorageError, Unavailable
from groundplane.platform.storage.manifest import part_key, part_length
from groundplane.platform.storage.tier import Patience, Tier, retried

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from groundplane.platform.storage.cache import PartCache
    from groundplane.platform.storage.part_file import PartFile
    from groundplane.platform.storage.peers import Peers

NUM_READERS: Final = 8
"""Requests of one process at a time."""
NUM_KEEPERS: Final = 2
MAX_KEEPING: Final = 8
"""Parts waiting to be written to the caches. With more, a reader waits, but not for ever:"""
KEEP_WITHIN_S: Final = 1.0
"""Longest time that a reader waits for a slow cache disk; then nothing is kept for a while."""
KEEP_AGAIN_AFTER_S: Final = 10.0
PLACES: Final = ("cache", "shared_cache", "peers", "durable")
"""Where a part may come from, nearest first."""


@dataclass(frozen=True)
class OpenedFile:
    """One version of a file, as a reader needs it.

    Attributes:
        name: in the namespace.
        version: id under which its parts are cached.
        size_bytes: in all.
        part_bytes: of each part but the last.
        tier: where its bytes are.
        checksums: a part, in hexadecimal; empty for a source's object, whose checksums nobody wrote.
        content: the bytes themselves, where they came with the manifest.
        key: of a source's object, which is one object and not cut; empty for a file of parts.
        etag: of a source's object.
    """

    name: str
    version: str
    size_bytes: int
    part_bytes: int
    tier: Tier
    checksums: tuple[str, ...] = ()
    content: bytes | None = None
    key: str = ""
    etag: str = ""

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return -(-self.size_bytes // self.part_bytes)

    def length(self, number: int) -> int:
        """Bytes of one part."""
        return part_length(self.size_bytes, self.part_bytes, number)


@dataclass
class ReadCounts:
    """Bytes read in this process, by where they came from."""

    bytes_from: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PLACES, 0))
    num_repeats: int = 0
    num_not_kept: int = 0


class Fetcher:
    """Fetches parts for one process.

    Args:
        caches: name in `PLACES` -> cache, nearest first; every part fetched from further away is kept in
            each.
        peers: other nodes' caches, or None.
        patience: with the durable tier.
    """

    def __init__(self, caches: dict[str, PartCache], peers: Peers | None, patience: Patience) -> None:
        self._caches = caches
        self._peers = peers
        self._patience = patience
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="store-read")
        self._keepers = ThreadPoolExecutor(NUM_KEEPERS, thread_name_prefix="store-keep")
        self._keeping = threading.BoundedSemaphore(MAX_KEEPING)
        self._keep_from_s = 0.0
        self.counts = ReadCounts()

    def begin(self, file: OpenedFile, number: int, into: memoryview | None = None) -> Future[memoryview]:
        """Begins to fetch one part; see `fetch`."""
        return self._readers.submit(self.fetch, file, number, into)

    def near(self, file: OpenedFile, number: int) -> PartFile | None:
        """A part's file in this node's cache, or None; see `block`."""
        expected = file.checksums[number] if file.checksums else ""
        return self._caches["cache"].open(file.version, number, file.length(number), expected)

    def block(self, file: OpenedFile, number: int, part: PartFile, block: int, into: memoryview) -> bool:
        """Fills `into` with one block of a part from `near`; False where the disk failed or it is damaged."""
        cache = self._caches["cache"]
        try:
            if part.read_block(block, into):
                self.counts.bytes_from["cache"] += into.nbytes
                return True
        except OSError as error:
            cache.failed(error)
        else:
            cache.damaged(file.version, number)
        return False

    def announce(self, file: OpenedFile, number: int) -> bool:
        """Has the disk begin to read a part that this node's cache has; False where it has not."""
        return self._caches["cache"].announce(file.version, number)

    def fetch(self, file: OpenedFile, number: int, into: memoryview | None = None) -> memoryview:
        """One part, checked, in `into` where that is given.

        Raises:
            StorageError: the durable tier failed for good, or what it holds is damaged.
        """
        length = file.length(number)
        own = into is None
        target = memoryview(bytearray(length)) if into is None else into
        expected = file.checksums[number] if file.checksums else ""
        for place, cache in self._caches.items():
            if cache.read(file.version, number, target, expected):
                self.counts.bytes_from[place] += length
                if place != "cache":
                    self._keep(file, number, target if own else bytes(target), ["cache"])
                return target.toreadonly()
        if self._peers is not None and self._peers.read(file.version, number, target, expected):
            self.counts.bytes_from["peers"] += length
            self._keep(file, number, target if own else bytes(target), list(self._caches))
            return target.toreadonly()
        data = self._from_tier(file, number, length, expected)
        self.counts.bytes_from["durable"] += length
        if into is not None:
            into[:] = data
        self._keep(file, number, data, list(self._caches))
        return data.toreadonly()

    def settle(self) -> None:
        """Waits until all that is to be kept is kept."""
        for _ in range(MAX_KEEPING):
            self._keeping.acquire()
        for _ in range(MAX_KEEPING):
            self._keeping.release()

    def close(self) -> None:
        """Ends the threads, after what they do now."""
        self._readers.shutdown(cancel_futures=True)
        self._keepers.shutdown()

    def _from_tier(self, file: OpenedFile, number: int, length: int, expected: str) -> memoryview:
        key = file.key or part_key(file.name, file.version, number)
        start = number * file.part_bytes if file.key else 0
        num_asked = 0

        def ask() -> memoryview:
            nonlocal num_asked
            num_asked += 1
            self.counts.num_repeats += num_asked > 1
            data = memoryview(file.tier.get_range(key, start, length, file.etag)).cast("B")
            if data.nbytes != length:
                raise Unavailable(f"{file.name}: {data.nbytes} bytes came instead of {length}")
            if expected and xxhash.xxh3_128_hexdigest(data) != expected:
                raise _Garbled(f"{file.name}: part {number} has another checksum than its manifest says")
            return data

        try:
            return retried(ask, self._patience)
        except _Garbled as error:
            raise Damaged(str(error)) from None

    def _keep(self, file: OpenedFile, number: int, data: Buffer, places: list[str]) -> None:
        """Hands a part, which nobody changes any more, to the caches, unless they are too slow."""
        wanted = [self._caches[place] for place in places if place in self._caches]
        if not any(cache.usable for cache in wanted):
            return
        if time.monotonic() < self._keep_from_s:
            self.counts.num_not_kept += 1
            return
        if not self._keeping.acquire(timeout=KEEP_WITHIN_S):
            self._keep_from_s = time.monotonic() + KEEP_AGAIN_AFTER_S
            self.counts.num_not_kept += 1
            return

        def keep() -> None:
            try:
                for cache in wanted:
                    cache.add(file.version, number, data)
            finally:
                self._keeping.release()

        self._keepers.submit(keep)


class _Garbled(Unavailable):
    """A part came whole but wrong: once more may help, and if not, it is damaged where it lies."""


def raise_first(futures: list[Future[memoryview]]) -> None:
    """Waits for all; raises the first failure.

    Raises:
        StorageError: as `Fetcher.fetch`.
    """
    failure: StorageError | None = None
    for future in futures:
        try:
            future.result()
        except StorageError as error:
            failure = failure or error
    if failure is not None:
        raise failure
