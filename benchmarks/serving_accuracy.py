"""How near predicted times of serving runs come to measured ones, beside a null model and a peer, by chip.

    python benchmarks/serving_accuracy.py [--json] [--data serving_runs.csv] [--rows 300] [--no-peer]

The same rows for everyone: complete, aggregated runs of the table (without --data the cited points of the
catalogue), drawn evenly where there are more than --rows. Ours are shown as fitted and with each run's model
left out of the fit. The null model is a roofline of five constants, fitted to these very rows. AIConfigurator
is installed into an environment of its own under `.benchmarks/`, once, and estimates from its own tables.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from groundplane.catalog.resolve import resolve_cluster
from groundplane.perfmodel.serving_layout import cache_bytes_per_token, weight_bytes_per_chip
from groundplane.perfmodel.serving_profiles import serving_calibration
from groundplane.perfmodel.validation.serving_prices import ServingPricer
from groundplane.perfmodel.validation.serving_rows import COLUMNS, ServingCase, cases_of
from groundplane.perfmodel.validation.table import Row, read_table, shipped_table

HERE = Path(__file__).resolve().parent
PEER = "aiconfigurator==0.12.0"
PEER_SECONDS = 1200.0
"""CPU seconds after which the peer's remaining rows count as not estimated."""

Times = np.ndarray
"""Shape (N, 2): time to first token and per token, seconds; nan where there is none."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--data", type=Path, help="table of serving runs (columns as `validate serving`)")
    parser.add_argument("--rows", type=int, default=300, help="most rows compared")
    parser.add_argument("--no-peer", action="store_true", help="leave the peer out")
    parser.add_argument(
        "--envs", type=Path, default=HERE.parent / ".benchmarks", help="where it is installed"
    )
    options = parser.parse_args()
    rows = (
        shipped_table("points_serving.csv", COLUMNS)
        if options.data is None
        else read_table(options.data, COLUMNS)
    )
    cases, by_line = chosen(rows, options.rows)
    measured = np.array([[case.ttft_s, case.tpot_s] for case in cases])
    predictions = ours(cases) | {"null model": null_model(cases, measured)}
    figures: dict[str, Any] = {"rows": len(cases)}
    if not options.no_peer:
        predictions["aiconfigurator"], figures["aiconfigurator"] = peer(options.envs, cases, by_line)
    chips = np.array([case.system for case in cases])
    figures["errors"] = {
        name: {"all": errors(found, measured)}
        | {
            chip: errors(found[chips == chip], measured[chips == chip])
            for chip in dict.fromkeys(chips.tolist())
        }
        for name, found in predictions.items()
    }
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    show(figures)


def chosen(rows: list[Row], most: int) -> tuple[list[ServingCase], dict[int, Row]]:
    """Complete cases on one kind of engine, at most so many, and the rows of the table by line."""
    cases = [case for case in cases_of(rows)[0] if case.prefill is None and not case.inferred]
    places = np.unique(np.linspace(0, len(cases) - 1, min(most, len(cases))).astype(int))
    return [cases[place] for place in places], {row.line: row for row in rows}


def ours(cases: Sequence[ServingCase]) -> dict[str, Times]:
    """Predictions as fitted, and with profiles of each model's own fold, uncorrected."""
    calibration = serving_calibration()
    pricer = ServingPricer(cases)
    fitted = np.column_stack(pricer.times({profile.name: profile for profile in calibration.profiles}))
    for place, case in enumerate(cases):
        factor = calibration.correction(case.engine, *case.kind)
        fitted[place] *= factor.ttft, factor.tpot
    left = np.full_like(fitted, np.nan)
    for key, profile in calibration.without_model.items():
        model, engine = key.rsplit("/", 1)
        mine = np.array([case.model_name == model and case.engine == engine for case in cases])
        if mine.any():
            left[mine] = np.column_stack(pricer.part(mine).times({engine: profile}))
    return {"groundplane": fitted, "groundplane, model left out": left}


def null_model(cases: Sequence[ServingCase], measured: Times) -> Times:
    """A roofline: shares of bandwidth and of peak, time of a step and a request, weight of the rush."""
    shape = np.array([demands(case) for case in cases])
    read_s, prompt_s, requests, output = shape.T

    def times(point: np.ndarray) -> Times:
        memory, compute, step_s, request_s, rush = np.exp(point)
        each_s = prompt_s / compute
        tpot_s = step_s + read_s / memory + requests * each_s / output
        return np.column_stack([request_s + each_s * (1.0 + rush * requests / 2.0), tpot_s])

    start = np.log([0.6, 0.4, 5e-3, 5e-2, 0.1])
    found = least_squares(lambda p: np.log(times(p) / measured).ravel(), start, loss="soft_l1", f_scale=0.2)
    return times(found.x)


def demands(case: ServingCase) -> tuple[float, float, float, float]:
    """At the data sheet's rates: seconds of reading and of a prompt; requests, output tokens."""
    chip, stage = resolve_cluster(case.system).chip, case.decode
    requests = case.concurrency / stage.num_workers
    context = case.prompt + 0.5 * case.output
    cache = cache_bytes_per_token(case.model, stage.layout, case.formats) * context * requests
    count = case.model.parameters()
    routed = case.model.layers[-1].moe
    share = 1.0 if routed is None else min(1.0, requests * routed.top_k / routed.experts)
    weights = weight_bytes_per_chip(case.model, stage.layout, case.formats)
    weights *= 1.0 - (1.0 - share) * count.experts / count.total
    read_s = (weights + cache / stage.layout.attention_dp) / chip.memory_bytes_per_s
    flops = 2.0 * case.model.parameters().active * case.prompt
    peak = chip.peak("bf16") * (1.0 if case.precision == "bf16" else 2.0) * stage.layout.num_chips
    return read_s, flops / peak, requests, case.output


def peer(folder: Path, cases: Sequence[ServingCase], rows: dict[int, Row]) -> tuple[Times, dict[str, Any]]:
    """AIConfigurator's estimates, and how it fared."""
    python = environment(folder / "aiconfigurator", PEER)
    given = {"seconds": PEER_SECONDS, "cases": [as_peer(case, rows[case.row]) for case in cases]}
    done = subprocess.run(
        [python, str(HERE / "peers" / "aiconfigurator_peer.py")],
        input=json.dumps(given), capture_output=True, text=True, check=True,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    times = np.array([[np.nan, np.nan] if one is None else one for one in answer["times"]])
    predicted = 100.0 * float(np.mean(~np.isnan(times[:, 0])))
    return times, {"version": PEER, "predicted_pct": predicted, "cpu_s": answer["cpu_s"],
                   "not_estimated": answer["reasons"]}  # fmt: skip


def as_peer(case: ServingCase, row: Row) -> dict[str, Any]:
    """A case in the peer's words; weights that a table calls by a coarser name as they are published."""
    layout = case.decode.layout
    names = {"bf16": "bfloat16", "fp4": "nvfp4", "int4_weight_only": "int4_wo", "mxfp4": None}
    requests = case.concurrency / case.decode.num_workers / layout.attention_dp
    moe = case.model.is_moe
    return {
        "model": row.text("model_path"),
        "system": row.text("system"),
        "backend": row.text("backend"),
        "isl": round(case.prompt),
        "osl": round(case.output),
        "batch": max(1, round(requests)),
        "tp": layout.tp,
        "dp": layout.attention_dp,
        "moe_tp": layout.expert_tp if moe else None,
        "moe_ep": layout.expert_ep if moe else None,
        "gemm": names.get(case.formats.linear, case.formats.linear),
        "moe": names.get(case.formats.experts, case.formats.experts) if moe else None,
    }


def environment(folder: Path, requirement: str) -> Path:
    """The Python of a peer's own environment, made where it is missing."""
    python, marker = folder / "bin" / "python", folder / "installed"
    if not marker.is_file() or marker.read_text() != requirement:
        print(f"installing {requirement} into {folder} ...", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", requirement], check=True, stdout=sys.stderr)
        marker.write_text(requirement)
    return python


def errors(predicted: Times, measured: Times) -> dict[str, float | int]:
    """Absolute errors in per cent over what was predicted, and how much that was."""
    has = ~np.isnan(predicted[:, 0])
    found: dict[str, float | int] = {
        "n": int(has.sum()),
        "predicted_pct": round(100.0 * float(has.mean()), 1),
    }
    if has.any():
        error = 100.0 * np.abs(predicted[has] / measured[has] - 1.0)
        for place, name in enumerate(("ttft", "tpot")):
            found[f"{name}_median_abs_pct"] = round(float(np.median(error[:, place])), 1)
            found[f"{name}_mean_abs_pct"] = round(float(np.mean(error[:, place])), 1)
    return found


def show(figures: dict[str, Any]) -> None:
    """A table by chip."""
    print(f"{figures['rows']} rows; errors in per cent of the measurement: median / mean\n")
    print(f"{'':<30}{'chip':<12}{'n':>6}{'first token':>18}{'per token':>18}")
    for name, groups in figures["errors"].items():
        for chip, one in groups.items():
            cells = [
                f"{one[f'{what}_median_abs_pct']:.1f} / {one[f'{what}_mean_abs_pct']:.1f}"
                if one["n"]
                else "-"
                for what in ("ttft", "tpot")
            ]
            print(f"{name:<30}{chip:<12}{one['n']:>6}{cells[0]:>18}{cells[1]:>18}")


if __name__ == "__main__":
    main()
