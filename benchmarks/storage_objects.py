"""A million small objects in a bucket: put, listed, read in shuffled order, with the memory that it takes.

Each step runs in a process of its own, whose peak memory is told. `--objects` sets how many there are. Mosaic
streaming reads the same bytes, packed by its own writer into shards in the same bucket; it reads shards where
we read objects, so its rate says what packing is worth, not who is better.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

OBJECT_BYTES = 1024
NUM_PUTTERS = 16
MOSAIC_WITHIN_S = 300
MOSAIC = (
    *("mosaicml-streaming", "boto3", "botocore", "s3transfer", "jmespath", "python-dateutil", "six", "zstd"),
    *("python-snappy", "cramjam", "Brotli", "pillow", "catalogue"),
)
"""Mosaic streaming and what it imports beside PyTorch."""
FOLDER_OBJECTS = 10_000
"""Objects in one folder of the bucket."""


def objects(work: Path, count: int) -> dict[str, Any]:
    """Runs the steps one after the other; `work` is emptied."""
    from s3_server import S3Server

    from storage import clean, environment

    clean(work)
    server = S3Server(work / "server", volume_size_mb=4096)
    try:
        os.environ.update(server.environment)
        server.make_bucket("objects")
        put = step("put", server.endpoint, count, work)
        listed = step("list", server.endpoint, count, work)
        read = step("read", server.endpoint, count, work)
        python = environment(work.parent / "environments" / "mosaic", *MOSAIC, beside_ours=True)
        mosaic = mosaic_step(python, server, count, work)
    finally:
        server.close()
        clean(work)
    return {
        "objects": count,
        "objects_put_per_s": count / put["seconds"],
        "objects_listed_per_s": count / listed["seconds"],
        "objects_read_per_s": count / read["seconds"],
        "objects_peak_memory_bytes": max(listed["peak_bytes"], read["peak_bytes"]),
        "objects_memory_within_500_mb": int(max(listed["peak_bytes"], read["peak_bytes"]) <= 500 * 10**6),
        "mosaic_samples_per_s": mosaic,
    }


def step(kind: str, endpoint: str, count: int, work: Path) -> dict[str, float]:
    """One step in a process of its own."""
    command = [sys.executable, __file__, kind, endpoint, str(count), str(work)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def mosaic_step(python: str, server: Any, count: int, work: Path) -> float | None:
    """Samples a second of Mosaic streaming over the same bytes; None where it does not run here."""
    script = Path(__file__).parent / "peers" / "mosaic_peer.py"
    command = [
        python,
        script,
        server.endpoint,
        "objects",
        str(min(count, 100_000)),
        str(OBJECT_BYTES),
        str(work),
    ]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=MOSAIC_WITHIN_S)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return None
    return float(done.stdout.split()[-1])


def content(number: int) -> bytes:
    """An object that says which one it is."""
    return number.to_bytes(8, "big") * (OBJECT_BYTES // 8)


def put_all(endpoint: str, count: int) -> None:
    from obstore.store import S3Store

    store = S3Store("objects", endpoint=endpoint, client_options={"allow_http": True})

    def put(number: int) -> None:
        store.put(f"plain/{number // FOLDER_OBJECTS:05d}/{number:09d}", content(number), use_multipart=False)

    with ThreadPoolExecutor(NUM_PUTTERS) as pool:
        for start in range(0, count, 10_000):
            list(pool.map(put, range(start, min(start + 10_000, count))))


def open_store(endpoint: str, work: Path) -> Any:
    from groundplane.platform.storage.spec import StoreSpec
    from groundplane.platform.storage.store import Store

    # Samples that are read once an epoch are not worth a file each on the local disk.
    return Store(
        StoreSpec(
            durable="s3://objects/base",
            endpoint=endpoint,
            sources={"plain": "s3://objects/plain"},
            cache=str(work / "cache"),
            cache_limit_bytes=0,
        )
    )


def list_all(endpoint: str, count: int, work: Path) -> None:
    with open_store(endpoint, work) as store:
        found = sum(1 for _ in store.files("plain"))
    if found != count:
        raise SystemExit(f"{found} objects were listed of {count}")


def read_all(endpoint: str, count: int, work: Path) -> None:
    from groundplane.platform.storage.samples import SampleIndex, read_samples

    with open_store(endpoint, work) as store:
        index = SampleIndex(store, "plain")
        total = num_read = 0
        for _, data in read_samples(store, index, seed=1, stop=count):
            total += int.from_bytes(data[:8], "big")
            num_read += 1
    if (num_read, total) != (count, count * (count - 1) // 2):
        raise SystemExit(f"{num_read} objects were read of {count}, or not each once")


def main() -> None:
    kind, endpoint, count, work = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    begin_s = time.perf_counter()
    if kind == "put":
        put_all(endpoint, count)
    elif kind == "list":
        list_all(endpoint, count, work)
    else:
        read_all(endpoint, count, work)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": time.perf_counter() - begin_s, "peak_bytes": peak_bytes}))


if __name__ == "__main__":
    main()
