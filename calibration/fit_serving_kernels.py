"""Fits the kernel curves of serving engines to the tables that `aiconfigurator-core` ships (Apache-2.0).

    pip download --no-deps aiconfigurator-core==0.12.0   and unzip it
    python calibration/fit_serving_kernels.py FOLDER/aiconfigurator_core/systems/data

Only tables of kernels are opened, by name. Needs pyarrow. Of each chip, engine and number format the newest
version that timed it is taken; of several kernels for one shape the quickest.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import msgspec
import numpy as np
from pyarrow import parquet
from scipy.optimize import least_squares

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.serving_kernels import DecodeCurve, ExpertCurve, ProductCurve
from groundplane.spec.cluster import ChipSpec

CHIPS = {
    "a100_sxm": "a100-80gb-sxm", "h100_sxm": "h100-80gb-sxm", "h200_sxm": "h200-141gb-sxm",
    "b200_sxm": "b200-180gb-sxm", "b300_sxm": "b300-288gb-sxm", "gb200": "gb200-186gb",
    "gb300": "gb300-288gb", "l40s": "l40s", "rtx_pro_6000_server": "rtx-pro-6000-server",
}  # fmt: skip
FORMATS = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "fp4", "int4_wo": "int4_weight_only",
    "int8_wo": "int8_weight_only", "w4a8_mxfp4_mxfp8": "mxfp4", "w4a16_mxfp4": "mxfp4",
}  # fmt: skip
MOST_ROWS = 2500
HOST_BOUND_S = 5e-5
"""A format whose quickest product takes longer was timed by the host's work, not the chip's: left out."""

DISTRIBUTION = "power_law_1.01"
"""How tokens are spread over experts in the rows used."""

Columns = dict[str, np.ndarray]
Price = Callable[[Any], FloatArray]
Found = dict[str, tuple[Any, FloatArray]]


def main(folder: Path) -> None:
    used: list[dict[str, Any]] = []
    lines = [
        "# Residuals of serving kernels",
        "",
        "| curve | rows | median % | p90 % | bias % |",
        "|---|---|---|---|---|",
    ]
    found = {
        "products": _each(folder, "gemm", "gemm_perf", products, used, lines),
        "experts": _each(folder, "moe", "moe_perf", experts, used, lines),
        "decode": _each(folder, "attention", "generation_attention_perf", decode, used, lines),
        "latent": _each(folder, "mla", "generation_mla_perf", latent, used, lines),
    }
    data = {"source": "kernel tables of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0), see "
            "calibration/manifest/serving_kernels.json"} | found  # fmt: skip
    common.write_json(common.CALIBRATION / "serving_kernels.json", data)
    (common.REPOSITORY / "calibration" / "residuals_serving_kernels.md").write_text("\n".join(lines) + "\n")
    manifest = {"fit": "serving_kernels", "script": "calibration/fit_serving_kernels.py", "inputs": used,
                "outputs": ["src/groundplane/catalog/calibration/serving_kernels.json"]}  # fmt: skip
    path = common.REPOSITORY / "calibration" / "manifest" / "serving_kernels.json"
    path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _each(
    folder: Path, kind: str, table: str, fit: Callable[[ChipSpec, Columns], Found],
    used: list[dict[str, Any]], lines: list[str],
) -> dict[str, Any]:  # fmt: skip
    """Curves of all chips and engines from the tables of one kind, newest version first."""
    curves: dict[str, Any] = {}
    for short, name in CHIPS.items():
        chip = common.table_chip(name)
        for path in sorted((folder / short / kind).glob(f"*/*/{table}.parquet"), key=_version, reverse=True):
            engine = path.parent.parent.name
            table_rows = parquet.read_table(path)
            for key, (curve, ratio) in fit(
                chip, {c: _column(table_rows, c) for c in table_rows.column_names}
            ).items():
                full = f"{name}/{engine}/{key}"
                if full in curves or ratio.size < 100:
                    continue
                curves[full] = {k: float(f"{v:.4g}") for k, v in msgspec.structs.asdict(curve).items()}
                error = common.abs_pct(ratio)
                bias = 100.0 * float(np.mean(1.0 / ratio - 1.0))
                lines.append(f"| {kind} {full} | {ratio.size} | {np.median(error):.1f} | "
                             f"{np.quantile(error, 0.9):.1f} | {bias:+.1f} |")  # fmt: skip
                sys.stdout.write(lines[-1] + "\n")
                sys.stdout.flush()
            used.append({"file": f"aiconfigurator_core/systems/data/{path.relative_to(folder)}",
                         "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                         "rows": table_rows.num_rows})  # fmt: skip
    return dict(sorted(curves.items()))


def _version(path: Path) -> tuple[str, list[int]]:
    digits = "".join(c if c.isdigit() else " " for c in path.parent.name).split()
    return path.parent.parent.name, [int(d) for d in digits]


def _column(table: Any, name: str) -> np.ndarray:
    return np.asarray(table[name].to_numpy())


def products(chip: ChipSpec, data: Columns) -> Found:
    """Dense products, by weight format."""
    large = (data["n"] >= 256) & (data["k"] >= 512) & (data["n"] * data["k"] >= 2**20) & (data["m"] <= 16384)
    found = {}
    for name in sorted(set(data["gemm_dtype"]) & set(FORMATS)):
        m, n, k, seconds = _quickest(data, ("m", "n", "k"), large & (data["gemm_dtype"] == name))
        if not seconds.size or seconds.min() > HOST_BOUND_S:
            continue
        weights = FORMATS[name]
        start = ProductCurve(4e-6, 0.85, 500.0, 0.6, 32.0, 300.0, 2.0)
        low = ProductCurve(5e-7, 0.5, 1.0, 0.1, 0.1, 1.0, 1.0)
        high = ProductCurve(3e-5, 1.2, 2e4, 1.0, 300.0, 4e3, 6.0)
        found[weights] = _fit(
            start, low, high, lambda c, w=weights, x=(m, n, k): c.time_s(chip, w, *x), seconds
        )
    return found


def experts(chip: ChipSpec, data: Columns) -> Found:
    """Grouped products, by weight format."""
    found = {}
    keys = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    usual = (data["distribution"] == DISTRIBUTION) & (data["num_tokens"] <= 16384)
    for name in sorted(set(data["moe_dtype"]) & set(FORMATS)):
        wide = "fp4" in chip.peak_flops_per_s and "w4a8_mxfp4_mxfp8" in set(data["moe_dtype"])
        if name == "w4a16_mxfp4" and wide:
            continue
        t, h, i, k, e, tp, ep, seconds = _quickest(data, keys, usual & (data["moe_dtype"] == name))
        weights = FORMATS[name]
        start = ExpertCurve(3e-5, 0.8, 100.0, 0.5, 16.0, 2.0, 4.0)
        low = ExpertCurve(5e-6, 0.3, 1.0, 0.05, 0.5, 1.0, 0.5)
        high = ExpertCurve(2e-4, 1.5, 1e3, 1.0, 200.0, 6.0, 30.0)
        shape = (t, h, i / tp, k, e, ep)
        found[weights] = _fit(start, low, high, functools.partial(_price, chip, weights, shape), seconds)
    return found


def decode(chip: ChipSpec, data: Columns) -> Found:
    """Attention of decoding, by cache format."""
    window = data.get("window_size", np.zeros_like(data["step"]))
    plain = (window == 0) & (data["step"] >= 127) & np.isin(data["head_dim"], (64, 128, 256))
    found = {}
    keys = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "step")
    for name in sorted(set(data["kv_cache_dtype"])):
        b, h, kv, d, s, seconds = _quickest(data, keys, plain & (data["kv_cache_dtype"] == name))
        kv = np.where(kv == 0, h, kv)
        width = 1.0 if "fp8" in name else 2.0
        shape = (b, s + 1.0, h, kv, 2.0 * d * width, 2.0 * d)
        found["fp8" if width == 1.0 else "bf16"] = _fit(
            *_decode_bounds(), lambda c, x=shape: c.time_s(chip, *x), seconds
        )
    return found


def latent(chip: ChipSpec, data: Columns) -> Found:
    """Attention of decoding on a latent of 512 + 64, by cache format."""
    found = {}
    for name in sorted(set(data["kv_cache_dtype"])):
        mine = (data["step"] >= 127) & (data["kv_cache_dtype"] == name) & (data["num_heads"] >= 4)
        b, h, s, seconds = _quickest(data, ("batch_size", "num_heads", "step"), mine)
        width = 1.0 if "fp8" in name else 2.0
        shape = (b, s + 1.0, h, 1.0, 576.0 * width, 576.0 + 512.0)
        found["fp8" if width == 1.0 else "bf16"] = _fit(
            *_decode_bounds(), lambda c, x=shape: c.time_s(chip, *x), seconds
        )
    return found


def _price(chip: ChipSpec, weights: str, shape: tuple[Any, ...], curve: Any) -> FloatArray:
    return np.asarray(curve.time_s(chip, weights, *shape), dtype=np.float64)


def _decode_price(chip: ChipSpec, shape: tuple[Any, ...], curve: DecodeCurve) -> FloatArray:
    return curve.time_s(chip, *shape)


def _decode_bounds() -> tuple[DecodeCurve, DecodeCurve, DecodeCurve]:
    return (
        DecodeCurve(8e-6, 0.85, 1e-9, 0.3, 2.0, 10.0),
        DecodeCurve(2e-6, 0.3, 1e-11, 0.02, 1.0, 0.5),
        DecodeCurve(5e-5, 1.1, 5e-8, 1.5, 6.0, 200.0),
    )


def _quickest(data: Columns, keys: Sequence[str], chosen: np.ndarray) -> list[FloatArray]:
    """Distinct shapes among the chosen rows with the shortest time of each, at most MOST_ROWS of them."""
    rows = np.column_stack([data[key][chosen].astype(float) for key in keys])
    seconds = data["latency"][chosen].astype(float) * 1e-3
    order = np.argsort(seconds, kind="stable")
    _, first = np.unique(rows[order], axis=0, return_index=True)
    kept = order[first]
    if kept.size > MOST_ROWS:
        kept = np.random.default_rng(1).choice(kept, MOST_ROWS, replace=False)
    return [*rows[kept].T, seconds[kept]]


def _fit(start: Any, low: Any, high: Any, price: Price, seconds: FloatArray) -> tuple[Any, FloatArray]:
    """The curve, and measured / predicted: robust least squares of logarithms within bounds of physics."""
    kind = type(start)
    begin, least, most = (np.log(np.array(msgspec.structs.astuple(one))) for one in (start, low, high))
    weak = 0.002 * np.sqrt(seconds.size)

    def residuals(point: FloatArray) -> FloatArray:
        return np.concatenate([np.log(price(kind(*np.exp(point))) / seconds), weak * (point - begin)])

    found = least_squares(residuals, begin, bounds=(least, most), loss="soft_l1", f_scale=0.1, max_nfev=80)
    curve = kind(*np.exp(found.x))
    return curve, seconds / price(curve)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
