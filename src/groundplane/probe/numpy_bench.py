"""What can be measured without PyTorch: products, copies and call overhead of numpy on one core.

Enough to describe the machine, not to price the built-in trainer, which needs the operators of `torch_bench`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from groundplane.probe.timer import Stopwatch
from groundplane.spec.cluster import BandwidthPoint, MatmulPoint, OverheadPoint

MATMUL_SHAPES = (
    (64, 64, 64), (256, 256, 256), (256, 1024, 1024), (1024, 256, 256), (1024, 1024, 1024), (4096, 256, 768),
)  # fmt: skip


def measure(watch: Stopwatch) -> Iterator[MatmulPoint | BandwidthPoint | OverheadPoint]:
    """Times everything, one point after the other; `processes` is left at 1 for the caller to set.

    The caller limits the threads of the BLAS library by environment before numpy is imported.
    """
    random = np.random.default_rng(0)
    for m, n, k in MATMUL_SHAPES:
        x = random.standard_normal((m, k), dtype=np.float32)
        y = random.standard_normal((k, n), dtype=np.float32)
        yield MatmulPoint("fp32", m, n, k, watch.time_s(lambda x=x, y=y: x @ y))  # type: ignore[misc]
    for size_bytes in (1 << 15, 1 << 20, 1 << 23, 1 << 25, 1 << 28):
        a, b = np.ones(size_bytes // 8, dtype=np.float32), np.ones(size_bytes // 8, dtype=np.float32)
        copy_s = watch.time_s(lambda a=a, b=b: np.copyto(b, a))  # type: ignore[misc]
        yield BandwidthPoint(size_bytes, 8 * a.size / copy_s, "copy")
    small = np.ones(8, dtype=np.float32)
    yield OverheadPoint("numpy_call", watch.time_s(lambda: small * small))
