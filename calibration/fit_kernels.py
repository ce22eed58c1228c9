"""Fits the kernel curves to the published tables and writes parameters, residuals and the manifest.

    python calibration/fit_kernels.py            # about two minutes on one core

Every error printed is of rows that the fit has not seen: whole (n, k) pairs of products, whole (batch, heads,
kv heads) groups of attention, or a whole chip.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import other_chips

from groundplane.perfmodel.correction import GridCorrection, fit_correction
from groundplane.perfmodel.curves import AttentionCurve, MatmulCurve
from groundplane.perfmodel.evidence import FloatArray, evidence_of
from groundplane.perfmodel.kernel_catalogue import base_curve, calibration
from groundplane.perfmodel.kernel_fit import fit_curve
from groundplane.spec.cluster import ChipSpec

SOURCE = "NVIDIA aiconfigurator, ai-dynamo/aiconfigurator@095f58a, timed in TensorRT-LLM (B60: vLLM)"
DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "fp4"}
FAMILIES = {
    "^v100": "volta",
    "^(a100|a800)": "ampere",
    "^(h100|h200|h800|h20|gh200)": "hopper",
    "^(b100|b200|gb200)": "blackwell",
    "^(b300|gb300)": "blackwell-ultra",
    "^(rtx-pro-6000|rtx-5090)": "blackwell-workstation",
    "^(l4|l40s|rtx-4090)": "ada",
    "b60": "xe",
}
CORES = {"rtx-pro-6000": 188, "b60": 20}
"""Streaming multiprocessors or Xe cores where the catalogue has none (vendor pages; general knowledge)."""

MATMUL_AXES = ((6.0, 9.0, 12.0, 15.0), (10.0, 12.0, 14.0, 16.0), (10.0, 12.0, 14.0, 16.0))
ATTENTION_AXES = ((3.0, 6.0, 9.6), (10.0, 12.0, 14.0), (0.0, 3.0, 7.0))
MATMUL_SPREAD = {
    "efficiency": 0.15, "memory_efficiency": 0.08, "floor_s": 0.5, "fill_k": 0.7, "wave_weight": 0.6,
    "sharpness": 0.4, "tile_load": 0.5, "loop_s_per_k": 0.7,
}  # fmt: skip
ATTENTION_SPREAD = {
    "efficiency": 0.3, "memory_efficiency": 0.08, "floor_s": 0.6, "fill_blocks": 0.7, "wave_weight": 0.6,
    "sharpness": 0.4, "cache_passes": 0.8,
}  # fmt: skip
MATMUL_START = {
    "bf16": {"floor_s": 3e-6, "loop_s_per_k": 2e-10},
    "fp8": {"floor_s": 1.2e-5, "loop_s_per_k": 2e-10, "cast_bytes": 6.0},
    "fp8_block": {"floor_s": 5e-6, "loop_s_per_k": 3e-10, "cast_bytes": 3.0},
    "fp4": {"floor_s": 8e-6, "loop_s_per_k": 1.5e-9, "cast_bytes": 3.0},
}


@dataclass(frozen=True)
class Table:
    """All rows of one chip and format: `columns` are the curve's shape arguments, times in seconds."""

    chip: ChipSpec
    dtype: str
    columns: tuple[FloatArray, ...]
    measured_s: FloatArray
    fold: np.ndarray

    def part(self, keep: np.ndarray) -> Table:
        columns = tuple(column[keep] for column in self.columns)
        return Table(self.chip, self.dtype, columns, self.measured_s[keep], self.fold[keep])


@dataclass(frozen=True)
class Kind:
    """How one kind of kernel is fitted."""

    name: str
    axes: tuple[tuple[float, ...], ...]
    start: Callable[[ChipSpec, str], MatmulCurve | AttentionCurve]
    spread: Callable[[str], dict[str, float]]
    predict: Callable[[MatmulCurve | AttentionCurve, tuple[FloatArray, ...]], FloatArray]
    corrected_part: Callable[[MatmulCurve | AttentionCurve, tuple[FloatArray, ...]], FloatArray]
    coordinates: Callable[[tuple[FloatArray, ...]], tuple[FloatArray, ...]]


def main() -> None:
    matmul_rows = common.read_rows("kernels_gemm_measured.csv")
    attention_rows = common.read_rows("kernels_attention_measured.csv")
    report = ["# Kernel curves: errors on rows and chips that the fit has not seen", "", SOURCE, ""]
    report += run(MATMUL, matmul_tables(matmul_rows), "kernels_gemm_measured.csv")
    report += run(ATTENTION, attention_tables(attention_rows), "kernels_attention_measured.csv")
    calibration.cache_clear()
    report += other_chips.errors()
    path = common.REPOSITORY / "calibration" / "residuals_kernels.md"
    path.write_text("\n".join(report) + "\n", encoding="utf-8")
    outputs = [
        "src/groundplane/catalog/calibration/matmul.json",
        "src/groundplane/catalog/calibration/attention.json",
    ]
    inputs = {
        "kernels_gemm_measured.csv": len(matmul_rows),
        "kernels_attention_measured.csv": len(attention_rows),
        "chips.csv": 47,
    }
    common.write_manifest("kernels", "calibration/fit_kernels.py", inputs, outputs)
    sys.stdout.write("\n".join(report) + "\n")


def with_cores(chip: ChipSpec) -> ChipSpec:
    cores = next((count for part, count in CORES.items() if part in chip.name), None)
    return msgspec.structs.replace(chip, num_cores=cores) if chip.num_cores is None and cores else chip


def matmul_tables(rows: list[dict[str, str]]) -> list[Table]:
    return [
        Table(
            with_cores(common.table_chip(chip)),
            DTYPES[dtype],
            tuple(np.array([float(row[key]) for row in part]) for key in ("m", "n", "k")),
            np.array([float(row["latency_us"]) * 1e-6 for row in part]),
            common.folds_of([(row["n"], row["k"]) for row in part]),
        )
        for (chip, dtype), part in grouped(rows).items()
    ]


def attention_tables(rows: list[dict[str, str]]) -> list[Table]:
    return [
        Table(
            with_cores(common.table_chip(chip)),
            DTYPES[dtype],
            tuple(
                np.array([float(row[key]) for row in part])
                for key in ("batch", "seq", "heads", "kv_heads", "head_dim")
            ),
            np.array([float(row["latency_us"]) * 1e-6 for row in part]),
            common.folds_of([(row["batch"], row["heads"], row["kv_heads"]) for row in part]),
        )
        for (chip, dtype), part in grouped(rows).items()
    ]


def grouped(rows: list[dict[str, str]]) -> dict[tuple[str, str], list[dict[str, str]]]:
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["chip"], row["dtype"]), []).append(row)
    return groups


def matmul_start(chip: ChipSpec, dtype: str) -> MatmulCurve:
    return msgspec.structs.replace(
        base_curve(chip, dtype), tile_load=15.0, wave_weight=0.3, sharpness=3.5, **MATMUL_START[dtype]
    )


def attention_start(chip: ChipSpec, dtype: str) -> AttentionCurve:
    return AttentionCurve(
        peak_flops_per_s=chip.peak(dtype),
        memory_bytes_per_s=chip.memory_bytes_per_s,
        num_cores=chip.num_cores or 128,
        element_bytes=2.0,
        efficiency=0.55 if dtype == "bf16" else 0.4,
        cache_passes=1.5,
    )


MATMUL = Kind(
    "matmul",
    MATMUL_AXES,
    matmul_start,
    lambda dtype: MATMUL_SPREAD | ({"cast_bytes": 0.6} if dtype != "bf16" else {}),
    lambda curve, columns: curve.time_s(*columns),
    lambda curve, columns: curve.time_s(*columns) - curve.floor_s,
    lambda columns: columns,
)
ATTENTION = Kind(
    "attention",
    ATTENTION_AXES,
    attention_start,
    lambda _: ATTENTION_SPREAD,
    lambda curve, c: curve.time_s(c[0], c[1], c[1], c[2], c[3], c[4], cache_write=True),
    lambda curve, c: msgspec.structs.replace(curve, floor_s=0.0).time_s(c[0], c[1], c[1], c[2], c[3], c[4]),
    lambda c: (c[0] * c[2], c[1], c[2] / c[3]),
)


def fit(kind: Kind, table: Table) -> MatmulCurve | AttentionCurve:
    """Physics first, then the correction on what it leaves."""
    physics = fit_curve(
        kind.start(table.chip, table.dtype),
        kind.spread(table.dtype),
        table.measured_s,
        lambda curve: kind.predict(curve, table.columns),
    )
    # The correction multiplies what is not floor, so a point that is mostly floor says little about it.
    whole = kind.predict(physics, table.columns)
    fixed = whole - kind.corrected_part(physics, table.columns)
    part = np.maximum(table.measured_s - fixed, 0.2 * (whole - fixed)) / (whole - fixed)
    correction = fit_correction(
        kind.axes,
        np.log(part),
        *kind.coordinates(table.columns),
        smoothness=0.1,
        shrinkage=0.05,
        importance=(1.0 - fixed / whole) ** 2,
    )
    return msgspec.structs.replace(physics, correction=correction)


def ratio_of(kind: Kind, curve: MatmulCurve | AttentionCurve, table: Table) -> FloatArray:
    return np.asarray(table.measured_s / kind.predict(curve, table.columns), dtype=np.float64)


def mean_curve(
    kind: Kind,
    curves: list[MatmulCurve | AttentionCurve],
    start: MatmulCurve | AttentionCurve,
    dtype: str,
    *,
    corrected: bool,
) -> MatmulCurve | AttentionCurve:
    """Geometric mean of parameters and mean correction, over the data sheet of `start`."""
    values = {
        name: float(np.exp(np.mean([np.log(getattr(curve, name)) for curve in curves])))
        for name in kind.spread(dtype)
    }
    correction = None
    if corrected:
        grids = [curve.correction.values for curve in curves if curve.correction is not None]
        mean = np.mean(np.array(grids), axis=0)
        correction = GridCorrection(axes=kind.axes, values=tuple(round(float(value), 4) for value in mean))
    return msgspec.structs.replace(start, correction=correction, **values)


def run(kind: Kind, tables: list[Table], file: str) -> list[str]:
    lines = [
        f"## {kind.name}",
        "",
        "| chip | format | n | physics alone: median | p90 | bias | with correction: median | p90 | bias |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    fitted: dict[tuple[str, str], MatmulCurve | AttentionCurve] = {}
    unseen: dict[tuple[str, str], FloatArray] = {}
    for table in tables:
        key = (table.chip.name, table.dtype)
        unseen[key] = np.zeros_like(table.measured_s)
        plain = np.zeros_like(table.measured_s)
        for held in range(common.FOLDS):
            curve = fit(kind, table.part(table.fold != held))
            rest = table.part(table.fold == held)
            unseen[key][table.fold == held] = ratio_of(kind, curve, rest)
            plain[table.fold == held] = ratio_of(kind, msgspec.structs.replace(curve, correction=None), rest)
        fitted[key] = fit(kind, table)
        errors = f"{common.error_line(plain)} | {common.error_line(unseen[key])}"
        lines.append(f"| {key[0]} | {key[1]} | {plain.size} | {errors} |")
        sys.stdout.write(lines[-1] + "\n")
    pooled = np.concatenate(list(unseen.values()))
    lines += [f"| all | | {pooled.size} | | | | {common.error_line(pooled)} |", ""]
    kin_lines, kin = leave_one_chip_out(kind, tables, fitted)
    lines += kin_lines
    write(kind, tables, fitted, unseen, kin, file)
    return lines


def family(chip_name: str) -> str:
    return next(name for pattern, name in FAMILIES.items() if re.search(pattern, chip_name))


def leave_one_chip_out(
    kind: Kind, tables: list[Table], fitted: dict[tuple[str, str], MatmulCurve | AttentionCurve]
) -> tuple[list[str], dict[str, list[FloatArray]]]:
    """Errors when a chip is priced from its family, or from all other chips where it has none."""
    lines = [
        "Leave one chip out:",
        "",
        "| chip | format | from | median | p90 | bias |",
        "|---|---|---|---|---|---|",
    ]
    kin: dict[str, list[FloatArray]] = {"family": [], "any": []}
    for table in tables:
        others = {
            key: curve for key, curve in fitted.items() if key[1] == table.dtype and key[0] != table.chip.name
        }
        near = [curve for key, curve in others.items() if family(key[0]) == family(table.chip.name)]
        if not others:
            continue
        start = kind.start(table.chip, table.dtype)
        for name, curves in (("family", near), ("any", list(others.values()))):
            if curves:
                curve = mean_curve(kind, curves, start, table.dtype, corrected=name == "family")
                ratio = ratio_of(kind, curve, table)
                kin[name].append(ratio)
                lines.append(f"| {table.chip.name} | {table.dtype} | {name} | {common.error_line(ratio)} |")
    for name, ratios in kin.items():
        lines.append(f"| all | | {name} | {common.error_line(np.concatenate(ratios))} |")
    return [*lines, ""], kin


def write(
    kind: Kind,
    tables: list[Table],
    fitted: dict[tuple[str, str], MatmulCurve | AttentionCurve],
    unseen: dict[tuple[str, str], FloatArray],
    kin: dict[str, list[FloatArray]],
    file: str,
) -> None:
    def entry(
        name: str,
        dtype: str,
        curve: MatmulCurve | AttentionCurve,
        residuals: dict[str, object],
        cores: int | None,
    ) -> dict[str, object]:
        data: dict[str, object] = {"name": name, "dtype": dtype}
        data["parameters"] = {key: float(f"{getattr(curve, key):.4g}") for key in kind.spread(dtype)}
        data["residuals"] = residuals
        if cores is not None:
            data["num_cores"] = cores
        if curve.correction is not None:
            data["correction"] = list(curve.correction.values)
        return data

    chips = []
    for table in tables:
        key = (table.chip.name, table.dtype)
        evidence = evidence_of("measured", unseen[key], f"{SOURCE}; rows held out by shape")
        chips.append(entry(key[0], key[1], fitted[key], common.rounded(evidence), table.chip.num_cores))
    groups: dict[tuple[str, str], list[Table]] = {}
    for table in tables:
        groups.setdefault((family(table.chip.name), table.dtype), []).append(table)
        groups.setdefault(("any", table.dtype), []).append(table)
    kin_evidence = evidence_of("family", np.concatenate(kin["family"]), f"{SOURCE}; chip held out")
    any_evidence = evidence_of(
        "data-sheet", np.concatenate(kin["any"]), f"{SOURCE}; chip and family held out"
    )
    families: list[dict[str, object]] = []
    for (name, dtype), members in groups.items():
        curves = [fitted[member.chip.name, member.dtype] for member in members]
        curve = mean_curve(kind, curves, kind.start(members[0].chip, dtype), dtype, corrected=name != "any")
        evidence = any_evidence if name == "any" else kin_evidence
        if name != "any" and len(members) == 1:
            # One member tells nothing of how members differ: half as wide again.
            evidence = msgspec.structs.replace(
                evidence, ratio_p10=evidence.ratio_p10**1.5, ratio_p90=evidence.ratio_p90**1.5
            )
        families.append(entry(name, dtype, curve, common.rounded(evidence), None))
        if name != "any":
            cores = [curve.peak_flops_per_s / curve.num_cores for curve in curves]
            families[-1]["core_flops_per_s"] = float(f"{np.mean(cores):.4g}")
    data: dict[str, object] = {
        "source": f"{SOURCE}; {file}",
        "form": "groundplane.perfmodel.curves." + {"matmul": "MatmulCurve"}.get(kind.name, "AttentionCurve"),
        "axes": [list(axis) for axis in kind.axes],
        "families": FAMILIES,
        "chips": chips,
        "family_curves": families,
    }
    if kind.name == "matmul":
        data["best_rates"], data["best_rates_source"] = best_rates()
    common.CALIBRATION.mkdir(exist_ok=True)
    common.write_json(common.CALIBRATION / f"{kind.name}.json", data)


def best_rates() -> tuple[dict[str, dict[str, float]], str]:
    """Maximum achievable matmul FLOP/s that were measured, for chips that have no table."""
    rates: dict[str, dict[str, float]] = {}
    for row in common.read_rows("chips.csv"):
        found = {"bf16": row["mamf_bf16_tflops"], "fp8": row["mamf_fp8_tflops"]}
        kept = {dtype: float(value) * 1e12 for dtype, value in found.items() if value}
        if kept:
            rates[common.table_chip(row["chip"]).name] = kept
    return rates, "maximum achievable matmul FLOPS (MAMF), stas00/ml-engineering compute/accelerator"


if __name__ == "__main__":
    main()
