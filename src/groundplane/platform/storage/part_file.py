"""One part as a file on a disk: a checksum of the whole, one of each block, then its bytes.

The blocks let a reader check a small piece, or a stream of them, while it is still in the processor's cache.
The checksum of the whole is the one in the manifest. The checksums come first, because a disk reads on from
the begin of a file by itself. Knows no cache and no names; raises what the disk raises.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK_BYTES: Final = 2**19
"""Step of reading, writing and checking: it fits into a core's own cache."""
_SUM_BYTES: Final = 8
_DIGEST_BYTES: Final = 16


def header_bytes(length: int) -> int:
    """What a part of so many bytes takes beside them."""
    return -(-length // BLOCK_BYTES) * _SUM_BYTES + _DIGEST_BYTES


def write_part(path: Path, data: memoryview, *, soon: bool) -> bytes:
    """Writes a part to a new file, which the disk has for sure when somebody syncs it.

    Args:
        path: of the file.
        data: the part.
        soon: somebody will sync it: the disk begins now. A cache leaves it to the kernel to choose a time.

    Returns:
        The checksum of the whole, 16 bytes.

    Raises:
        OSError: as the disk says; the file may be there in part.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.lseek(descriptor, header_bytes(data.nbytes), os.SEEK_SET)
        whole = xxhash.xxh3_128()
        sums = bytearray()
        for start in range(0, data.nbytes, BLOCK_BYTES):
            block = data[start : start + BLOCK_BYTES]
            whole.update(block)
            sums += xxhash.xxh3_64_digest(block)
            _write_all(descriptor, block)
        digest = whole.digest()
        os.lseek(descriptor, 0, os.SEEK_SET)
        _write_all(descriptor, digest + sums)
        if soon:
            begin_writeback(descriptor)
    finally:
        os.close(descriptor)
    return digest


def sync_part(path: Path) -> None:
    """Forces a part to the disk.

    Raises:
        OSError: as the disk says.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def begin_writeback(descriptor: int) -> None:
    """Has the kernel begin to write a file's dirty pages now, so that a later sync finds little left to
    do."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


class PartFile:
    """A part's file, open for reading.

    Args:
        path: of the file.

    Raises:
        OSError: it cannot be opened or read.
        ValueError: it has no length that a part's file can have.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        try:
            found = os.fstat(self._descriptor)
            self.used_s = found.st_mtime
            self.length = _content_length(found.st_size)
            self._start = header_bytes(self.length)
            header = os.pread(self._descriptor, self._start, 0)
            self.digest, self._sums = header[:_DIGEST_BYTES], header[_DIGEST_BYTES:]
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def touch(self) -> None:
        """Counts it as used now."""
        os.utime(self._descriptor)

    def read_block(self, number: int, into: memoryview) -> bool:
        """Fills `into`, which has the length of block `number`, with it; False where it is damaged.

        Raises:
            OSError: as the disk says.
        """
        start = self._start + number * BLOCK_BYTES
        done = 0
        while done < into.nbytes:
            got = os.preadv(self._descriptor, [into[done:]], start + done)
            if got == 0:
                return False
            done += got
        at = number * _SUM_BYTES
        return xxhash.xxh3_64_digest(into) == self._sums[at : at + _SUM_BYTES]

    def read(self, into: memoryview) -> bool:
        """Fills `into`, which has the length of the part, with it; False where it is damaged.

        Raises:
            OSError: as the disk says.
        """
        return into.nbytes == self.length and all(
            self.read_block(start // BLOCK_BYTES, into[start : start + BLOCK_BYTES])
            for start in range(0, into.nbytes, BLOCK_BYTES)
        )


def _content_length(file_bytes: int) -> int:
    """Length of the part in a file of so many bytes."""
    num_blocks = -(-(file_bytes - _DIGEST_BYTES) // (BLOCK_BYTES + _SUM_BYTES))
    length = file_bytes - _DIGEST_BYTES - num_blocks * _SUM_BYTES
    if length < 0 or length + header_bytes(length) != file_bytes:
        raise ValueError(f"no part has a file of {file_bytes} bytes")
    return length


def _write_all(descriptor: int, data: Buffer) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
