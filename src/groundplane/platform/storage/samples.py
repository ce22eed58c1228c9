"""Objects below a prefix as training samples: listed compactly, shuffled without a list, read many at a time.

Sample i is the i-th name in order. Which sample stands at position p of the run is a function of the seed and
p alone (`training.data.sample_indices`), and rank r of w takes positions r, r + w, ...: so the order does not
depend on the number of ranks or workers, and a run resumes at a position.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from groundplane.platform.storage.store import Entry, Store
from groundplane.platform.training.data import sample_indices
from groundplane.spec.errors import InputError

NUM_SAMPLE_READERS: Final = 16
"""Small reads wait for the round trip, not for the bytes: more at a time than of whole parts."""
ORDER_BLOCK: Final = 4096
"""Positions whose samples are looked up at once."""


class SampleIndex:
    """The names below a prefix in order, with what is needed to read each by one request.

    About 24 bytes a sample beside its name and etag. Can be sent to other processes.

    Args:
        store: where.
        prefix: below which.

    Raises:
        InputError: nothing is there.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._text = bytearray()
        self._ends = array("q")
        self._sizes = array("q")
        ordered, last = True, b""
        for entry in store.files(prefix):
            name = entry.name.encode()
            ordered, last = ordered and last < name, name
            self._append(name, entry)
        if not self._sizes:
            raise InputError("must have files below it", field="prefix", value=prefix)
        if not ordered:
            self._sort()

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, number: int) -> Entry:
        start = self._ends[2 * number - 1] if number else 0
        middle, end = self._ends[2 * number], self._ends[2 * number + 1]
        size = self._sizes[number]
        name, etag = self._text[start:middle].decode(), self._text[middle:end].decode()
        return Entry(name, size if size >= 0 else None, 0, etag)

    def _append(self, name: bytes, entry: Entry) -> None:
        self._text += name
        self._ends.append(len(self._text))
        self._text += entry.etag.encode()
        self._ends.append(len(self._text))
        self._sizes.append(-1 if entry.size_bytes is None else entry.size_bytes)

    def _sort(self) -> None:
        entries = sorted((self[number] for number in range(len(self))), key=lambda entry: entry.name.encode())
        self._text, self._ends, self._sizes = bytearray(), array("q"), array("q")
        for entry in entries:
            self._append(entry.name.encode(), entry)


def read_samples(
    store: Store,
    index: SampleIndex,
    *,
    seed: int,
    start: int = 0,
    stop: int | None = None,
    stride: int = 1,
    num_readers: int = NUM_SAMPLE_READERS,
) -> Iterator[tuple[int, bytes]]:
    """Samples in the order of the run, with the position of each; endless where `stop` is None.

    Args:
        store: where the samples are.
        index: of the samples.
        seed: of the shuffle.
        start: first position.
        stop: position before which it ends.
        stride: from one position to the next; the number of readers of the run.
        num_readers: reads at a time.

    Raises:
        StorageError: as `Fetcher.fetch`; the order never skips what cannot be read.
    """
    with ThreadPoolExecutor(num_readers, thread_name_prefix="store-sample") as pool:
        waiting: deque[tuple[int, Future[bytes]]] = deque()
        try:
            for position, sample in _order(seed, len(index), start, stop, stride):
                waiting.append((position, pool.submit(_read_one, store, index, sample)))
                if len(waiting) >= 2 * num_readers:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def _order(
    seed: int, num_samples: int, start: int, stop: int | None, stride: int
) -> Iterator[tuple[int, int]]:
    """Positions and their samples."""
    position = start
    while stop is None or position < stop:
        block = position // ORDER_BLOCK
        samples = sample_indices(seed, block, ORDER_BLOCK, num_samples)
        end = (block + 1) * ORDER_BLOCK
        while position < end and (stop is None or position < stop):
            yield position, int(samples[position - block * ORDER_BLOCK])
            position += stride


def _read_one(store: Store, index: SampleIndex, number: int) -> bytes:
    file = store.listed(index[number])
    if file.content is not None:
        return file.content
    if file.num_parts == 1:
        return bytes(store.fetcher.fetch(file, 0))
    return b"".join(store.fetcher.fetch(file, part) for part in range(file.num_parts))
