"""Speed of tiered storage against the raw disk, a memory copy and other S3 clients, on this machine.

Everything is measured in the same run, taking turns, and told as the median of the repeats. Cold means that
the pages were dropped by `posix_fadvise`, of our cache, of the raw file and of the S3 server's volumes alike.
The S3 server is SeaweedFS on loopback; peers run in environments that this makes in the folder given by
--work.

    python benchmarks/storage.py [--json] [--size 1GiB] [--objects 1000000]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "storage"))

from s3_server import S3Server  # noqa: E402

from groundplane.platform.storage.spec import StoreSpec  # noqa: E402
from groundplane.platform.storage.store import Store  # noqa: E402
from groundplane.spec.units import BYTES, parse_int  # noqa: E402

BLOCK_BYTES = 2**20
INSTALL_WITHIN_S = 600
PEERS = {"s3fs": "s3fs", "obstore-stream": "obstore", "obstore-ranges": "obstore", "boto3": "boto3"}
"""Peer -> the package its environment gets."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--size", default="1 GiB")
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, help="Folder on the disk to measure; made and emptied.")
    parser.add_argument("--only", default="disk,s3,checkpoint,objects")
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="groundplane-storage-"))
    work.mkdir(parents=True, exist_ok=True)
    size = parse_int(options.size, BYTES)
    only = options.only.split(",")
    result: dict[str, Any] = {"size_bytes": size, "repeats": options.repeats}
    try:
        if "disk" in only:
            result |= disk(work / "disk", size, options.repeats)
        if "s3" in only:
            result |= s3(work / "s3", size, options.repeats)
        if "checkpoint" in only:
            from storage_checkpoint import checkpoint

            result |= checkpoint(work / "checkpoint", size, options.repeats)
        if "objects" in only:
            from storage_objects import objects

            result |= objects(work / "objects", options.objects)
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        for name, value in result.items():
            print(f"{name:36}{value:.4g}" if isinstance(value, float) else f"{name:36}{value}")


def disk(work: Path, size: int, repeats: int) -> dict[str, Any]:
    """Cached reads and durable writes, with the raw disk taking turns with the store."""
    clean(work)
    data = os.urandom(BLOCK_BYTES) * (size // BLOCK_BYTES)
    spec = StoreSpec(durable=f"file://{work}/durable", cache=str(work / "cache"))
    raw = work / "raw"

    def store_write(local: bool) -> float:
        with Store(spec) as store:
            begin_s = time.perf_counter()
            sending = store.write("file", data, local=local)
            took_s = time.perf_counter() - begin_s
            sending.result()
        return took_s

    def cached_read() -> float:
        with Store(spec) as store:
            took_s = timed(lambda: drain(store, "file", size))
            if store.fetcher.counts.bytes_from["durable"]:
                raise SystemExit("a cached read went to the durable tier")
        return took_s

    def remove() -> None:
        for one in (raw, work / "durable", work / "cache"):
            shutil.rmtree(one, ignore_errors=True) if one.is_dir() else one.unlink(missing_ok=True)

    writes = {
        "raw_write": lambda: timed(lambda: write_raw(raw, data)),
        "durable_write": lambda: store_write(False),
        "local_write": lambda: store_write(True),
    }
    reads = {"raw_read": lambda: timed(lambda: read_raw(raw)), "cached_read": cached_read}
    taken = in_turns(writes, repeats, remove)
    write_raw(raw, data)
    store_write(True)
    taken |= in_turns(reads, repeats, lambda: drop_pages(work))
    clean(work)
    median = {name: statistics.median(times) for name, times in taken.items()}
    return {
        **{f"{name}_bytes_per_s": size / took for name, took in median.items()},
        "durable_write_vs_disk": median["raw_write"] / median["durable_write"],
        "local_write_vs_disk": median["raw_write"] / median["local_write"],
        "cached_read_vs_disk": median["raw_read"] / median["cached_read"],
        "disk_times_s": {name: [round(one, 3) for one in times] for name, times in taken.items()},
    }


def in_turns(
    calls: dict[str, Callable[[], float]], repeats: int, before: Callable[[], None]
) -> dict[str, list[float]]:
    """Times of each call, taking turns, forwards and backwards.

    Each is called twice and the second time counts: a virtual machine gives free memory back to its host
    within seconds, and taking it again costs more than the disk does. So what is timed finds the memory that
    its own first call just freed.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats):
        for name in list(calls) if turn % 2 == 0 else reversed(list(calls)):
            for _ in range(2):
                os.sync()
                before()
                took_s = calls[name]()
            taken[name].append(took_s)
    before()
    return taken


def s3(work: Path, size: int, repeats: int) -> dict[str, Any]:
    """Cold reads of one object from S3, by us and by the peers, taking turns."""
    clean(work)
    server = S3Server(work / "server", volume_size_mb=2048)
    peers: dict[str, subprocess.Popen[str]] = {}
    try:
        os.environ.update(server.environment)
        server.make_bucket("bench")
        data = os.urandom(BLOCK_BYTES) * (size // BLOCK_BYTES)
        plain = {
            "durable": "s3://bench/base",
            "endpoint": server.endpoint,
            "sources": {"plain": "s3://bench/plain"},
        }
        with Store(StoreSpec(**plain, cache=str(work / "cache-write"))) as store:
            upload_plain(server, data)
            durable_s = timed(lambda: store.write("file", data, local=False).result())
        for kind, package in PEERS.items():
            python = environment(work.parent / "environments" / package, package)
            peers[kind] = subprocess.Popen(
                [
                    python,
                    ROOT / "benchmarks/peers/s3_peer.py",
                    kind,
                    server.endpoint,
                    "bench",
                    "plain/object",
                    str(size),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )

        def ours(name: str) -> float:
            cache = work / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            with Store(StoreSpec(**plain, cache=str(cache))) as store:
                return timed(lambda: drain(store, name, size))

        calls: dict[str, Callable[[], float]] = {
            "ours-plain": lambda: ours("plain/object"),
            "ours": lambda: ours("file"),
        }
        calls |= {kind: lambda peer=peer: asked(peer) for kind, peer in peers.items()}
        times = in_turns(calls, repeats, lambda: drop_pages(work))
    finally:
        for peer in peers.values():
            peer.kill()
            peer.wait()
        server.close()
        clean(work)
    median = {name: statistics.median(taken) for name, taken in times.items()}
    best = min((median[name], name) for name in peers)
    return {
        "cold_read_bytes_per_s": {name: size / took for name, took in median.items()},
        "cold_read_times_s": {name: [round(one, 3) for one in taken] for name, taken in times.items()},
        "cold_read_best_peer": best[1],
        "cold_read_vs_best_peer": best[0] / median["ours-plain"],
        "cold_read_parts_vs_best_peer": best[0] / median["ours"],
        "durable_write_s3_bytes_per_s": size / durable_s,
    }


def upload_plain(server: S3Server, data: bytes) -> None:
    """The object that everybody reads, put as any client would."""
    from obstore.store import S3Store

    store = S3Store("bench", prefix="plain", endpoint=server.endpoint, client_options={"allow_http": True})
    store.put("object", data, chunk_size=16 * BLOCK_BYTES, max_concurrency=4)


def environment(folder: Path, *packages: str, beside_ours: bool = False) -> str:
    """Python of an environment for one peer.

    Args:
        folder: of the environment.
        packages: what it gets.
        beside_ours: it sees the packages of this environment too and gets only those named: PyTorch is not
            installed again.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        more = []
        if beside_ours:
            (site,) = folder.glob("lib/python*/site-packages")
            (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
            more = ["--no-deps"]
        install = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *more, *packages]
        subprocess.run(install, check=True, timeout=INSTALL_WITHIN_S)
    return str(python)


def asked(peer: subprocess.Popen[str]) -> float:
    """One read by a peer, in seconds."""
    assert peer.stdin is not None
    assert peer.stdout is not None
    peer.stdin.write("read\n")
    peer.stdin.flush()
    line = peer.stdout.readline()
    if not line:
        raise SystemExit("a peer failed; what it said stands above")
    return float(line)


def drain(store: Store, name: str, size: int) -> None:
    """Reads a file as a trainer would: in order, all of it."""
    total = 0
    with store.open(name) as file:
        while piece := file.next_piece():
            total += piece.nbytes
    if total != size:
        raise SystemExit(f"{total} bytes were read of {size}")


def write_raw(path: Path, data: bytes) -> None:
    """The disk's own speed: one file, in order, forced to the disk."""
    view = memoryview(data)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for start in range(0, len(data), BLOCK_BYTES):
        os.write(descriptor, view[start : start + BLOCK_BYTES])
    os.fsync(descriptor)
    os.close(descriptor)


def read_raw(path: Path) -> None:
    """The disk's own speed: one file, in order, with the kernel's read-ahead."""
    buffer = bytearray(BLOCK_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def drop_pages(folder: Path) -> None:
    """Drops every file below a folder from the page cache."""
    for here, _, names in os.walk(folder):
        for name in names:
            try:
                descriptor = os.open(os.path.join(here, name), os.O_RDONLY)
            except OSError:
                continue
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def timed(call: Any) -> float:
    """Wall time of one call, in seconds: what is measured waits for disks and sockets."""
    begin_s = time.perf_counter()
    call()
    return time.perf_counter() - begin_s


def clean(folder: Path) -> None:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


if __name__ == "__main__":
    main()
