"""Speed of the disk under a folder: sequential write and read, and one small durable write."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from groundplane.spec.cluster import DiskSpec
from groundplane.spec.errors import InputError

BLOCK = bytes(range(256)) * (4096 * 4)
"""4 MiB that no file system stores as a hole."""

NUM_FSYNCS = 20


def measure_disk(folder: Path, size_bytes: int) -> DiskSpec:
    """Writes and reads one temporary file in `folder`, which is removed again.

    Reading asks the kernel to drop its cached pages first; where it does not, memory speed is what is seen.

    Raises:
        InputError: the folder cannot be written, or has no room.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".groundplane-probe-") as file:
            descriptor = file.fileno()
            blocks = max(1, size_bytes // len(BLOCK))
            start = time.perf_counter()
            for _ in range(blocks):
                os.write(descriptor, BLOCK)
            os.fsync(descriptor)
            write_s = time.perf_counter() - start
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.lseek(descriptor, 0, os.SEEK_SET)
            start = time.perf_counter()
            for _ in range(blocks):
                os.read(descriptor, len(BLOCK))
            read_s = time.perf_counter() - start
            fsyncs = sorted(_fsync_s(descriptor) for _ in range(NUM_FSYNCS))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=str(folder)) from None
    total_bytes = blocks * len(BLOCK)
    return DiskSpec(
        read_bytes_per_s=total_bytes / max(read_s, 1e-6),
        write_bytes_per_s=total_bytes / max(write_s, 1e-6),
        size_bytes=_free_bytes(folder),
        fsync_s=fsyncs[len(fsyncs) // 2],
    )


def _fsync_s(descriptor: int) -> float:
    start = time.perf_counter()
    os.pwrite(descriptor, BLOCK[:4096], 0)
    os.fsync(descriptor)
    return time.perf_counter() - start


def _free_bytes(folder: Path) -> int:
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize
