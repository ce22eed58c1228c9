"""Kernel curves for chips that were not probed: fitted parameters by chip, by family, or by data sheet."""

from __future__ import annotations

from typing import Final

import msgspec

from groundplane.perfmodel.curves import AttentionCurve, MatmulCurve, MemoryCurve, Tile
from groundplane.perfmodel.evidence import Evidence
from groundplane.spec.cluster import ChipSpec
from groundplane.spec.errors import unknown_name

_BYTES: Final = {
    "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "fp4": 0.5, "int8": 1.0,
}  # fmt: skip
"""Bytes of one operand element; results are written in bf16, those of fp32 and tf32 in fp32."""

_SPELLINGS: Final = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "nvfp4": "fp4", "mxfp4": "fp4",
    "mxfp8": "fp8_block", "float8": "fp8", "float8_e4m3": "fp8",
}  # fmt: skip

_CPU_TILES: Final = (Tile(16, 64),)


def canonical_dtype(dtype: str) -> str:
    """The format under the name used here.

    Raises:
        InputError: not a format that products can be priced in.
    """
    name = _SPELLINGS.get(dtype, dtype)
    if name not in _BYTES:
        raise unknown_name("number format", dtype, (*_BYTES, *_SPELLINGS))
    return name


def base_curve(chip: ChipSpec, dtype: str) -> MatmulCurve:
    """The curve from the data sheet alone, with shared defaults for all that a data sheet does not say."""
    name = canonical_dtype(dtype)
    is_cpu = chip.kind == "cpu"
    output_bytes = 4.0 if name in ("fp32", "tf32") else 2.0
    curve = MatmulCurve(
        peak_flops_per_s=chip.peak("fp8" if name == "fp8_block" else name),
        memory_bytes_per_s=chip.memory_bytes_per_s,
        num_cores=chip.num_cores or 1,
        input_bytes=_BYTES[name],
        output_bytes=output_bytes,
    )
    if is_cpu:
        return msgspec.structs.replace(curve, tiles=_CPU_TILES, fill_k=32.0, wave_weight=0.2, floor_s=2e-6)
    if (chip.num_cores or 0) < 16:
        # A TPU or NeuronCore has few, very wide cores: quantisation is that of the systolic array, not of
        # waves.
        return msgspec.structs.replace(curve, tiles=(Tile(256, 256),), wave_weight=0.0)
    return curve


def matmul(chip: ChipSpec, dtype: str) -> tuple[MatmulCurve, Evidence]:
    """The curve for products of a format on a chip, with its evidence."""
    return base_curve(chip, dtype), Evidence(
        "data-sheet", 0.75, 1.0, 1.35, 0, "data sheet and shared defaults"
    )


def weight_gradient(chip: ChipSpec, curve: MatmulCurve) -> MatmulCurve:
    """The curve for weight gradients, from that for forward products.

    Their long loop runs over tokens, both operands are read against their storage order, and the result is
    added to a float32 gradient (read and written: 8 bytes an element). SimuMax measured 0.45-0.75 of peak
    against 0.5-0.8 forward on A100, a ratio of 0.93.
    """
    rate = 1.0 if chip.kind == "cpu" else 0.93
    return msgspec.structs.replace(curve, efficiency=curve.efficiency * rate, output_bytes=8.0)


def attention(
    chip: ChipSpec, dtype: str, product: MatmulCurve, evidence: Evidence
) -> tuple[AttentionCurve, Evidence]:
    """The curve for fused attention, from that for products of the same format where nothing better is known."""
    is_cpu = chip.kind == "cpu"
    curve = AttentionCurve(
        peak_flops_per_s=product.peak_flops_per_s,
        memory_bytes_per_s=product.memory_bytes_per_s,
        num_cores=product.num_cores,
        element_bytes=_BYTES[canonical_dtype(dtype)],
        efficiency=product.efficiency * (0.4 if is_cpu else 0.75),
        memory_efficiency=product.memory_efficiency,
        floor_s=product.floor_s,
        block_q=32 if is_cpu else 128,
        block_kv=128,
    )
    spread = 1.6 if evidence.grade == "data-sheet" else 1.35
    return curve, Evidence("data-sheet", 1 / spread, 1.0, spread, 0, "products of the same format x 0.75")


def memory(chip: ChipSpec) -> tuple[MemoryCurve, Evidence]:
    """The curve for memory-bound operators."""
    curve = MemoryCurve(memory_bytes_per_s=chip.memory_bytes_per_s)
    return curve, Evidence("data-sheet", 0.85, 1.0, 1.2, 0, "data sheet x 0.85")
