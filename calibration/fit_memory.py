"""Fits the memory profiles of software stacks to published runs; writes numbers, residuals and the manifest.

    python calibration/fit_memory.py        # about three minutes on one core

Errors are printed of all runs, and of runs that the fit has not seen: layouts or runs held out in folds, and
whole models.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.published import COLUMNS
from groundplane.perfmodel.validation.memory import balanced_accuracy_pct
from groundplane.perfmodel.validation.memory_cases import CaseMemory
from groundplane.perfmodel.validation.memory_rows import (
    FIT_COLUMNS,
    MemoryCase,
    sweep_cases,
    training_cases,
)
from groundplane.perfmodel.validation.table import read_table

SWEEP, RUNS = "memory_fit_nanotron.csv", "training_measured.csv"

NANOTRON = {
    "bucket_bytes": 2.0, "step_gather_bytes": 2.0, "balances_stages": True, "reports": "first",
}  # fmt: skip
DEEPSPEED = {"gradient_bytes": 2.0, "fused_attention": False, "outside_bytes": 0.0}
TORCHTITAN = {
    "weight_bytes": 4.0, "optimizer_bytes": 8.0, "selective": "operators",
    "pipeline_keeps_gathered": True, "split_logit_bytes": 8.0, "usual_recompute": "selective",
}  # fmt: skip
FACTS: dict[str, dict[str, Any]] = {
    "nanotron": NANOTRON,
    "nanotron-2025-01": NANOTRON,
    "nanotron-2024-12": NANOTRON,
    "megatron-core": {"fused_activation": True},
    "torchtitan": TORCHTITAN,
    "torchtitan-2025": TORCHTITAN | {"split_logit_bytes": 0.0, "logit_bytes": 6.0},
    "megatron-deepspeed-zero": DEEPSPEED,
    "megatron-deepspeed-bf16": DEEPSPEED | {"gradient_bytes": 6.0},
    "internevo": {"gradient_bytes": 2.0, "optimizer_bytes": 24.0, "outside_bytes": 0.0},
    "llm-foundry": {"weight_bytes": 4.0, "optimizer_bytes": 8.0, "logit_bytes": 4.0},
}  # fmt: skip
"""What each stack keeps. Torchtitan's loss over a split vocabulary holds two more float32 copies; since 2025
it is compiled and holds logits once in either type. llm-foundry's fused loss holds bf16 logits and their
gradient. DeepSpeed's bf16 optimizer adds float32 gradients to those of 16 bits; InternEvo's sharded step
holds float32 gradients and copies of gradients and weights beside master weights and moments. Tools that see
the whole device report nothing outside."""

LIKE = {"torchtitan-2025": "torchtitan", "llm-foundry": "torchtitan"}
"""Stacks of which one or no run's memory is published: what differs is a fact, the rest is the other's."""

STANDS_FOR = {
    "nanotron-late": "nanotron",
    "nanotron-stalling": "nanotron-2025-01",
    "megatron-lm": "megatron-core",
    "megascale": "megatron-core",
    "megatron-deepspeed": "megatron-deepspeed-zero",
    "maxtext": "torchtitan",
}
"""Stacks without measurements of their own, and the one that shards and keeps most like them."""

BOUNDS = {
    "state_slack": (1.0, 1.6), "activation_slack": (0.6, 1.6), "working_layers": (0.0, 4.0),
    "logit_bytes": (4.0, 16.0), "base_bytes": (0.0, 1.6e10), "waiting_alone": (0.0, 4.0),
    "waiting_in_pipeline": (0.0, 4.0), "host_ahead_flops": (1e10, 1e13),
}  # fmt: skip
START = {
    "state_slack": 1.05, "activation_slack": 1.1, "working_layers": 1.0, "logit_bytes": 10.0,
    "base_bytes": 1e9, "waiting_alone": 1.0, "waiting_in_pipeline": 0.5, "host_ahead_flops": 1.5e12,
}  # fmt: skip
TOLERANCE = 0.04
"""Relative error from which an outlier pulls no harder: medians are what is asked for."""


@dataclass(frozen=True)
class Family:
    """Stacks that are fitted together: what they share, and what each has of its own."""

    stacks: tuple[str, ...]
    shared: tuple[str, ...]
    own: tuple[str, ...] = ()

    @property
    def keys(self) -> list[tuple[str | None, str]]:
        own = [(stack, name) for stack in self.stacks for name in self.own]
        return [(None, name) for name in self.shared] + own


FAMILIES = (
    Family(
        ("nanotron", "nanotron-2025-01", "nanotron-2024-12"),
        ("state_slack", "activation_slack", "working_layers", "logit_bytes", "base_bytes"),
        ("waiting_alone", "waiting_in_pipeline", "host_ahead_flops"),
    ),
    Family(("megatron-core",), ("state_slack", "activation_slack", "working_layers", "logit_bytes")),
    Family(("torchtitan",), ("activation_slack", "logit_bytes")),
    Family(
        ("megatron-deepspeed-zero", "megatron-deepspeed-bf16"),
        ("state_slack", "activation_slack", "base_bytes"),
    ),
    Family(("internevo",), ("state_slack", "base_bytes")),
)

Profiles = dict[str, MemoryProfile]


def main() -> None:
    sweep, _ = sweep_cases(read_table(common.measured_folder() / SWEEP, FIT_COLUMNS))
    runs, _ = training_cases(read_table(common.measured_folder() / RUNS, COLUMNS))
    profiles: Profiles = {name: MemoryProfile(name, **facts) for name, facts in FACTS.items()}
    report = ["# Memory: errors on runs that the fit has not seen", ""]
    used = {SWEEP: len(sweep), RUNS: 0}
    for family in FAMILIES:
        cases = [case for case in sweep if case.stack in family.stacks and not case.ran_out]
        if not cases:
            cases = [case for case in runs if case.stack in family.stacks]
            used[RUNS] += len(cases)
        profiles |= fit(family, cases, profiles)
        ratio, lines = held_out(family, cases, profiles)
        low, high = (round(float(value), 4) for value in np.quantile(ratio, [0.1, 0.9]))
        for stack in family.stacks:
            spread = {"ratio_p10": low, "ratio_p90": high, "num_points": len(cases)}
            profiles[stack] = msgspec.structs.replace(profiles[stack], **spread)
        report += lines
    for name, other in LIKE.items():
        taken = ("activation_slack", "ratio_p10", "ratio_p90", "num_points")
        profiles[name] = msgspec.structs.replace(
            profiles[name], **{field: getattr(profiles[other], field) for field in taken}
        )
    limit, lines = fit_limit(sweep, profiles)
    for name, profile in profiles.items():
        share = limit if profile.outside_bytes else 0.0
        profiles[name] = msgspec.structs.replace(profile, fragment_share=share)
    report += lines
    plain = [rounded(profile) for profile in profiles.values()]
    common.write_json(common.CALIBRATION / "memory.json", {"profiles": plain, "stands_for": STANDS_FOR})
    (common.REPOSITORY / "calibration" / "residuals_memory.md").write_text("\n".join(report) + "\n")
    common.write_manifest("memory", "calibration/fit_memory.py", used, ["memory.json"])
    sys.stdout.write("\n".join(report) + "\n")


def fit(family: Family, cases: Sequence[MemoryCase], profiles: Profiles) -> Profiles:
    """The family's profiles with the numbers that come nearest to the cases."""
    memory = CaseMemory(cases, profiles)
    measured = np.array([case.measured_bytes for case in cases], dtype=np.float64)
    scale = np.array([max(abs(START[name]), 1e-3) for _, name in family.keys])
    low, high = (np.array([BOUNDS[name][side] for _, name in family.keys]) / scale for side in (0, 1))

    def named(values: FloatArray) -> Profiles:
        found = dict(profiles)
        for stack in family.stacks:
            pairs = zip(family.keys, values * scale, strict=True)
            mine = {name: float(value) for (owner, name), value in pairs if owner in (None, stack)}
            found[stack] = msgspec.structs.replace(profiles[stack], **mine)
        return found

    def error(values: FloatArray) -> FloatArray:
        return memory.reported_bytes(named(values)) / measured - 1.0

    start = np.clip(np.ones(len(scale)), low + 1e-3, high - 1e-3)
    solved = least_squares(
        error, start, bounds=(low, high), loss="soft_l1", f_scale=TOLERANCE, diff_step=1e-3, max_nfev=60
    )
    return {stack: named(solved.x)[stack] for stack in family.stacks}


def held_out(family: Family, cases: Sequence[MemoryCase], profiles: Profiles) -> tuple[FloatArray, list[str]]:
    """Measured / predicted of runs that a fit had not seen, and lines of the table of errors."""
    layouts = [(case.model.num_layers, case.model.hidden, case.seq, case.layout) for case in cases]
    few = len(cases) < 60
    fold = common.folds_of(range(len(cases)) if few else layouts)
    ratio = left_out(family, cases, profiles, fold)
    seen = measured_of(cases) / CaseMemory(cases, profiles).reported_bytes(profiles)
    lines = [f"## {', '.join(family.stacks)}", ""]
    lines += [f"{len(cases)} runs, {len(family.keys)} fitted numbers.", ""]
    lines += ["| held out | n | median % | 90th percentile % | bias % |", "|---|---|---|---|---|"]
    lines.append(f"| nothing (the shipped numbers) | {len(cases)} | {common.error_line(seen)} |")
    lines.append(f"| {'runs' if few else 'layouts'}, 5 folds | {len(cases)} | {common.error_line(ratio)} |")
    models = [case.model.num_layers * case.model.hidden for case in cases]
    if len(set(models)) > 2:
        names = sorted(set(models))
        whole = left_out(family, cases, profiles, np.array([names.index(model) for model in models]))
        lines.append(f"| a whole model | {len(cases)} | {common.error_line(whole)} |")
    if len(family.stacks) > 1:
        for stack in family.stacks:
            mine = np.array([case.stack == stack for case in cases])
            lines.append(f"| layouts, of {stack} | {mine.sum()} | {common.error_line(ratio[mine])} |")
    inside = np.mean((ratio >= np.quantile(ratio, 0.1)) & (ratio <= np.quantile(ratio, 0.9)))
    low, high = np.quantile(ratio, [0.1, 0.9])
    lines += ["", f"Interval: {low:.3f} to {high:.3f} of the prediction ({100 * inside:.0f} % inside).", ""]
    return ratio, lines


def left_out(family: Family, cases: Sequence[MemoryCase], profiles: Profiles, fold: np.ndarray) -> FloatArray:
    """Measured / predicted of each case under a fit to the other folds."""
    ratio = np.zeros(len(cases))
    for number in np.unique(fold):
        kept = [case for case, own in zip(cases, fold, strict=True) if own != number]
        tested = [case for case, own in zip(cases, fold, strict=True) if own == number]
        found = profiles | fit(family, kept, profiles)
        ratio[fold == number] = measured_of(tested) / CaseMemory(tested, found).reported_bytes(found)
    return ratio


def measured_of(cases: Sequence[MemoryCase]) -> FloatArray:
    return np.array([case.measured_bytes for case in cases], dtype=np.float64)


def fit_limit(sweep: Sequence[MemoryCase], profiles: Profiles) -> tuple[float, list[str]]:
    """The share of memory that runs cannot count on, from which of them ran out, and errors held out."""
    needed = CaseMemory(sweep, profiles).needed_bytes(profiles)
    seen = np.array([(case.chip_bytes or np.inf) - profiles[case.stack].outside_bytes for case in sweep])
    free = 1.0 - needed / seen
    out = np.array([case.ran_out for case in sweep])
    best = best_limit(free, out)
    lines = ["## What runs out of memory", ""]
    lines += [
        f"{len(sweep)} runs of the nanotron sweep, {out.sum()} of them out of memory. A run fits when what"
    ]
    lines += [f"it needs leaves {100 * best:.1f} % free of the memory that its tool sees.", ""]
    lines += ["| held out | balanced accuracy % |", "|---|---|"]
    lines.append(f"| nothing | {balanced_accuracy_pct(out, free < best)} |")
    layouts = [(case.model.num_layers, case.model.hidden, case.layout) for case in sweep]
    models = [case.model.hidden for case in sweep]
    for name, fold in (("layouts, 5 folds", common.folds_of(layouts)), ("a whole model", np.array(models))):
        told = np.zeros(len(sweep), dtype=bool)
        for number in np.unique(fold):
            told[fold == number] = free[fold == number] < best_limit(
                free[fold != number], out[fold != number]
            )
        lines.append(f"| {name} | {balanced_accuracy_pct(out, told)} |")
    return best, [*lines, ""]


def best_limit(free: FloatArray, out: np.ndarray) -> float:
    """The middle of the limits that tell most runs right."""
    limits = np.arange(0.0, 0.25, 0.0025)
    told = [balanced_accuracy_pct(out, free < limit) or 0.0 for limit in limits]
    return float(np.mean(limits[np.array(told) >= max(told) - 1e-9]))


def rounded(profile: MemoryProfile) -> dict[str, Any]:
    """A profile as plain data, numbers to four digits, defaults left out."""
    plain = msgspec.to_builtins(profile)
    empty = msgspec.to_builtins(MemoryProfile(profile.name))
    kept = {}
    for name, value in plain.items():
        short = float(f"{value:.4g}") if isinstance(value, float) else value
        if name == "name" or short != empty[name]:
            kept[name] = short
    return kept


if __name__ == "__main__":
    main()
