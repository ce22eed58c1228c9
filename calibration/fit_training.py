"""Fits the numbers of each software stack's profile to published training runs.

    python calibration/fit_training.py

Facts of a stack stand in FACTS below. Residuals are those of runs that the fit had not seen (5 folds, runs
of one model on as many equal chips together); each source is also left out whole.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import msgspec
import numpy as np

from groundplane.perfmodel.case_prices import CasePricer
from groundplane.perfmodel.evidence import Evidence
from groundplane.perfmodel.profiles import FITTED, StackProfile
from groundplane.perfmodel.published import COLUMNS, Case, runs_of
from groundplane.perfmodel.training_fit import fit_profile, unseen_ratios
from groundplane.perfmodel.validation.table import read_table
from groundplane.perfmodel.validation.training import cases_of

FILES = ("training_measured.csv", "training_measured_vtrain_single.csv", "training_measured_nanotron.csv")
LEAST_FOR_A_SPREAD = 12

_GPT2021 = StackProfile(
    "megatron-lm", fused_attention=False, overlaps_backward=False, gathers_ahead=False, gradient_bytes=2.0
)
_NANOTRON = StackProfile(
    "nanotron",
    balances_stages=True,
    overlaps_backward=False,
    gathers_ahead=False,
    host_s_per_operator=6e-5,
    hop_s=4e-5,
)

FACTS = (
    StackProfile("megatron-core", fused_loss=True, ties_tensor_backward=True, overlaps_experts=True),
    StackProfile("megatron-core-plain", fused_loss=True, overlaps_backward=False, gathers_ahead=False),
    _GPT2021,
    msgspec.structs.replace(_GPT2021, name="megatron-deepspeed"),
    msgspec.structs.replace(_GPT2021, name="megatron-deepspeed-zero"),
    StackProfile("megatron-deepspeed-zero-3", fused_attention=False, gradient_bytes=2.0),
    StackProfile("torchtitan-plain", overlaps_backward=False, gathers_ahead=False, link_share=0.4),
    StackProfile("megascale", ties_tensor_backward=True),
    StackProfile("llm-foundry", gradient_bytes=2.0),
    StackProfile("torchtitan", balances_ring=False, selective_linears=0.5),
    StackProfile("internevo", gradient_bytes=2.0),
    _NANOTRON,
    msgspec.structs.replace(_NANOTRON, name="nanotron-stalling", slow_gathers=True, stall_s=1.3, hop_s=2e-4),
    msgspec.structs.replace(_NANOTRON, name="nanotron-late", slow_gathers=True, hop_s=3e-4),
    StackProfile("maxtext"),
)
"""What each stack does; numbers here are where its fit begins."""


def main() -> None:
    cases, used = read_cases()
    profiles, spreads, without = [], {}, {}
    every: dict[str, list[float]] = {"": [], ", inferred": []}
    for facts in FACTS:
        own = [case for case in cases if case.stack == facts.name]
        pricer = CasePricer(own)
        profile = fit(pricer, own, facts)
        profiles.append(profile)
        ratios = unseen_ratios(pricer, own, facts)
        for suffix, complete in (("", True), (", inferred", False)):
            mine = [r for r, case in zip(ratios.tolist(), own, strict=True) if case.complete == complete]
            every[suffix] += mine
            if len(mine) >= LEAST_FOR_A_SPREAD:
                spreads[facts.name + suffix] = evidence(mine, facts.name)
        for source in dict.fromkeys(case.source for case in own):
            rest = np.array([float(case.source != source) for case in own])
            without[source] = fit(pricer, own, facts, rest) if rest.any() else facts
        report(profile, pricer, own, ratios)
    for suffix, ratios_of_all in every.items():
        spreads["any" + suffix] = evidence(ratios_of_all, "all stacks")
    write(used, profiles, spreads, without)


def read_cases() -> tuple[list[Case], dict[str, int]]:
    """All runs that can be priced, and how many rows of each file they are."""
    cases: list[Case] = []
    used: dict[str, int] = {}
    for name in FILES:
        rows = read_table(common.measured_folder() / name, COLUMNS)
        found, excluded = cases_of(runs_of(rows))
        cases += found
        used[name] = len(rows) - len(excluded)
    return cases, used


def fit(
    pricer: CasePricer, cases: Sequence[Case], start: StackProfile, seen: np.ndarray | None = None
) -> StackProfile:
    fitted = fit_profile(pricer, cases, start, seen)
    return msgspec.structs.replace(fitted, **{name: float(f"{getattr(fitted, name):.4g}") for name in FITTED})


def evidence(ratios: Sequence[float], what: str) -> Evidence:
    low, middle, high = np.quantile(np.array(ratios), [0.1, 0.5, 0.9])
    grade: Any = "measured"
    return Evidence(grade, float(low), float(middle), float(high), len(ratios), f"unseen folds of {what}")


LINES: list[str] = []
"""What `report` has said, for the residuals file."""


def report(profile: StackProfile, pricer: CasePricer, cases: Sequence[Case], ratios: np.ndarray) -> None:
    numbers = {name: getattr(profile, name) for name in FITTED}
    LINES.append(f"\n## {profile.name}\n\n{', '.join(f'`{k}` {v:g}' for k, v in numbers.items())}\n")
    LINES.append("| source | n | fitted: median | mean | p90 | bias | unseen: median | mean | p90 | bias |")
    LINES.append("|---|---|---|---|---|---|---|---|---|---|")
    sys.stdout.write(f"\n{profile.name}: {numbers}\n")
    predicted = pricer.step_s({profile.name: profile})
    for source in dict.fromkeys(case.source for case in cases):
        mine = np.array([case.source == source for case in cases])
        measured = np.array([case.measured_s for case in cases])[mine]
        seen = error_line(measured / predicted[mine])
        unseen = error_line(ratios[mine])
        cells = " | ".join(f"{seen} {unseen}".split())
        LINES.append(f"| {source} | {mine.sum()} | {cells} |")
        sys.stdout.write(f"  {source[:60]:60} n {mine.sum():4} fitted {seen} unseen {unseen}\n")
    sys.stdout.flush()


def error_line(ratio: np.ndarray) -> str:
    """Median, mean and 90th percentile of absolute errors, and bias, in per cent."""
    error = common.abs_pct(ratio)
    bias = 100.0 * float(np.mean(1.0 / ratio - 1.0))
    return f"{np.median(error):5.1f} {error.mean():5.1f} {np.quantile(error, 0.9):5.1f} {bias:+5.1f}"


def write(
    used: dict[str, int],
    profiles: list[StackProfile],
    spreads: dict[str, Evidence],
    without: dict[str, StackProfile],
) -> None:
    data = {
        "source": "published training runs, see calibration/manifest/training.json",
        "profiles": msgspec.to_builtins(profiles),
        "spreads": {name: common.rounded(one) for name, one in spreads.items()},
        "without_source": msgspec.to_builtins(without),
    }
    common.write_json(common.CALIBRATION / "training.json", data)
    residuals = common.REPOSITORY / "calibration" / "residuals_training.md"
    head = "# Errors of training steps, in per cent, as `fit_training.py` printed them\n"
    residuals.write_text(head + "\n".join(LINES) + "\n", encoding="utf-8")
    common.write_manifest(
        "training", "calibration/fit_training.py", used, ["src/groundplane/catalog/calibration/training.json"]
    )


if __name__ == "__main__":
    main()
