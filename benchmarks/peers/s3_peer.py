"""Reads one S3 object whole into memory with another client, and says how long it took.

Run by `benchmarks/storage.py` in an environment that has only that client:
`s3_peer.py KIND ENDPOINT BUCKET KEY SIZE`: for each line on standard input one read, and its time in seconds
on standard output. Where a client takes settings, it has the same parts and the same number at a time as
ours.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

PART_BYTES = 16 * 2**20


def s3fs_reader(endpoint: str, bucket: str, key: str, size: int) -> Callable[[], int]:
    import s3fs

    def read() -> int:
        s3fs.S3FileSystem.clear_instance_cache()
        fs = s3fs.S3FileSystem(endpoint_url=endpoint, use_listings_cache=False)
        starts = range(0, size, PART_BYTES)
        parts = fs.cat_ranges(
            [f"{bucket}/{key}"] * len(starts),
            list(starts),
            [min(at + PART_BYTES, size) for at in starts],
            max_gap=None,
        )
        return sum(map(len, parts))

    return read


def obstore_stream_reader(endpoint: str, bucket: str, key: str, _size: int) -> Callable[[], int]:
    from obstore.store import S3Store

    store = S3Store(bucket, endpoint=endpoint, client_options={"allow_http": True})

    def read() -> int:
        return sum(len(piece) for piece in store.get(key).stream(min_chunk_size=PART_BYTES))

    return read


def obstore_ranges_reader(endpoint: str, bucket: str, key: str, size: int) -> Callable[[], int]:
    from obstore.store import S3Store

    store = S3Store(bucket, endpoint=endpoint, client_options={"allow_http": True})

    def read() -> int:
        starts = list(range(0, size, PART_BYTES))
        with ThreadPoolExecutor(8) as pool:
            lengths = [min(PART_BYTES, size - at) for at in starts]
            parts = pool.map(
                lambda at, length: store.get_range(key, start=at, length=length), starts, lengths
            )
            return sum(map(len, parts))

    return read


def boto3_reader(endpoint: str, bucket: str, key: str, size: int) -> Callable[[], int]:
    import boto3
    from boto3.s3.transfer import TransferConfig

    client = boto3.client("s3", endpoint_url=endpoint)
    config = TransferConfig(multipart_chunksize=PART_BYTES, multipart_threshold=PART_BYTES, max_concurrency=8)

    class Memory:
        """Takes what boto3 writes, in any order."""

        def __init__(self) -> None:
            self.data = bytearray(size)
            self.at = 0
            self.taken = 0

        def seekable(self) -> bool:
            return True

        def seek(self, at: int, _whence: int = 0) -> int:
            self.at = at
            return at

        def tell(self) -> int:
            return self.at

        def write(self, piece: bytes) -> int:
            self.data[self.at : self.at + len(piece)] = piece
            self.at += len(piece)
            self.taken += len(piece)
            return len(piece)

    def read() -> int:
        memory = Memory()
        client.download_fileobj(bucket, key, memory, Config=config)
        return memory.taken

    return read


READERS = {
    "s3fs": s3fs_reader,
    "obstore-stream": obstore_stream_reader,
    "obstore-ranges": obstore_ranges_reader,
    "boto3": boto3_reader,
}


def main() -> None:
    kind, endpoint, bucket, key, size_text = sys.argv[1:6]
    size = int(size_text)
    read = READERS[kind](endpoint, bucket, key, size)
    # The caller drops caches in between.
    for _ in sys.stdin:
        begin_s = time.perf_counter()
        got = read()
        took_s = time.perf_counter() - begin_s
        if got != size:
            raise SystemExit(f"{kind} read {got} bytes of {size}")
        print(took_s, flush=True)


if __name__ == "__main__":
    main()
