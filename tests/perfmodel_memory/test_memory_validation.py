"""Validation of memory: tables, what is excluded, and the errors on published runs."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import numpy as np
import pytest

from groundplane.perfmodel.memory_profile import FITTED, MemoryProfile, memory_profile, shipped_memory
from groundplane.perfmodel.memory_training import training_memory, usable_bytes
from groundplane.perfmodel.published import COLUMNS, case_of, runs_of
from groundplane.perfmodel.sources import stack_of
from groundplane.perfmodel.strategy import Layouts
from groundplane.perfmodel.validation.memory import balanced_accuracy_pct, cases_of, validate_memory
from groundplane.perfmodel.validation.memory_rows import FIT_COLUMNS, GIB
from groundplane.perfmodel.validation.report import Excluded
from groundplane.perfmodel.validation.table import read_table
from groundplane.spec.errors import InputError

ROW = {
    "source": "HF nanotron sweep", "job_id": "14113488", "model": "Llama-like 1.34G", "layers": "16",
    "hidden": "2048",
    "ffn": "8192", "heads": "32", "kv_heads": "32", "vocab": "131072", "seq_len": "4096", "n_chips": "8",
    "chip_mem_gb": "80", "tp": "1", "pp": "1", "dp": "8", "zero": "0", "micro_batch": "2", "grad_accum": "16",
    "status": "Success", "mem_alloc_gb": "25.07", "mem_reserved_gb": "50.18",
}  # fmt: skip


def table(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_sweep_tells_fit_from_out_of_memory(tmp_path: Path) -> None:
    large = ROW | {"status": "OOM", "micro_batch": "64", "mem_reserved_gb": "", "mem_alloc_gb": ""}
    other = ROW | {"status": "Other", "mem_reserved_gb": ""}
    report = validate_memory(table(tmp_path / "sweep.csv", ROW, large, other))
    assert report.pooled.n == 1
    assert msgspec.to_builtins(report.pooled)["balanced_accuracy_pct"] == 100
    assert report.pooled.median_abs_pct is not None
    assert report.pooled.median_abs_pct < 10
    assert [(one.row, "neither" in one.reason) for one in report.excluded] == [(4, True)]


def test_a_table_of_one_kind_has_no_balanced_accuracy(tmp_path: Path) -> None:
    report = validate_memory(table(tmp_path / "sweep.csv", ROW))
    assert msgspec.to_builtins(report.pooled)["balanced_accuracy_pct"] is None


def test_balanced_accuracy_by_hand() -> None:
    out = np.array([True, True, True, True, False, False])
    told = np.array([True, True, True, False, False, True])
    assert balanced_accuracy_pct(out, told) == 62.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tp": "0"}, "tp"), ({"micro_batch": "two"}, "micro_batch"), ({"hidden": ""}, "hidden"),
        ({"chip_mem_gb": "-80"}, "chip_mem_gb"),
    ],
)  # fmt: skip
def test_bad_cells_are_named_with_their_line(tmp_path: Path, change: dict[str, str], words: str) -> None:
    path = table(tmp_path / "sweep.csv", ROW, ROW | change)
    with pytest.raises(InputError) as caught:
        validate_memory(path)
    assert (caught.value.line, caught.value.field) == (3, words)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = table(tmp_path / "sweep.csv", {name: value for name, value in ROW.items() if name != "zero"})
    with pytest.raises(InputError, match="'zero' is missing"):
        validate_memory(path)


def test_releases_follow_from_job_numbers(tmp_path: Path) -> None:
    jobs = ("13436293", "14019169", "14113488", "")
    path = table(tmp_path / "sweep.csv", *[ROW | {"job_id": job} for job in jobs])
    cases, _ = cases_of(path)
    assert [case.stack for case in cases] == ["nanotron-2024-12", "nanotron-2025-01", "nanotron", "nanotron"]
    without = table(tmp_path / "no-jobs.csv", {name: ROW[name] for name in FIT_COLUMNS})
    assert cases_of(without)[0][0].stack == "nanotron"


def test_a_head_is_tied_where_only_that_meets_the_named_size(tmp_path: Path) -> None:
    small, named = ROW, ROW | {"model": "Llama-like 1.61G"}
    cases, _ = cases_of(table(tmp_path / "sweep.csv", small, named))
    assert [case.model.tied_embeddings for case in cases] == [True, False]
    assert cases[0].measured_bytes == 50.18 * GIB


def test_cited_points_come_within_a_tenth() -> None:
    report = validate_memory()
    errors = [*report.sources, *report.small_sources]
    assert sum(one.n for one in errors) >= 15
    assert report.inferred.median_abs_pct is not None
    assert report.inferred.median_abs_pct < 5
    assert report.pooled.median_abs_pct is not None
    assert report.pooled.median_abs_pct < 5


def test_every_stack_of_the_tables_has_a_profile() -> None:
    names = ("MosaicML", "nanotron", "vTrain", "BLOOM", "InternEvo", "torchtitan", "MaxText", "MegaScale",
             "Korthikanti", "SimuMax")  # fmt: skip
    for name in names:
        assert memory_profile(stack_of(name, "", "")).num_points


def test_profiles_have_a_handful_of_fitted_numbers() -> None:
    empty = MemoryProfile("empty")
    for profile in shipped_memory().profiles:
        moved = [name for name in FITTED if getattr(profile, name) != getattr(empty, name)]
        assert len(moved) <= 8
        assert profile.ratio_p10 < 1 < profile.ratio_p90
        assert profile.num_points >= 5


@pytest.mark.shared
def test_acceptance_on_the_nanotron_sweep(shared: Path) -> None:
    pooled = msgspec.to_builtins(validate_memory(shared / "measured" / "memory_fit_nanotron.csv").pooled)
    assert pooled["balanced_accuracy_pct"] >= 97
    assert pooled["median_abs_pct"] <= 5
    assert 75 <= pooled["coverage_pct"] <= 85


@pytest.mark.shared
def test_acceptance_on_published_runs(shared: Path) -> None:
    report = validate_memory(shared / "measured" / "training_measured.csv")
    errors = {one.source.split()[0]: one.median_abs_pct for one in report.sources}
    assert errors["SimuMax"] is not None
    assert errors["SimuMax"] <= 5
    assert errors["torchtitan"] is not None
    assert errors["torchtitan"] <= 5
    assert errors["BigScience"] is not None
    assert errors["BigScience"] <= 5


@pytest.mark.shared
def test_what_ran_is_told_to_fit(shared: Path) -> None:
    # Runs whose time was published ran: what they needed, at the low end of the interval, was there.
    told: dict[str, list[bool]] = {}
    for run in runs_of(read_table(shared / "measured" / "training_measured.csv", COLUMNS)):
        case = case_of(run)
        if isinstance(case, Excluded) or case.stack not in ("llm-foundry", "megatron-core", "megascale"):
            continue
        profile = memory_profile(case.stack)
        needed = min(
            float(training_memory(case.model, case.seq, Layouts.of(**layout), profile).needed_bytes[0])
            for layout in case.layouts
        )
        limit = usable_bytes(case.cluster.chip.memory_bytes, profile)
        told.setdefault(case.stack, []).append(needed * profile.ratio_p10 <= limit)
    assert sum(len(runs) for runs in told.values()) > 100
    for stack, runs in told.items():
        assert np.mean(runs) >= 0.9, stack
