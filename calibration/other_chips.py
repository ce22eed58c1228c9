"""Kernel prices on chips that had no part in any fit: InferSim's tables of H20 and H800 (alibaba/InferSim).

Nothing is fitted here; `fit_kernels.py` puts the errors at the end of its report.
"""

from __future__ import annotations

import csv
from pathlib import Path

import common
import numpy as np

from groundplane.perfmodel.kernels import attention_time_s, matmul_time_s


def errors() -> list[str]:
    """Errors on chips that had no part in any fit: InferSim's tables of H20 and H800."""
    folder = common.measured_folder().parent / "traces" / "infersim-bench"
    lines = [
        "## Chips with no part in the fit (InferSim)",
        "",
        "| what | n | median | p90 | bias |",
        "|---|---|---|---|---|",
    ]
    for name in ("h20", "h800"):
        chip = common.table_chip(name)
        with (folder / "gemm" / name / "data.csv").open(encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
        m, n, k, measured = (
            np.array([float(row[key]) for row in rows]) for key in ("m", "n", "k", "latency_us")
        )
        guess = matmul_time_s(chip, "fp8_block", m, n, k, cast=False)
        lines.append(
            f"| {name} fp8 products, no cast | {m.size} | {common.error_line(measured * 1e-6 / guess)} |"
        )
    for name, kind in (("h20", "prefill"), ("h20", "decode"), ("h800", "decode")):
        ratios = attention_ratios(folder / "mha" / kind / name, name, kind)
        lines.append(
            f"| {name} bf16 attention, {kind} | {len(ratios)} | {common.error_line(np.array(ratios))} |"
        )
    for name, kind in (("h800", "prefill"), ("h800", "decode"), ("h20", "prefill"), ("h20", "decode")):
        ratios = expert_ratios(folder / "grouped_gemm" / kind / name / "data.csv", name)
        line = common.error_line(np.array(ratios))
        lines.append(f"| {name} fp8 experts' products, {kind} | {len(ratios)} | {line} |")
    return [*lines, ""]


def attention_ratios(folder: Path, name: str, kind: str) -> list[float]:
    """Measured over predicted attention of one chip; file names give heads, key heads and width."""
    chip = common.table_chip(name)
    ratios = []
    for path in sorted(folder.glob("*.csv")):
        heads, kv_heads, width = (int(part) for part in path.stem.split("-"))
        with path.open(encoding="utf-8") as handle:
            for row in csv.DictReader(handle):
                if "latency_us" not in row:
                    break  # one file has no line of column names
                if row["dtype"] != "bf16" or row.get("kv_dtype", "bf16") != "bf16":
                    continue
                keys = float(row["seq_len"] if kind == "prefill" else row["kv_len"])
                queries, batch = (keys, 1.0) if kind == "prefill" else (1.0, float(row["batch_size"]))
                guess = attention_time_s(chip, "bf16", batch, queries, keys, heads, kv_heads, width)
                ratios.append(float(row["latency_us"]) * 1e-6 / float(guess))
    return ratios


def expert_ratios(path: Path, name: str) -> list[float]:
    """Measured over predicted grouped products of experts: gate and up in one, without the cast."""
    chip = common.table_chip(name)
    ratios = []
    with path.open(encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            tokens, experts = float(row["tokens_per_expert"]), float(row["num_local_experts"])
            hidden, inner = float(row["hidden_size"]), float(row["intermediate_size"])
            guess = matmul_time_s(chip, "fp8_block", tokens, 2 * inner, hidden, experts, cast=False)
            ratios.append(float(row["up_proj_us"]) * 1e-6 / float(guess))
    return ratios
