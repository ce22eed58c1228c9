"""Kernel curves for chips that were not probed: fitted parameters by chip, by family, or defaults.

The parameters lie in `catalog/calibration/matmul.json` and `attention.json`, written by the scripts under
`calibration/`. They are relative to the data sheet (efficiencies), so that a chip with twice the memory
bandwidth is priced as such; cores come from the chip's description, or from the calibration where that is
silent.
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Any, Final

import msgspec
import numpy as np

from groundplane.perfmodel.correction import GridCorrection
from groundplane.perfmodel.curves import AttentionCurve, MatmulCurve, MemoryCurve
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

_MEASURED_AS: Final = {"fp16": "bf16", "tf32": "bf16", "int8": "fp8", "fp32": "bf16"}
"""Format whose curve a format takes, with its own peak and element size, where it was not timed itself."""

ANY: Final = "any"
"""Name of the curve that is the mean of all chips."""

_ATTENTION_SHARE: Final = 0.65
"""Rate of attention over that of products, where attention was not timed."""

_USUAL_SHARE: Final = 0.78
"""Share of peak that a large product usually reaches on the chips of the tables."""

_SAME_CORES: Final = {(name, name) for name in _BYTES} | {("fp16", "bf16")}
"""Formats whose borrowed curve was timed on the same units, so that core rates compare."""

_CPU_TILES: Final = ((16, 64),)
_FEW_CORES: Final = 16
"""Chips with fewer cores have very wide ones (TPU, NeuronCore): no waves, but padding to the array's edge."""


class FittedCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fitted curve: parameters by field name, correction, and how it did on what it had not seen."""

    name: str
    dtype: str
    parameters: dict[str, float]
    residuals: Evidence
    correction: tuple[float, ...] = ()
    num_cores: int | None = None
    core_flops_per_s: float | None = None
    """For a family: peak of one core of its members, on average."""


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A calibration file: curves by chip and by family, and what they were fitted to."""

    source: str
    form: str
    axes: tuple[tuple[float, ...], ...]
    families: dict[str, str]
    """Pattern of chip names -> family."""
    chips: tuple[FittedCurve, ...]
    family_curves: tuple[FittedCurve, ...]
    best_rates: dict[str, dict[str, float]] = {}
    """Best rate that anyone measured for a large product, FLOP/s, by chip and format."""
    best_rates_source: str = ""


@functools.cache
def calibration(kind: str) -> Calibration:
    """The shipped calibration of one kind of kernel ("matmul", "attention")."""
    text = resources.files("groundplane.catalog").joinpath("calibration", f"{kind}.json").read_bytes()
    return msgspec.json.decode(text, type=Calibration)


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
    """The curve from the data sheet alone, with defaults for all that a data sheet does not say."""
    name = canonical_dtype(dtype)
    curve = MatmulCurve(
        peak_flops_per_s=chip.peak("fp8" if name == "fp8_block" else name),
        memory_bytes_per_s=chip.memory_bytes_per_s,
        num_cores=chip.num_cores or 128,
        input_bytes=_BYTES[name],
        output_bytes=4.0 if name in ("fp32", "tf32") else 2.0,
    )
    if chip.kind == "cpu":
        return msgspec.structs.replace(
            curve,
            tiles=_CPU_TILES,
            fill_k=32.0,
            wave_weight=0.2,
            floor_s=2e-6,
            tile_load=0.0,
            loop_s_per_k=0.0,
        )
    if (chip.num_cores or 128) < _FEW_CORES:
        return msgspec.structs.replace(
            curve, tiles=((256, 256),), wave_weight=0.0, tile_load=0.0, loop_s_per_k=0.0
        )
    return curve


def matmul(chip: ChipSpec, dtype: str) -> tuple[MatmulCurve, Evidence]:
    """The curve for products of a format on a chip, with its evidence."""
    base = base_curve(chip, dtype)
    if chip.kind == "cpu":
        return base, Evidence("data-sheet", 0.6, 1.0, 1.8, 0, "data sheet of a CPU and defaults")
    table = calibration("matmul")
    name = _timed_format(chip, canonical_dtype(dtype))
    found = _find(table, chip, name)
    if found is None:
        curve, evidence = base, Evidence("data-sheet", 0.7, 1.0, 1.45, 0, "data sheet and defaults")
    else:
        fitted, evidence = found
        wide = (chip.num_cores or 128) < _FEW_CORES
        kept = ("efficiency", "memory_efficiency", "floor_s") if wide else tuple(fitted.parameters)
        changes: dict[str, Any] = {key: fitted.parameters[key] for key in kept}
        if fitted.correction and not wide:
            changes["correction"] = GridCorrection(axes=table.axes, values=fitted.correction)
        if chip.num_cores is None and fitted.num_cores is not None:
            changes["num_cores"] = fitted.num_cores
        curve = msgspec.structs.replace(base, **changes)
        if fitted.core_flops_per_s is not None and (name, fitted.dtype) in _SAME_CORES:
            evidence = _stretched(evidence, curve, fitted.core_flops_per_s)
            curve = _relieved(curve, fitted.core_flops_per_s)
    best = table.best_rates.get(chip.name, {}).get(name)
    if best is not None and evidence.grade != "measured":
        return _scaled_to(curve, best), Evidence("family", 0.85, 1.0, 1.2, 1, table.best_rates_source)
    return curve, evidence


def weight_gradient(chip: ChipSpec, curve: MatmulCurve) -> MatmulCurve:
    """The curve for weight gradients, from that for forward products.

    Their long loop runs over tokens, both operands are read against their storage order, and the result is
    added to a float32 gradient (read and written: 8 bytes an element). SimuMax measured 0.45-0.75 of peak
    against 0.5-0.8 forward on A100, a ratio of 0.93.
    """
    rate = 1.0 if chip.kind == "cpu" else 0.93
    return msgspec.structs.replace(curve, efficiency=curve.efficiency * rate, output_bytes=8.0)


def attention(
    chip: ChipSpec, dtype: str, product: MatmulCurve, product_evidence: Evidence
) -> tuple[AttentionCurve, Evidence]:
    """The curve for fused attention: fitted, or from that for products where attention was not timed."""
    is_cpu = chip.kind == "cpu"
    base = AttentionCurve(
        peak_flops_per_s=product.peak_flops_per_s,
        memory_bytes_per_s=product.memory_bytes_per_s,
        num_cores=product.num_cores,
        element_bytes=max(2.0, product.input_bytes),
        efficiency=product.efficiency * (0.4 if is_cpu else _ATTENTION_SHARE),
        memory_efficiency=product.memory_efficiency,
        floor_s=product.floor_s * 2.5,
        block_q=32 if is_cpu else 128,
    )
    found = (
        None if is_cpu else _find(calibration("attention"), chip, _timed_format(chip, canonical_dtype(dtype)))
    )
    if found is None:
        spread = 1.6 if product_evidence.grade == "data-sheet" else 1.35
        return base, Evidence("data-sheet", 1 / spread, 1.0, spread, 0, "share of the rate of products")
    fitted, evidence = found
    changes: dict[str, Any] = dict(fitted.parameters)
    if fitted.name == ANY:
        # A chip that reaches less of its peak in products does so in attention.
        changes["efficiency"] *= min(1.0, _reached(product) / (_USUAL_SHARE * product.peak_flops_per_s))
    elif fitted.core_flops_per_s is not None:
        slower = _slower(base.peak_flops_per_s / base.num_cores, fitted.core_flops_per_s)
        changes["efficiency"] = 1.0 - (1.0 - changes["efficiency"]) * slower
        changes["fill_blocks"] *= slower
        evidence = _stretched(evidence, product, fitted.core_flops_per_s)
    if fitted.correction:
        changes["correction"] = GridCorrection(axes=calibration("attention").axes, values=fitted.correction)
    return msgspec.structs.replace(base, **changes), evidence


def memory(chip: ChipSpec) -> tuple[MemoryCurve, Evidence]:
    """The curve for memory-bound operators; the rate is what products that only stream weights reach."""
    found = None if chip.kind == "cpu" else _find(calibration("matmul"), chip, "bf16")
    if found is None:
        curve = MemoryCurve(memory_bytes_per_s=chip.memory_bytes_per_s)
        return curve, Evidence("data-sheet", 0.85, 1.0, 1.25, 0, "data sheet x 0.85")
    fitted, evidence = found
    curve = MemoryCurve(
        memory_bytes_per_s=chip.memory_bytes_per_s, efficiency=fitted.parameters["memory_efficiency"]
    )
    return curve, msgspec.structs.replace(
        evidence, ratio_p10=0.88, ratio_p90=1.15, source="streaming rate of thin products: " + evidence.source
    )


def family_of(table: Calibration, chip_name: str) -> str | None:
    """The family of a chip, by its name."""
    return next((family for pattern, family in table.families.items() if re.search(pattern, chip_name)), None)


def _timed_format(chip: ChipSpec, dtype: str) -> str:
    """The format whose timings price `dtype` on the chip: its own, unless the chip computes it as another."""
    stands_in = "fp8" if dtype == "fp8_block" else dtype
    if dtype in ("fp8", "fp8_block", "fp4") and stands_in not in chip.peak_flops_per_s:
        return _timed_format(chip, {"fp4": "fp8"}.get(dtype, "bf16"))
    return dtype


def _find(table: Calibration, chip: ChipSpec, dtype: str) -> tuple[FittedCurve, Evidence] | None:
    """The nearest fitted curve: the chip's, its family's, then those of all chips; own format before kin."""
    family = family_of(table, chip.name)
    formats = (dtype, _MEASURED_AS[dtype]) if dtype in _MEASURED_AS else (dtype,)
    for curves, key in (
        (table.chips, chip.name),
        (table.family_curves, family),
        (table.family_curves, "any"),
    ):
        for name in formats:
            for curve in curves:
                if curve.name == key and curve.dtype == name:
                    return curve, _as_kin(curve.residuals, dtype, name)
    return None


def _as_kin(residuals: Evidence, dtype: str, timed: str) -> Evidence:
    if timed == dtype or (dtype, timed) == ("fp16", "bf16"):
        return residuals
    return msgspec.structs.replace(
        residuals,
        grade="family" if residuals.grade == "measured" else residuals.grade,
        ratio_p10=residuals.ratio_p10 * 0.9,
        ratio_p90=residuals.ratio_p90 * 1.1,
        source=f"{residuals.source}, timed in {timed}",
    )


def _relieved(curve: MatmulCurve, member_core_flops_per_s: float) -> MatmulCurve:
    """The curve of a chip whose cores are slower than its family's: less is lost where less is demanded.

    What a core loses to power, caches and pipelines grows with the rate it is driven at, so that a chip of
    the same design at a quarter of the rate (H20 beside H100) loses a quarter of the share. Loading tiles
    and filling pipelines take the same time, hence fewer of its FLOPs.
    """
    slower = _slower(curve.peak_flops_per_s / curve.num_cores, member_core_flops_per_s)
    share = _reached(curve) / curve.peak_flops_per_s
    eased = msgspec.structs.replace(curve, tile_load=curve.tile_load * slower, fill_k=curve.fill_k * slower)
    wanted = (1.0 - (1.0 - share) * slower) * curve.peak_flops_per_s
    return msgspec.structs.replace(eased, efficiency=eased.efficiency * wanted / _reached(eased))


def _stretched(evidence: Evidence, curve: MatmulCurve, member_core_flops_per_s: float) -> Evidence:
    """A wider interval the slower a chip's cores are beside its family's: up to twice as wide."""
    slower = _slower(curve.peak_flops_per_s / curve.num_cores, member_core_flops_per_s)
    power = 2.0 - slower
    return msgspec.structs.replace(
        evidence, ratio_p10=evidence.ratio_p10**power, ratio_p90=evidence.ratio_p90**power
    )


def _slower(core_flops_per_s: float, member_core_flops_per_s: float) -> float:
    return min(1.0, core_flops_per_s / member_core_flops_per_s)


def _scaled_to(curve: MatmulCurve, best_flops_per_s: float) -> MatmulCurve:
    """The curve at the efficiency with which a large product comes within 4 % of the best measured rate."""
    return msgspec.structs.replace(
        curve, efficiency=curve.efficiency * 0.96 * best_flops_per_s / _reached(curve)
    )


def _reached(curve: MatmulCurve) -> float:
    """FLOP/s of a large square product."""
    edge = np.array(8192.0)
    return 2.0 * 8192.0**3 / float(curve.time_s(edge, edge, edge))
