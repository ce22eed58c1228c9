"""Fits the numbers of each software stack's profile to published training runs.

    python calibration/fit_training.py [STACK ...]

Without names all stacks are fitted; with names those alone, and what is known of the others is kept.
Facts of a stack stand in FACTS below. Residuals are those of runs that the fit had not seen (5 folds, runs
of one model on as many equal chips together); each source is also left out whole.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import msgspec
import numpy as np

from groundplane.perfmodel.case_prices import CasePricer
from groundplane.perfmodel.evidence import Evidence
from groundplane.perfmodel.profiles import FITTED, StackProfile, training_calibration
from groundplane.perfmodel.published import COLUMNS, Case, runs_of
from groundplane.perfmodel.training_fit import fit_profile, folds_of, unseen_ratios
from groundplane.perfmodel.validation.table import read_table
from groundplane.perfmodel.validation.training import cases_of

FILES = ("training_measured.csv", "training_measured_vtrain_single.csv", "training_measured_nanotron.csv")
LEAST_FOR_A_SPREAD = 12
WORKERS = 4
RESIDUALS = common.REPOSITORY / "calibration" / "residuals_training.md"

_GPT2021 = StackProfile(
    "megatron-lm", fused_attention=False, overlaps_backward=False, gathers_ahead=False, gradient_bytes=2.0
)
_NANOTRON = StackProfile(
    "nanotron",
    balances_stages=True,
    stalls_in_pipelines=True,
    overlaps_backward=False,
    gathers_ahead=False,
    host_s_per_operator=6e-5,
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
    StackProfile("torchtitan", balances_ring=False, selective_linears=0.5, ties_tensor_backward=True),
    StackProfile("internevo", gradient_bytes=2.0),
    msgspec.structs.replace(_NANOTRON, slow_gathers=True, hop_s=2e-4),
    msgspec.structs.replace(_NANOTRON, name="nanotron-unfixed", stall_s=1.2, hop_s=5e-5),
    msgspec.structs.replace(_NANOTRON, name="nanotron-either", slow_gathers=True, stall_s=0.1, hop_s=2e-4),
    StackProfile("maxtext"),
)
"""What each stack does; numbers here are where its fit begins."""

VARIANTS = {"nanotron-unfixed": ("nanotron", ("stall_s", "hop_s"))}
"""Stacks that have the numbers of another one but for some that are fitted."""

POOLED = {"nanotron-either": ("nanotron", "nanotron-unfixed")}
"""Stacks for runs that leave their variant open, fitted to the runs of all variants."""


@dataclasses.dataclass(frozen=True)
class Fitted:
    """What fitting one stack gave: its profile, residuals of its runs on unseen folds, the profile without
    each source, and lines for the residuals file."""

    profile: StackProfile
    cases: list[Case]
    ratios: np.ndarray
    without: dict[str, StackProfile]
    lines: list[str]


def main() -> None:
    named = sys.argv[1:] or [facts.name for facts in FACTS]
    chosen = [facts for facts in FACTS if facts.name in named]
    if len(chosen) < len(named):
        sys.exit(f"unknown stack; known: {', '.join(facts.name for facts in FACTS)}")
    cases, used = read_cases()
    known = training_calibration()
    own = {facts.name: cases_for(facts.name, cases) for facts in chosen}
    with ProcessPoolExecutor(max_workers=WORKERS, mp_context=get_context("spawn")) as pool:
        first = [facts for facts in chosen if facts.name not in VARIANTS]
        first.sort(key=lambda facts: -sum(len(case.layouts) for case in own[facts.name]))
        done = dict(pool.map(fit_stack, ((facts, FITTED, own[facts.name]) for facts in first)))
        bases = known.by_name() | {name: one.profile for name, one in done.items()}
        second = [beginning(facts, bases) for facts in chosen if facts.name in VARIANTS]
        done |= dict(pool.map(fit_stack, ((start, free, own[start.name]) for start, free in second)))
    fitted = [done[facts.name] for facts in chosen]
    profiles = [one.profile for one in fitted]
    spreads = spreads_of(fitted, everything=len(chosen) == len(FACTS))
    without = {source: profile for one in fitted for source, profile in one.without.items()}
    sections = {one.profile.name: "\n".join(one.lines).strip() for one in fitted}
    if len(chosen) < len(FACTS):
        profiles = [(known.by_name() | {one.name: one for one in profiles})[facts.name] for facts in FACTS]
        kept = {name: one for name, one in known.spreads.items() if stack_in(name) not in sections}
        spreads, without = kept | spreads, known.without_source | without
        sections = known_sections() | sections
    LINES.extend(sections[facts.name] + "\n" for facts in FACTS)
    write(used, profiles, spreads, without)


def stack_in(spread: str) -> str:
    """The stack of a spread's name."""
    return spread.split(",", maxsplit=1)[0]


def known_sections() -> dict[str, str]:
    """What the residuals file says of each stack."""
    text = RESIDUALS.read_text(encoding="utf-8")
    return {part.split("\n", maxsplit=1)[0]: "## " + part.strip() for part in text.split("\n## ")[1:]}


def fit_stack(task: tuple[StackProfile, tuple[str, ...], list[Case]]) -> tuple[str, Fitted]:
    """Fits one stack: (its name, what came of it)."""
    start, free, own = task
    pricer = CasePricer(own)
    profile = fit(pricer, own, start, free=free)
    ratios = unseen_ratios(pricer, own, start, free)
    without = {}
    for source in dict.fromkeys(case.source for case in own):
        rest = np.array([float(case.source != source) for case in own])
        without[source] = fit(pricer, own, start, rest, free) if rest.any() else start
    LINES.clear()
    report(profile, pricer, own, ratios)
    return start.name, Fitted(profile, own, ratios, without, list(LINES))


def spreads_of(fitted: Sequence[Fitted], *, everything: bool) -> dict[str, Evidence]:
    """Residuals on unseen folds by stack, and of all stacks together (see `TrainingCalibration.spreads`)."""
    found: dict[str, Evidence] = {}
    for one in fitted:
        name = one.profile.name
        for suffix, places in groups_of(one.cases).items():
            if len(places) >= LEAST_FOR_A_SPREAD:
                found[name + suffix] = evidence(one.ratios[places].tolist(), name + suffix)
    if not everything:
        return found
    counted = [one for one in fitted if one.profile.name not in POOLED]
    ratios = np.concatenate([one.ratios for one in counted])
    for suffix, places in groups_of([case for one in counted for case in one.cases]).items():
        found["any" + suffix] = evidence(ratios[places].tolist(), "all stacks" + suffix)
    return found


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


def groups_of(cases: Sequence[Case]) -> dict[str, list[int]]:
    """Places of the runs whose residuals belong together (see `TrainingCalibration.spreads`): complete and
    inferred ones apart, and each of one and of several servers where there are enough of both."""
    found: dict[str, list[int]] = {}
    for suffix, complete in (("", True), (", inferred", False)):
        places = [place for place, case in enumerate(cases) if case.complete == complete]
        several = [place for place in places if cases[place].cluster.num_nodes > 1]
        one = [place for place in places if place not in several]
        found[suffix] = places
        if min(len(one), len(several)) >= LEAST_FOR_A_SPREAD:
            found[suffix + ", one server"], found[suffix + ", several servers"] = one, several
    return found


def cases_for(stack: str, cases: Sequence[Case]) -> list[Case]:
    """The runs that a stack is fitted to, all under its name."""
    names = POOLED.get(stack, (stack,))
    return [dataclasses.replace(case, stack=stack) for case in cases if case.stack in names]


def beginning(facts: StackProfile, bases: Mapping[str, StackProfile]) -> tuple[StackProfile, tuple[str, ...]]:
    """Where the fit of a variant begins, and the numbers that it may move."""
    base_name, free = VARIANTS[facts.name]
    shared = {name: getattr(bases[base_name], name) for name in FITTED if name not in free}
    return msgspec.structs.replace(facts, **shared), free


def fit(
    pricer: CasePricer,
    cases: Sequence[Case],
    start: StackProfile,
    seen: np.ndarray | None = None,
    free: Sequence[str] = FITTED,
) -> StackProfile:
    fitted = fit_profile(pricer, cases, start, seen, free)
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
    folds = folds_of(cases)
    for suffix, places in groups_of(cases).items():
        if len(places) >= LEAST_FOR_A_SPREAD:
            share = held_pct(ratios[places], folds[places])
            LINES.append(f"\nIntervals of other folds' residuals hold {share:.0f} % of runs{suffix}.")
    sys.stdout.flush()


def held_pct(ratios: np.ndarray, folds: np.ndarray) -> float:
    """Share of runs, in per cent, inside the 10th to 90th percentile of the residuals of other folds."""
    held = 0
    for fold in np.unique(folds):
        mine = folds == fold
        if mine.all():
            return float("nan")
        low, high = np.quantile(ratios[~mine], [0.1, 0.9])
        held += int(((ratios[mine] >= low) & (ratios[mine] <= high)).sum())
    return 100.0 * held / len(ratios)


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
    head = "# Errors of training steps, in per cent, as `fit_training.py` printed them\n"
    RESIDUALS.write_text(head + "\n" + "\n".join(LINES), encoding="utf-8")
    common.write_manifest(
        "training", "calibration/fit_training.py", used, ["src/groundplane/catalog/calibration/training.json"]
    )


if __name__ == "__main__":
    main()
