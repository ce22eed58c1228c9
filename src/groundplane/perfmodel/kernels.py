"""What one kernel costs on one chip: the entry to all kernel curves.

A chip's curve comes from the best evidence there is, in this order: points measured on this very machine
(`ChipSpec.measured`, written by `groundplane probe`), parameters fitted to published tables for this chip,
parameters of its family, the data sheet alone. `kernel_evidence` says which one it was and how far such
predictions were off where they could be checked. Knows nothing of layers, models or collectives.
"""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np

from groundplane.perfmodel import kernel_catalogue, kernel_fit
from groundplane.perfmodel.curves import AttentionCurve, MatmulCurve, MemoryCurve
from groundplane.perfmodel.evidence import Evidence, FloatArray, Numbers
from groundplane.spec.cluster import ChipSpec
from groundplane.spec.errors import unknown_name

Which = Literal["forward", "data_gradient", "weight_gradient"]
KernelKind = Literal["matmul", "attention", "memory"]


def matmul_time_s(
    chip: ChipSpec,
    dtype: str,
    m: Numbers,
    n: Numbers,
    k: Numbers,
    batch: Numbers = 1,
    which: Which = "forward",
    cast: bool = True,
) -> FloatArray:
    """Seconds of one pass of a linear layer, in one kernel.

    The shape is always that of the forward product, (m, k) by (k, n) -> (m, n), m being tokens; `which` turns
    it: the data gradient is (m, n) by (n, k), the weight gradient (k, m) by (m, n), accumulated into a
    float32 gradient. Arrays broadcast.

    Args:
        chip: the chip.
        dtype: format of the operands: bf16, fp16, fp32, tf32, fp8 (one scale a tensor), fp8_block (a scale
            a block), fp4 (nvfp4, mxfp4), int8.
        m, n, k: tokens, output features, input features.
        batch: independent products of one shape in one launch (experts, heads).
        which: which of the three passes.
        cast: with the pass that quantises the first operand (fp8, fp4) before the product.

    Raises:
        InputError: unknown format, or the chip has no rate for it.
    """
    curve = matmul_curve(chip, dtype)
    rows, columns, depth = (np.asarray(value, dtype=np.float64) for value in (m, n, k))
    if which == "forward":
        return curve.time_s(rows, columns, depth, batch, cast=cast)
    if which == "data_gradient":
        return curve.time_s(rows, depth, columns, batch, cast=cast)
    if which == "weight_gradient":
        return weight_gradient_curve(chip, dtype).time_s(depth, columns, rows, batch, cast=cast)
    raise unknown_name("pass", which, ("forward", "data_gradient", "weight_gradient"))


def attention_time_s(
    chip: ChipSpec,
    dtype: str,
    batch: Numbers,
    seq_q: Numbers,
    seq_kv: Numbers,
    heads: Numbers,
    kv_heads: Numbers,
    head_dim: Numbers,
    causal: bool = True,
    backward: bool = False,
    value_dim: Numbers | None = None,
    cache_write: bool = False,
) -> FloatArray:
    """Seconds of fused attention of one layer, forward or backward (see `AttentionCurve.time_s`).

    Raises:
        InputError: unknown format, or the chip has no rate for it.
    """
    return attention_curve(chip, dtype).time_s(
        batch,
        seq_q,
        seq_kv,
        heads,
        kv_heads,
        head_dim,
        value_dim=value_dim,
        causal=causal,
        backward=backward,
        cache_write=cache_write,
    )


def memory_bound_time_s(chip: ChipSpec, num_bytes: Numbers) -> FloatArray:
    """Seconds of one operator that only moves memory; `num_bytes` read and written, both counted."""
    return memory_curve(chip).time_s(num_bytes)


def launch_overhead_s(chip: ChipSpec) -> float:
    """Seconds the host needs to hand one kernel to the chip when no graph captures it.

    A lower bound on the time between kernel starts in eager execution; on a CPU it is the dispatch of one
    operator. Measured by the probe where there is one, else as the chip's description says.
    """
    measured = kernel_fit.dispatch_overhead_s(chip)
    return chip.launch_overhead_s if measured is None else measured


def kernel_evidence(chip: ChipSpec, kind: KernelKind, dtype: str = "bf16") -> Evidence:
    """What stands behind the prices of one kind of kernel on a chip: grade, spread of residuals, source."""
    if kind == "matmul":
        return _matmul(chip.name, _Chip(chip), dtype)[1]
    if kind == "attention":
        return _attention(chip.name, _Chip(chip), dtype)[1]
    if kind == "memory":
        return _memory(chip.name, _Chip(chip))[1]
    raise unknown_name("kind of kernel", kind, ("matmul", "attention", "memory"))


def matmul_curve(chip: ChipSpec, dtype: str) -> MatmulCurve:
    """The curve that prices forward products of a format on a chip."""
    return _matmul(chip.name, _Chip(chip), dtype)[0]


def weight_gradient_curve(chip: ChipSpec, dtype: str) -> MatmulCurve:
    """As `matmul_curve`, for weight gradients: slower, with a float32 result read and written."""
    return _weight_gradient(chip.name, _Chip(chip), dtype)


def attention_curve(chip: ChipSpec, dtype: str) -> AttentionCurve:
    """The curve that prices attention on a chip."""
    return _attention(chip.name, _Chip(chip), dtype)[0]


def memory_curve(chip: ChipSpec) -> MemoryCurve:
    """The curve that prices memory-bound operators on a chip."""
    return _memory(chip.name, _Chip(chip))[0]


class _Chip:
    """A chip as a cache key: specs hold dicts and cannot be hashed, but never change."""

    __slots__ = ("spec",)

    def __init__(self, spec: ChipSpec) -> None:
        self.spec = spec

    def __hash__(self) -> int:
        return hash((self.spec.name, self.spec.memory_bytes_per_s))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Chip) and (self.spec is other.spec or self.spec == other.spec)


@functools.lru_cache(maxsize=1024)
def _matmul(name: str, key: _Chip, dtype: str) -> tuple[MatmulCurve, Evidence]:  # noqa: ARG001
    fitted = kernel_fit.measured_matmul(key.spec, dtype)
    return fitted if fitted is not None else kernel_catalogue.matmul(key.spec, dtype)


@functools.lru_cache(maxsize=1024)
def _weight_gradient(name: str, key: _Chip, dtype: str) -> MatmulCurve:
    curve, _ = _matmul(name, key, dtype)
    return kernel_catalogue.weight_gradient(key.spec, curve)


@functools.lru_cache(maxsize=1024)
def _attention(name: str, key: _Chip, dtype: str) -> tuple[AttentionCurve, Evidence]:
    matmul, evidence = _matmul(name, key, dtype)
    return kernel_catalogue.attention(key.spec, dtype, matmul, evidence)


@functools.lru_cache(maxsize=1024)
def _memory(name: str, key: _Chip) -> tuple[MemoryCurve, Evidence]:  # noqa: ARG001
    fitted = kernel_fit.measured_memory(key.spec)
    return fitted if fitted is not None else kernel_catalogue.memory(key.spec)
