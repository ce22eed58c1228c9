"""Fits the few numbers of each serving engine's profile to published measurements.

    python calibration/fit_serving.py

Folds are whole (model, system) pairs; spreads come from folds that a fit had not seen. Each model is also
left out whole, for each engine that ran it.
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

from groundplane.perfmodel.evidence import FloatArray, evidence_of
from groundplane.perfmodel.serving_fit import fit_profile
from groundplane.perfmodel.serving_profiles import FITTED, EngineProfile
from groundplane.perfmodel.validation.serving_prices import ServingPricer
from groundplane.perfmodel.validation.serving_rows import COLUMNS, ServingCase, cases_of
from groundplane.perfmodel.validation.table import Row, read_table

FILE = "serving_silicon.csv"
ENGINES = ("sglang", "trtllm", "trtllm-1.0", "vllm")


def main() -> None:
    rows = read_table(common.measured_folder() / FILE, COLUMNS)
    cases = [case for case in cases_of(rows)[0] if not case.inferred]
    pricer = ServingPricer(cases, {})
    profiles, spreads, without = [], {}, {}
    for engine in ENGINES:
        own = pricer.part(np.array([case.engine == engine for case in cases]))
        profile = fit(own, EngineProfile(engine), np.ones(len(own.cases)), None)
        profiles.append(profile)
        unseen = unseen_times(own, profile)
        spreads |= {
            f"{what}/{engine}": evidence_of("measured", measured(own.cases, what) / unseen[what],
                                            f"unseen (model, system) folds of {engine}")
            for what in ("ttft", "tpot")
        }  # fmt: skip
        without |= left_out(own, profile)
        report(profile, own, unseen)
    data = {
        "source": "published serving runs, see calibration/manifest/serving.json",
        "profiles": msgspec.to_builtins(profiles),
        "spreads": {name: common.rounded(one) for name, one in spreads.items()},
        "without_model": msgspec.to_builtins(without),
    }
    common.write_json(common.CALIBRATION / "serving.json", data)
    cite(rows)
    common.write_manifest(
        "serving",
        "calibration/fit_serving.py",
        {FILE: len(cases)},
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
    pricer: ServingPricer, start: EngineProfile, weight: FloatArray, near: EngineProfile | None
) -> EngineProfile:
    """The profile fitted to cases of positive weight, with four digits."""
    seen = pricer.part(weight > 0)
    fitted = fit_profile(
        start,
        lambda profile: seen.times({start.name: profile}),
        measured(seen.cases, "ttft"),
        measured(seen.cases, "tpot"),
        weight[weight > 0],
        near,
    )
    return msgspec.structs.replace(fitted, **{name: float(f"{getattr(fitted, name):.4g}") for name in FITTED})


def measured(cases: Sequence[ServingCase], what: str) -> FloatArray:
    return np.array([case.ttft_s if what == "ttft" else case.tpot_s for case in cases])


def unseen_times(pricer: ServingPricer, whole: EngineProfile) -> dict[str, FloatArray]:
    """Times of each case under the profile fitted to the other folds."""
    fold = common.folds_of([(case.model_name, case.system) for case in pricer.cases])
    times = {"ttft": np.zeros(len(fold)), "tpot": np.zeros(len(fold))}
    for number in range(common.FOLDS):
        profile = fit(pricer, EngineProfile(whole.name), (fold != number).astype(float), whole)
        ttft, tpot = pricer.times({whole.name: profile})
        held = fold == number
        times["ttft"][held], times["tpot"][held] = ttft[held], tpot[held]
    return times


def left_out(pricer: ServingPricer, whole: EngineProfile) -> dict[str, EngineProfile]:
    """For each model the profile fitted to all others."""
    found = {}
    for model in dict.fromkeys(case.model_name for case in pricer.cases):
        others = np.array([float(case.model_name != model) for case in pricer.cases])
        if others.any():
            found[f"{model}/{whole.name}"] = fit(pricer, EngineProfile(whole.name), others, whole)
    return found


def report(profile: EngineProfile, pricer: ServingPricer, unseen: dict[str, FloatArray]) -> None:
    sys.stdout.write(f"\n{profile.name}: { ({name: getattr(profile, name) for name in FITTED}) }\n")
    ttft, tpot = pricer.times({profile.name: profile})
    for what, seen in (("ttft", ttft), ("tpot", tpot)):
        true = measured(pricer.cases, what)
        lines = [f"{np.median(e):5.1f} median {e.mean():5.1f} mean" for e in
                 (100 * np.abs(seen / true - 1), 100 * np.abs(unseen[what] / true - 1))]  # fmt: skip
        sys.stdout.write(f"  {what}: n {true.size}, fitted {lines[0]}, unseen {lines[1]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
