"""A stored file as Python reads files: seekable, read ahead while it is read in order.

Two ways to a part. One that this node's cache has is read block by block in the reader's own thread: nothing
is quicker than the kernel's read-ahead and a buffer that stays in the processor's cache. Any other is fetched
whole by the fetcher's threads, several at a time.
"""

from __future__ import annotations

import io
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from groundplane.platform.storage.part_file import BLOCK_BYTES
from groundplane.platform.storage.reading import NUM_READERS, Fetcher, OpenedFile, raise_first

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from groundplane.platform.storage.part_file import PartFile

READ_AHEAD: Final = 8
"""Parts begun beyond the one that is read, when reading is sequential."""


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
        self._coming: dict[int, Future[memoryview]] = {}
        self._last = -1
        self._run = 0
        self._begun = -1
        # The part that was read last is here in one of two ways, or the file is small and all of it is here.
        self._number = -1
        self._near: PartFile | None = None
        self._data = memoryview(file.content or b"")
        self._buffer = memoryview(b"")
        self._block = -1
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
            piece = self._at(self._position, view[done:wanted])
            # A piece that is not in its place already comes out of a buffer of ours.
            if piece.obj is not view.obj:
                view[done : done + piece.nbytes] = piece
            done += piece.nbytes
            self._position += piece.nbytes
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
        """Some bytes from the position on, read-only and without a copy; empty at the end.

        The quickest way to read all of a file in order. It is valid until the next read from this file.
        """
        if self._position >= self.file.size_bytes:
            return memoryview(b"")
        piece = self._at(self._position, None)
        self._position += piece.nbytes
        return piece.toreadonly()

    def close(self) -> None:
        self._leave_part()
        self._forget_coming()
        self._data = memoryview(b"")
        super().close()

    def _at(self, position: int, into: memoryview | None) -> memoryview:
        """Bytes from a position on: at least one; no more than `into` holds; in `into` where that is
        quicker."""
        if self.closed:
            raise ValueError("the file is closed")
        if self.file.content is not None:
            return _cut(self._data[position:], into)
        number, skip = divmod(position, self.file.part_bytes)
        if number != self._number:
            self._enter_part(number)
        if self._near is not None:
            piece = self._from_near(number, skip, into)
            if piece is not None:
                return piece
            self._leave_part()
            self._data = self._fetcher.begin(self.file, number).result()
            self._number = number
        return _cut(self._data[skip:], into)

    def _enter_part(self, number: int) -> None:
        self._leave_part()
        self._look_ahead(number)
        coming = self._coming.pop(number, None)
        if coming is None:
            self._near = self._fetcher.near(self.file, number)
            if self._near is None:
                coming = self._fetcher.begin(self.file, number)
        if coming is not None:
            self._data = coming.result()
        self._number = number

    def _leave_part(self) -> None:
        if self._near is not None:
            self._near.close()
            self._near = None
        if self.file.content is None:
            self._data = memoryview(b"")
        self._number = self._block = -1

    def _from_near(self, number: int, skip: int, into: memoryview | None) -> memoryview | None:
        """The rest of the block at `skip` of the part that is near; None where the disk failed."""
        if self._near is None:
            return None
        block, start = divmod(skip, BLOCK_BYTES)
        length = min(BLOCK_BYTES, self._near.length - block * BLOCK_BYTES)
        if block == self._block:
            return _cut(self._buffer[start:length], into)
        if into is not None and start == 0 and into.nbytes >= length:
            target = into[:length]
            return target if self._fetcher.block(self.file, number, self._near, block, target) else None
        if not self._buffer:
            self._buffer = memoryview(bytearray(min(BLOCK_BYTES, self.file.part_bytes)))
        self._block = -1
        if not self._fetcher.block(self.file, number, self._near, block, self._buffer[:length]):
            return None
        self._block = block
        return _cut(self._buffer[start:length], into)

    def _look_ahead(self, number: int) -> None:
        """Begins to bring this part and, the longer reading has been in order the more, those after it."""
        if number == self._last:
            return
        if number != self._last + 1:
            self._run = 0
            self._begun = number - 1
            self._forget_coming()
        self._last = number
        self._run += 1
        depth = min(self._read_ahead, 4**self._run) if self._run > 1 or number == 0 else 0
        for ahead in range(max(number, self._begun + 1), min(number + 1 + depth, self.file.num_parts)):
            if not self._fetcher.announce(self.file, ahead):
                self._coming[ahead] = self._fetcher.begin(self.file, ahead)
            self._begun = ahead

    def _forget_coming(self) -> None:
        for future in self._coming.values():
            future.cancel()
        self._coming.clear()


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


def _cut(piece: memoryview, into: memoryview | None) -> memoryview:
    return piece if into is None else piece[: into.nbytes]
