"""The curves that price one kernel: matrix product, attention, memory-bound operator.

Each curve is physics with few fitted numbers: a roofline whose two roofs join smoothly, tile and wave
quantisation over the cores of the chip, the fill of the loop over k, a floor for the kernel itself. Curves
know neither chips nor files: `kernels.py` finds the curve for a chip, `kernel_fit.py` fits one to points.

All evaluations are vectorised: shape arguments broadcast as numpy arrays, results are float64 seconds.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Numbers = npt.ArrayLike
"""A number or an array of numbers; arrays broadcast against each other."""


class Tile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tile shape that a matrix-product kernel may compute per core.

    `rate` is the share of the curve's best rate that the inner loop of this tile reaches: small tiles load
    more bytes per FLOP from cache.
    """

    m: int
    n: int
    rate: float = 1.0


class MatmulCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of a product of (m, k) by (k, n), from physics and eight fitted numbers.

    Time = floor + (compute^p + memory^p)^(1/p), p = `sharpness`: a smooth maximum, since loads and products
    overlap but not perfectly near the ridge.

    compute = min over tiles of waves x tile_m x tile_n x 2 x (k + fill_k) / (rate x core rate). `waves` is
    tiles / cores, rounded up by the share `wave_weight` (1: a hard tail, 0: perfectly balanced, as split-k
    and stream-k schedules approach). memory = bytes of both operands and of the result at
    `memory_bytes_per_s`.
    """

    peak_flops_per_s: float
    memory_bytes_per_s: float
    num_cores: int
    input_bytes: float
    output_bytes: float
    efficiency: float = 0.8
    memory_efficiency: float = 0.85
    floor_s: float = 3e-6
    fill_k: float = 128.0
    wave_weight: float = 0.5
    sharpness: float = 3.0
    tiles: tuple[Tile, ...] = (Tile(256, 128), Tile(128, 128, 0.95), Tile(128, 64, 0.8), Tile(64, 64, 0.65))

    def time_s(self, m: Numbers, n: Numbers, k: Numbers, batch: Numbers = 1) -> FloatArray:
        """Seconds of `batch` independent products in one kernel.

        Args:
            m, n, k: the product is (m, k) by (k, n).
            batch: independent products of the same shape launched together (grouped or batched).
        """
        rows, columns, depth, count = _floats(m, n, k, batch)
        compute_s = self.compute_time_s(rows, columns, depth, count)
        moved = count * ((rows + columns) * depth * self.input_bytes + rows * columns * self.output_bytes)
        memory_s = moved / (self.memory_bytes_per_s * self.memory_efficiency)
        return self.floor_s + smooth_max(compute_s, memory_s, self.sharpness)

    def compute_time_s(
        self, rows: FloatArray, columns: FloatArray, depth: FloatArray, count: FloatArray
    ) -> FloatArray:
        """Seconds the cores are busy with the best tile, without floor and memory."""
        core_flops_per_s = self.peak_flops_per_s * self.efficiency / self.num_cores
        best: FloatArray | None = None
        for tile in self.tiles:
            num_tiles = np.ceil(rows / tile.m) * np.ceil(columns / tile.n) * count
            even = num_tiles / self.num_cores
            waves = even + self.wave_weight * (np.ceil(even) - even)
            busy_s = waves * (2.0 * tile.m * tile.n / (tile.rate * core_flops_per_s))
            best = busy_s if best is None else np.minimum(best, busy_s)
        if best is None:
            raise ValueError("a matmul curve needs at least one tile")
        return best * (depth + self.fill_k)


class AttentionCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of fused attention (online softmax, nothing of seq_q x seq_kv is stored).

    Time = floor + (compute^p + memory^p)^(1/p). compute = FLOPs over the blocks the mask leaves, times
    1 + fill / blocks along the keys, over peak x `efficiency`, with the waves of (batch x heads x query
    blocks) over the cores rounded up by `wave_weight`. Backward is `backward_flops` times the products of
    forward (two in forward; five in backward, with the scores computed anew: FlashAttention-2, section 3.1.2)
    at `backward_efficiency` of the forward rate.
    """

    peak_flops_per_s: float
    memory_bytes_per_s: float
    num_cores: int
    element_bytes: float
    efficiency: float = 0.6
    memory_efficiency: float = 0.85
    floor_s: float = 5e-6
    block_q: int = 128
    block_kv: int = 128
    fill_blocks: float = 2.0
    wave_weight: float = 0.5
    sharpness: float = 3.0
    backward_flops: float = 2.5
    backward_efficiency: float = 0.8

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
    ) -> FloatArray:
        """Seconds of attention of one layer.

        Args:
            batch: sequences.
            seq_q, seq_kv: queries and keys of each; with `causal` the last query sees the last key.
            heads, kv_heads: query heads and key/value heads (grouped queries).
            head_dim: width of queries and keys; `value_dim` that of values, where it differs (MLA).
            causal: the mask leaves the lower triangle.
            backward: the backward pass instead of the forward one.
        """
        count, queries, keys, num_heads, num_kv, width = _floats(
            batch, seq_q, seq_kv, heads, kv_heads, head_dim
        )
        values = width if value_dim is None else np.asarray(value_dim, dtype=np.float64)
        block_q = np.minimum(self.block_q, queries)
        rows = np.ceil(queries / self.block_q)
        seen = np.where(causal & (keys >= queries), keys - (queries - block_q) / 2.0, keys)
        if causal:
            seen = np.where(keys < queries, np.maximum(keys / 2.0, 1.0), seen)
        columns = seen / self.block_kv + self.fill_blocks
        block_flops = 2.0 * self.block_q * self.block_kv * (width + values)
        even = count * num_heads * rows / self.num_cores
        waves = even + self.wave_weight * (np.ceil(even) - even)
        core_flops_per_s = self.peak_flops_per_s * self.efficiency / self.num_cores
        compute_s = waves * columns * block_flops / core_flops_per_s
        moved = count * (num_heads * queries + num_kv * keys) * (width + values) * self.element_bytes
        if backward:
            compute_s = compute_s * (self.backward_flops / self.backward_efficiency)
            moved = moved * self.backward_flops
        memory_s = moved / (self.memory_bytes_per_s * self.memory_efficiency)
        return self.floor_s + smooth_max(compute_s, memory_s, self.sharpness)


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
    small = np.minimum(first, second)
    ratio = small / np.maximum(large, 1e-300)
    result: FloatArray = large * (1.0 + ratio**sharpness) ** (1.0 / sharpness)
    return result


def _floats(*values: Numbers) -> tuple[FloatArray, ...]:
    return tuple(np.asarray(value, dtype=np.float64) for value in values)


def replace(curve: Any, **changes: Any) -> Any:
    """The curve with some numbers changed."""
    return msgspec.structs.replace(curve, **changes)
