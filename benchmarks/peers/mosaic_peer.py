"""Mosaic streaming over small samples: packed into shards, put into a bucket, read in shuffled order.

Run by `benchmarks/storage_objects.py` in an environment that has only it:
`mosaic_peer.py ENDPOINT BUCKET COUNT SAMPLE_BYTES WORK`. Prints samples a second of the read.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import time
import types


def without_torchvision() -> None:
    """Lets Mosaic be imported without torchvision, whose builds must match PyTorch's; nothing here uses
    images."""
    for name, members in {
        "torchvision": (),
        "torchvision.datasets": ("VisionDataset",),
        "torchvision.datasets.folder": ("default_loader",),
        "torchvision.datasets.vision": ("StandardTransform",),
        "torchvision.transforms": (),
        "torchvision.transforms.functional": ("to_tensor",),
    }.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        for member in members:
            setattr(module, member, type(member, (), {}))
        sys.modules[name] = module


def main() -> None:
    endpoint, bucket, count_text, size_text, work = sys.argv[1:6]
    count, size = int(count_text), int(size_text)
    os.environ["S3_ENDPOINT_URL"] = endpoint
    without_torchvision()
    from streaming import MDSWriter, StreamingDataset

    remote = f"s3://{bucket}/mosaic"
    with MDSWriter(out=(f"{work}/mosaic-out", remote), columns={"data": "bytes"}) as out:
        for number in range(count):
            out.write({"data": number.to_bytes(8, "big") * (size // 8)})
    dataset = StreamingDataset(remote=remote, local=f"{work}/mosaic-in", shuffle=True, batch_size=1)
    begin_s = time.perf_counter()
    num_read = sum(1 for _ in dataset)
    took_s = time.perf_counter() - begin_s
    if num_read != count:
        raise SystemExit(f"{num_read} samples were read of {count}")
    print(count / took_s)


if __name__ == "__main__":
    main()
