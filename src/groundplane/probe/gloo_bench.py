"""Collectives of two ranks over loopback, by message size, as a training job on one machine runs them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from groundplane.spec.cluster import CollectivePoint

SIZES_BYTES = (1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
RANKS = 2
LIMIT = timedelta(seconds=30)


def measure(rank: int, rendezvous: str, budget_s: float) -> Iterator[CollectivePoint]:
    """Median wall seconds of each collective; `size_bytes` is the whole buffer of one rank.

    Args:
        rank: 0 or 1.
        rendezvous: a `file://` URL that both ranks share.
        budget_s: about how long to measure each size; both ranks make the same number of calls.
    """
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS, timeout=LIMIT)
    for size_bytes in SIZES_BYTES:
        count = size_bytes // 4
        whole, part = torch.ones(count), torch.ones(count // RANKS)
        cases: tuple[
            tuple[Literal["all_reduce", "all_gather", "reduce_scatter"], Callable[[], object]], ...
        ] = (
            ("all_reduce", lambda whole=whole: dist.all_reduce(whole)),  # type: ignore[misc]
            ("all_gather", lambda whole=whole, part=part: dist.all_gather_into_tensor(whole, part)),  # type: ignore[misc]
            ("reduce_scatter", lambda whole=whole, part=part: dist.reduce_scatter_tensor(part, whole)),  # type: ignore[misc]
        )
        for operation, call in cases:
            yield CollectivePoint(operation, size_bytes, RANKS, _median_s(call, budget_s))
    dist.barrier()
    dist.destroy_process_group()


def _median_s(call: Callable[[], object], budget_s: float) -> float:
    """Median seconds of a call that both ranks make equally often: rank 0's first calls decide how often."""
    call()
    start = time.perf_counter()
    call()
    repeats = torch.tensor([max(3, min(50, int(budget_s / max(time.perf_counter() - start, 1e-6))))])
    dist.broadcast(repeats, src=0)
    samples: list[float] = []
    for _ in range(int(repeats.item())):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return sorted(samples)[len(samples) // 2]
