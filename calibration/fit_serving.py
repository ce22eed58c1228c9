"""Fits the few numbers of each serving engine's profile to published measurements.

    python calibration/fit_serving.py

Folds are whole (model, system) pairs; spreads for what was not measured come from folds that a fit had not
seen. Each model is also left out whole, for each engine that ran it. Then what is left of the error of each
model under each engine, on each chip, becomes a correction, drawn towards none where runs are few; spreads
for what was measured come from configurations (layout, format, lengths) that the correction had not seen.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import msgspec
import numpy as np
from fit_serving_hosts import FILE as HOST_FILE
from fit_serving_hosts import host_sequences
from fit_serving_throughput import FILE as THROUGHPUT_FILE
from fit_serving_throughput import throughput_profile

from groundplane.perfmodel.evidence import Evidence, FloatArray, evidence_of
from groundplane.perfmodel.serving_fit import Runs, Slopes, fit_profile
from groundplane.perfmodel.serving_profiles import FITTED, Correction, EngineProfile, correction_in
from groundplane.perfmodel.validation.serving_prices import ServingPricer
from groundplane.perfmodel.validation.serving_rows import COLUMNS, ServingCase, cases_of
from groundplane.perfmodel.validation.serving_throughput import ENGINE
from groundplane.perfmodel.validation.table import Row, read_table

FILE = "serving_silicon.csv"
ENGINES = ("sglang", "trtllm", "trtllm-1.0", "vllm")
START = {name: EngineProfile(name, prompts_first=name == "sglang") for name in ENGINES}
TIMINGS = ("ttft", "tpot")
HOST_ROWS = 300
FEW_RUNS = 10.0
"""Runs of a kind at which half of their median error becomes a correction."""

Both = tuple[FloatArray, FloatArray]
"""Time to first token and per token of some cases, seconds."""


def main() -> None:
    rows = read_table(common.measured_folder() / FILE, COLUMNS)
    cases = [case for case in cases_of(rows)[0] if not case.inferred]
    pricer = ServingPricer(cases)
    profiles: list[EngineProfile] = []
    spreads: dict[str, Evidence] = {}
    corrections: dict[str, Correction] = {}
    without: dict[str, EngineProfile] = {}
    for engine in ENGINES:
        own = pricer.part(np.array([case.engine == engine for case in cases]))
        profile, slopes = fit(own, START[engine], np.ones(len(own.cases)), None)
        profiles.append(profile)
        fitted = own.times({engine: profile})
        unseen = unseen_times(own, slopes)
        halved = halved_times(own.cases, fitted)
        for what, left, half in zip(TIMINGS, unseen, halved, strict=True):
            true = measured(own.cases, what)
            spreads[f"{what}/{engine}"] = evidence_of(
                "family", true / left, f"unseen (model, system) folds of {engine}"
            )
            spreads[f"{what}/{engine}/seen"] = evidence_of(
                "measured", true / half, f"unseen configurations of measured models and chips, {engine}"
            )
        corrections |= corrections_of(own.cases, fitted, np.ones(len(own.cases), dtype=bool))
        without |= left_out(own, slopes)
        report(profile, own.cases, {"fitted": fitted, "half of configurations unseen": halved,
                                    "(model, system) unseen": unseen})  # fmt: skip
    older, spreads[f"throughput/{ENGINE}"] = throughput_profile()
    profiles.append(older)
    vllm = next(profile for profile in profiles if profile.name == "vllm")
    data = {
        "source": "published serving runs, see calibration/manifest/serving.json",
        "profiles": msgspec.to_builtins(profiles),
        "host_sequences_s": host_sequences(vllm),
        "spreads": {name: common.rounded(one) for name, one in spreads.items()},
        "corrections": msgspec.to_builtins(corrections),
        "without_model": msgspec.to_builtins(without),
    }
    common.write_json(common.CALIBRATION / "serving.json", data)
    cite(rows)
    common.write_manifest(
        "serving",
        "calibration/fit_serving.py",
        {FILE: len(cases), THROUGHPUT_FILE: spreads[f"throughput/{ENGINE}"].num_points, HOST_FILE: HOST_ROWS},
        [f"src/groundplane/catalog/calibration/{name}" for name in ("serving.json", "points_serving.csv")],
    )


def cite(rows: Sequence[Row]) -> None:
    """Ships one row of each engine, model, system and precision: the middle one in the file."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        keys = tuple(row.text(name) for name in ("backend", "model_path", "system", "precision", "mode"))
        groups.setdefault(keys, []).append(row)
    columns = [name for name in rows[0].values if name]
    with (common.CALIBRATION / "points_serving.csv").open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for members in groups.values():
            values = dict(members[len(members) // 2].values)
            # Folders of whoever kept a table are left out.
            kept = re.sub(r"source_file=/\S*/data/", "source_file=", values["silicon_data_source"])
            writer.writerow(values | {"silicon_data_source": kept})


def fit(
    pricer: ServingPricer, start: EngineProfile, weight: FloatArray, near: Slopes | None
) -> tuple[EngineProfile, Slopes]:
    """The profile fitted to cases of positive weight, and the slopes it was fitted with."""
    runs = Runs(measured(pricer.cases, "ttft"), measured(pricer.cases, "tpot"), weight)
    return fit_profile(start, lambda profile: pricer.times({start.name: profile}), runs, near=near)


def measured(cases: Sequence[ServingCase], what: str) -> FloatArray:
    return np.array([case.ttft_s if what == "ttft" else case.tpot_s for case in cases])


def unseen_times(pricer: ServingPricer, whole: Slopes) -> Both:
    """Times of each case under the profile fitted to the other folds."""
    fold = common.folds_of([(case.model_name, case.system) for case in pricer.cases])
    found = np.zeros((2, len(fold)))
    for number in range(common.FOLDS):
        profile, _ = fit(pricer, START[whole.profile.name], (fold != number).astype(float), whole)
        held = fold == number
        found[:, held] = pricer.part(held).times({profile.name: profile})
    return found[0], found[1]


def left_out(pricer: ServingPricer, whole: Slopes) -> dict[str, EngineProfile]:
    """For each model the profile fitted to all others."""
    found = {}
    for model in dict.fromkeys(case.model_name for case in pricer.cases):
        others = np.array([float(case.model_name != model) for case in pricer.cases])
        if others.any():
            found[f"{model}/{whole.profile.name}"] = fit(pricer, START[whole.profile.name], others, whole)[0]
    return found


def halved_times(cases: Sequence[ServingCase], fitted: Both) -> Both:
    """Fitted times with corrections from the other half of the configurations."""
    keys = [(c.model_name, c.system, c.precision, c.decode, c.prefill, c.prompt, c.output) for c in cases]
    half = common.folds_of(keys) % 2
    found = np.zeros((2, len(cases)))
    for number in (0, 1):
        known = corrections_of(cases, fitted, half != number)
        for index in np.flatnonzero(half == number):
            one = correction_in(known, cases[index].engine, *cases[index].kind)
            found[:, index] = fitted[0][index] * one.ttft, fitted[1][index] * one.tpot
    return found[0], found[1]


def corrections_of(cases: Sequence[ServingCase], fitted: Both, chosen: np.ndarray) -> dict[str, Correction]:
    """What is left of the errors of some cases: of each model first, then of it on each chip and format."""
    left = [np.log(measured(cases, what) / time) for what, time in zip(TIMINGS, fitted, strict=True)]
    found: dict[str, Correction] = {}
    for depth in (1, 3):
        groups: dict[str, list[int]] = {}
        for index in np.flatnonzero(chosen).tolist():
            groups.setdefault("/".join((cases[index].engine, *cases[index].kind[:depth])), []).append(index)
        for key, members in groups.items():
            share = len(members) / (len(members) + FEW_RUNS)
            ttft, tpot = (float(np.exp(share * np.median(one[members]))) for one in left)
            found[key] = Correction(float(f"{ttft:.4g}"), float(f"{tpot:.4g}"), len(members))
            for one, factor in zip(left, (ttft, tpot), strict=True):
                one[members] -= np.log(factor)
    return found


def report(profile: EngineProfile, cases: Sequence[ServingCase], times: dict[str, Both]) -> None:
    sys.stdout.write(f"\n{profile.name}: { ({name: getattr(profile, name) for name in FITTED}) }\n")
    for name, both in times.items():
        cells = []
        for what, time in zip(TIMINGS, both, strict=True):
            error = common.abs_pct(measured(cases, what) / time)
            cells.append(f"{what} {np.median(error):5.1f} median {error.mean():5.1f} mean")
        sys.stdout.write(f"  {name:<32} n {len(cases)}, {', '.join(cells)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
