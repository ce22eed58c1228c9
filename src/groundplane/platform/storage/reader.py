"""A stored file as Python reads files: seekable, read ahead while it is read in order."""

from __future__ import annotations

import io
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from groundplane.platform.storage.reading import NUM_READERS, Fetcher, OpenedFile, raise_first

if TYPE_CHECKING:
    from typing_extensions import Buffer

READ_AHEAD: Final = 6
"""Parts fetched beyond the one that is read, when reading is sequential."""
HELD: Final = READ_AHEAD + 2
"""Parts held in memory by one open file."""


class StoreFile(io.RawIOBase):
    """An open file; wrap it in `io.BufferedReader` for many small reads.

    Read by one thread at a time. The version is fixed when it is opened: replacing the file under its name
    changes nothing for who reads it.

    Args:
        fetcher: of the store.
        file: what to read.
        read_ahead: parts to fetch beyond the one that is read.
    """

    def __init__(self, fetcher: Fetcher, file: OpenedFile, read_ahead: int = READ_AHEAD) -> None:
        self._fetcher = fetcher
        self._read_ahead = read_ahead
        self._position = 0
        self._coming: OrderedDict[int, Future[memoryview]] = OrderedDict()
        self._last_part = -1
        self.file = file

    @property
    def name(self) -> str:
        """Its name in the namespace."""
        return self.file.name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.file.size_bytes}[whence]
        if start + offset < 0:
            raise ValueError(f"a position cannot be negative: {start + offset}")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Buffer, /) -> int:
        """Fills the buffer, or what is left of the file, whichever is less.

        Raises:
            StorageError: as `Fetcher.fetch`.
        """
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(view.nbytes, self.file.size_bytes - self._position))
        done = 0
        while done < wanted:
            data, skip = self._at(self._position)
            taken = min(wanted - done, data.nbytes - skip)
            view[done : done + taken] = data[skip : skip + taken]
            done += taken
            self._position += taken
        return done

    def read(self, size: int | None = -1, /) -> bytes:
        """Up to `size` bytes; all that is left for -1 or None."""
        left = max(0, self.file.size_bytes - self._position)
        data = bytearray(left if size is None or size < 0 else min(size, left))
        self.readinto(data)
        return bytes(data)

    def readall(self) -> bytes:
        return self.read()

    def next_piece(self) -> memoryview:
        """What is left of the part at the position, without a copy; empty at the end. Read-only.

        The quickest way to read all of a file in order.
        """
        if self._position >= self.file.size_bytes:
            return memoryview(b"")
        data, skip = self._at(self._position)
        self._position += data.nbytes - skip
        return data[skip:]

    def close(self) -> None:
        for future in self._coming.values():
            future.cancel()
        self._coming.clear()
        super().close()

    def _at(self, position: int) -> tuple[memoryview, int]:
        """The part that holds a position, and the position within it."""
        if self.closed:
            raise ValueError("the file is closed")
        if self.file.content is not None:
            return memoryview(self.file.content), position
        number, skip = divmod(position, self.file.part_bytes)
        if number == self._last_part + 1:
            for ahead in range(number, min(number + 1 + self._read_ahead, self.file.num_parts)):
                self._begin(ahead)
        self._begin(number)
        self._coming.move_to_end(number)
        self._last_part = number
        # Parts behind go first: in order of use, and a part read ahead counts as used when it is begun.
        while len(self._coming) > HELD:
            self._coming.popitem(last=False)[1].cancel()
        return self._coming[number].result(), skip

    def _begin(self, number: int) -> None:
        if number not in self._coming or self._coming[number].cancelled():
            self._coming[number] = self._fetcher.begin(self.file, number)


def read_whole(fetcher: Fetcher, file: OpenedFile, into: memoryview) -> None:
    """Fills `into` with all of a file, parts in parallel, each straight to its place.

    Raises:
        StorageError: as `Fetcher.fetch`.
    """
    if file.content is not None:
        into[:] = file.content
        return
    waiting: list[Future[memoryview]] = []
    for number in range(file.num_parts):
        start = number * file.part_bytes
        waiting.append(fetcher.begin(file, number, into[start : start + file.length(number)]))
        if len(waiting) >= 2 * NUM_READERS:
            raise_first(waiting[:NUM_READERS])
            del waiting[:NUM_READERS]
    raise_first(waiting)
