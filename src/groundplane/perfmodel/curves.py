"""The curves that price one kernel: matrix product, attention, memory-bound operator.

Each curve is physics with few fitted numbers: a roofline whose two roofs join smoothly, tile and wave
quantisation over the cores of the chip, the fill of the inner loop, a floor for the kernel itself; and, where
a chip's own measurements allow, a smooth correction. Curves know neither chips nor files:
`kernel_catalogue.py` and `kernel_fit.py` make them.

All evaluations are vectorised: shape arguments broadcast as numpy arrays, results are float64 seconds.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel.correction import GridCorrection
from groundplane.perfmodel.evidence import FloatArray, Numbers

GPU_TILES: Final = (
    (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (32, 128),
    (16, 128),
)  # fmt: skip
"""Output tiles (rows, columns) that the libraries' product kernels choose from."""

_WIDTH_FILL: Final = 24.0
"""Head width at which attention loses half of its rate to softmax: 64 runs at 0.86 of the rate of 128."""

_LEAST_ROWS: Final = 16.0
"""Rows that a product unit computes at least."""

_OWN_FLOOR: Final = 0.4
"""Share of an engine's attention floor that is the attention kernel's; the rest places keys in the cache."""


class MatmulCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of a product of (m, k) by (k, n), from physics and nine fitted numbers.

    time = floor + ((compute^p + memory^p)^(1/p) + cast) x correction, p = `sharpness`: a smooth maximum,
    since loads and products overlap, but not perfectly near the ridge.

    compute = min over tiles of waves x (tile FLOPs per k x (1 + `tile_load` (1/tile_m + 1/tile_n)) / core
    rate) + max(waves, 1) x `loop_s_per_k`, times (k + `fill_k`). Small tiles load more bytes per FLOP, a step
    of the loop never takes less than its latency. Waves are tiles / cores, rounded up by the share
    `wave_weight` (1: a hard tail, 0: balanced as split-k and stream-k schedules approach). memory = bytes of
    both operands and of the result. cast = `cast_bytes` moved for each element of the first operand before
    the product, where it is quantised on the fly (fp8, fp4).
    """

    peak_flops_per_s: float
    memory_bytes_per_s: float
    num_cores: int
    input_bytes: float
    output_bytes: float
    efficiency: float = 0.85
    memory_efficiency: float = 0.8
    floor_s: float = 3e-6
    fill_k: float = 100.0
    wave_weight: float = 0.2
    sharpness: float = 4.0
    tile_load: float = 10.0
    loop_s_per_k: float = 3e-10
    cast_bytes: float = 0.0
    tiles: tuple[tuple[int, int], ...] = GPU_TILES
    correction: GridCorrection | None = None

    def time_s(
        self, m: Numbers, n: Numbers, k: Numbers, batch: Numbers = 1, *, cast: bool = True
    ) -> FloatArray:
        """Seconds of `batch` independent products in one kernel.

        Args:
            m, n, k: the product is (m, k) by (k, n).
            batch: independent products of the same shape launched together (grouped or batched).
            cast: quantise the first operand on the fly, where the format needs it.
        """
        rows, columns, depth, count = _floats(m, n, k, batch)
        memory_rate = self.memory_bytes_per_s * self.memory_efficiency
        moved = count * ((rows + columns) * depth * self.input_bytes + rows * columns * self.output_bytes)
        compute_s = self.compute_time_s(rows, columns, depth, count)
        seconds = smooth_max(compute_s, moved / memory_rate, self.sharpness)
        if self.cast_bytes and cast:
            seconds = seconds + count * rows * depth * (self.cast_bytes / memory_rate)
        if self.correction is not None:
            # Batched products fill the chip as one with more rows does.
            seconds = seconds * self.correction.factor(rows * count, columns, depth)
        # No correction and no efficiency above one may break through the roof.
        roof_s = 2.0 * count * rows * columns * depth / self.peak_flops_per_s
        return np.asarray(self.floor_s + np.maximum(seconds, roof_s), dtype=np.float64)

    def compute_time_s(
        self, rows: FloatArray, columns: FloatArray, depth: FloatArray, count: FloatArray
    ) -> FloatArray:
        """Seconds the cores are busy with the best tile, without floor and memory."""
        core_flops_per_s = self.peak_flops_per_s * self.efficiency / self.num_cores
        best: FloatArray = np.full((), np.inf)
        for tile_m, tile_n in self.tiles:
            even = np.ceil(rows / tile_m) * np.ceil(columns / tile_n) * (count / self.num_cores)
            waves = even + min(self.wave_weight, 1.0) * (np.ceil(even) - even)
            load = 1.0 + self.tile_load * (1.0 / tile_m + 1.0 / tile_n)
            per_k = waves * (2.0 * tile_m * tile_n * load / core_flops_per_s)
            best = np.minimum(best, per_k + np.maximum(waves, 1.0) * self.loop_s_per_k)
        return best * (depth + self.fill_k)


class AttentionCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of fused attention (online softmax; nothing of size seq_q x seq_kv is stored).

    time = floor + (compute^p + memory^p)^(1/p) x correction. A block of queries of one head visits the
    blocks of keys that its mask leaves, plus `fill_blocks` for the loop's start and end; waves of (batch x
    heads x query blocks) over the cores are rounded up by `wave_weight`. With few queries (decoding), those
    of all heads on one key head share a block, and the keys are split over the cores. Backward does
    `backward_flops` times the products of forward (five against two, scores computed anew: Dao 2023, section
    3.1.2) at `backward_efficiency` of its rate. `cache_passes` and the larger part of the floor are what
    inference engines do around the kernel: rotating and writing keys and values to the cache.
    """

    peak_flops_per_s: float
    memory_bytes_per_s: float
    num_cores: int
    element_bytes: float
    efficiency: float = 0.55
    memory_efficiency: float = 0.8
    floor_s: float = 2e-5
    fill_blocks: float = 2.0
    wave_weight: float = 0.4
    sharpness: float = 3.5
    cache_passes: float = 1.5
    block_q: int = 128
    block_kv: int = 128
    backward_flops: float = 2.5
    backward_efficiency: float = 0.82
    correction: GridCorrection | None = None

    def time_s(
        self,
        batch: Numbers,
        seq_q: Numbers,
        seq_kv: Numbers,
        heads: Numbers,
        kv_heads: Numbers,
        head_dim: Numbers,
        *,
        value_dim: Numbers | None = None,
        causal: bool = True,
        backward: bool = False,
        cache_write: bool = False,
    ) -> FloatArray:
        """Seconds of attention of one layer.

        Args:
            batch: sequences.
            seq_q, seq_kv: queries and keys of each; with `causal` the last query sees the last key.
            heads, kv_heads: query heads and key/value heads (grouped queries).
            head_dim: width of queries and keys; `value_dim` that of values, where it differs (MLA).
            causal: the mask leaves the lower triangle.
            backward: the backward pass instead of the forward one.
            cache_write: with the engine's work around the kernel, as the published tables were timed.
        """
        count, queries, keys, num_heads, num_kv, width = _floats(
            batch, seq_q, seq_kv, heads, kv_heads, head_dim
        )
        values = width if value_dim is None else np.asarray(value_dim, dtype=np.float64)
        both = width + values
        seen = _mean_keys_seen(queries, keys, self.block_q, causal)
        block_flops = 2.0 * self.block_q * self.block_kv * both
        even = count * num_heads * np.ceil(queries / self.block_q) / self.num_cores
        waves = even + min(self.wave_weight, 1.0) * (np.ceil(even) - even)
        narrow = (1.0 + 2.0 * _WIDTH_FILL / both) / (1.0 + _WIDTH_FILL / 128.0)
        rate = self.peak_flops_per_s * self.efficiency / narrow
        blocks = seen / self.block_kv + self.fill_blocks
        compute_s = waves * blocks * block_flops * (self.num_cores / rate)
        # Few queries: kernels pack those of all heads on one key head into a block, and split keys over
        # cores.
        packed = queries * num_heads / num_kv
        few = packed <= self.block_q
        rows = np.ceil(packed / _LEAST_ROWS) * _LEAST_ROWS
        compute_s = np.where(few, 2.0 * count * num_kv * rows * keys * both / rate, compute_s)
        memory_rate = self.memory_bytes_per_s * self.memory_efficiency
        moved = count * (num_heads * queries + num_kv * keys) * both * self.element_bytes
        if backward:
            compute_s = compute_s * (self.backward_flops / self.backward_efficiency)
            moved = moved * self.backward_flops
        seconds = smooth_max(compute_s, moved / memory_rate, self.sharpness)
        if self.correction is not None:
            factor = self.correction.factor(count * num_heads, queries, num_heads / num_kv)
            seconds = seconds * np.where(few, 1.0, factor)
        roof_s = self._least_flops(count, queries, keys, num_heads, both, causal) / self.peak_flops_per_s
        seconds = np.maximum(seconds, roof_s * (self.backward_flops if backward else 1.0))
        if cache_write:
            written = count * queries * (num_heads * width + num_kv * both) * self.element_bytes
            seconds = seconds + self.floor_s + written * (self.cache_passes / memory_rate)
        else:
            seconds = seconds + self.floor_s * _OWN_FLOOR
        return np.asarray(seconds, dtype=np.float64)

    @staticmethod
    def _least_flops(
        count: FloatArray,
        queries: FloatArray,
        keys: FloatArray,
        heads: FloatArray,
        both: FloatArray,
        causal: bool,
    ) -> FloatArray:
        """FLOPs of the two products over what the mask leaves, and no more."""
        return 2.0 * count * heads * queries * _mean_keys_seen(queries, keys, 1, causal) * both


class MemoryCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of an operator that only moves bytes: floor + bytes / (bandwidth x efficiency)."""

    memory_bytes_per_s: float
    efficiency: float = 0.85
    floor_s: float = 2e-6

    def time_s(self, num_bytes: Numbers) -> FloatArray:
        """Seconds to read and write `num_bytes` in all."""
        moved = np.asarray(num_bytes, dtype=np.float64)
        return np.asarray(
            self.floor_s + moved / (self.memory_bytes_per_s * self.efficiency), dtype=np.float64
        )


def smooth_max(first: FloatArray, second: FloatArray, sharpness: float) -> FloatArray:
    """(first^p + second^p)^(1/p), which is the maximum for large p and the sum for p = 1; no overflow."""
    large = np.maximum(first, second)
    ratio = np.minimum(first, second) / np.maximum(large, 1e-300)
    if sharpness == 4.0:  # two roots are several times quicker than two general powers
        fourth = ratio * ratio
        return np.asarray(large * np.sqrt(np.sqrt(1.0 + fourth * fourth)), dtype=np.float64)
    return np.asarray(large * (1.0 + ratio**sharpness) ** (1.0 / sharpness), dtype=np.float64)


def _mean_keys_seen(queries: FloatArray, keys: FloatArray, block: int, causal: bool) -> FloatArray:
    """Keys that a block of queries visits, on average over the blocks; the diagonal block counts whole."""
    if not causal:
        return keys
    # Query i of q sees keys up to k - q + i; summed over blocks: k - (q - block) / 2. With fewer keys than
    # queries the first q - k queries see none.
    whole = keys - np.maximum(queries - block, 0.0) / 2.0
    short = keys * (keys + block) / (2.0 * np.maximum(queries, 1.0))
    return np.asarray(
        np.where(keys >= queries, np.maximum(whole, 1.0), np.minimum(short, keys)), dtype=np.float64
    )


def _floats(*values: Numbers) -> tuple[FloatArray, ...]:
    return tuple(np.asarray(value, dtype=np.float64) for value in values)
