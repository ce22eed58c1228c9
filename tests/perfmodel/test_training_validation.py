"""`validate training`: shipped points, a user's table, the contract of its JSON, the reference data."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from groundplane.cli.validate import validate_command
from groundplane.perfmodel.case_prices import CasePricer
from groundplane.perfmodel.profiles import FITTED, StackProfile, training_calibration
from groundplane.perfmodel.published import COLUMNS, runs_of
from groundplane.perfmodel.training_fit import BOUNDS, fit_profile, folds_of, unseen_ratios
from groundplane.perfmodel.validation.table import shipped_table
from groundplane.perfmodel.validation.training import cases_of, validate_training
from groundplane.spec.errors import InputError

KEYS = {"source", "n", "median_abs_pct", "mean_abs_pct", "p90_abs_pct", "bias_pct", "coverage_pct"}


def test_the_shipped_points_are_predicted_well() -> None:
    report = validate_training().report
    assert report.pooled.n > 15
    assert report.pooled.median_abs_pct < 8
    assert report.inferred.median_abs_pct < 20


def test_json_holds_the_contract() -> None:
    done = CliRunner().invoke(validate_command, ["training", "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert KEYS == set(found["pooled"]) == set(found["inferred"])
    assert all(set(one) == KEYS and one["n"] >= 5 for one in found["sources"])
    assert all(set(one) == KEYS and one["n"] < 5 for one in found["small_sources"])
    assert all(set(one) == {"row", "reason"} for one in found["excluded"])
    assert set(found["profile_parameters"].values()) == {len(FITTED)}
    assert found["null_model"]["pooled"]["median_abs_pct"] > 2 * found["pooled"]["median_abs_pct"]


def test_the_table_for_people_names_every_reason() -> None:
    done = CliRunner().invoke(validate_command, ["training"], catch_exceptions=False)
    assert "null model" in done.output
    assert "fitted without it" in done.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source,where\na,b\n", "column 'model' is missing"),
        (",".join(COLUMNS) + "\n", "holds no rows"),
        ("", "must begin with a line of column names"),
    ],
)
def test_a_wrong_table_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        validate_training(file)


def test_fitted_numbers_stay_within_physical_limits() -> None:
    calibration = training_calibration()
    for profile in (*calibration.profiles, *calibration.without_source.values()):
        for name in FITTED:
            low, high = BOUNDS[name]
            assert low * 0.999 <= getattr(profile, name) <= high * 1.001, (profile.name, name)


def test_intervals_hold_their_median() -> None:
    for name, spread in training_calibration().spreads.items():
        assert spread.ratio_p10 < spread.ratio_p50 < spread.ratio_p90, name


def test_a_fit_finds_the_numbers_that_made_the_data() -> None:
    cases, _ = cases_of(runs_of(shipped_table("points_training.csv", COLUMNS)))
    stack = "llm-foundry"
    own = [case for case in cases if case.stack == stack]
    truth = StackProfile(stack, sustained=0.8, exposed_share=0.5)
    pricer = CasePricer(own)
    made = pricer.step_s({stack: truth})
    exact = [
        dataclasses.replace(case, measured_s=seconds)
        for case, seconds in zip(own, made.tolist(), strict=True)
    ]
    fitted = fit_profile(pricer, exact, StackProfile(stack))
    again = pricer.step_s({stack: fitted})
    assert np.max(np.abs(again / made - 1.0)) < 0.03


def test_folds_keep_equal_runs_together_and_residuals_are_of_unseen_ones() -> None:
    cases, _ = cases_of(runs_of(shipped_table("points_training.csv", COLUMNS)))
    own = [case for case in cases if case.stack == "llm-foundry"]
    folds = folds_of(own + own)
    assert np.array_equal(folds[: len(own)], folds[len(own) :])
    ratios = unseen_ratios(CasePricer(own), own, StackProfile("llm-foundry"))
    assert ratios.shape == (len(own),)
    assert np.all(ratios > 0)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "median", "mean"),
    [
        ("training_measured.csv", 6.0, 9.0),
        ("training_measured_vtrain_single.csv", 5.0, 6.0),
        ("training_measured_nanotron.csv", 15.0, 40.0),
    ],
)
def test_reference_tables_are_met(name: str, median: float, mean: float) -> None:
    shared = Path(os.environ.get("GROUNDPLANE_SHARED") or Path(__file__).resolve().parents[3] / "shared")
    file = shared / "measured" / name
    if not file.is_file():
        pytest.skip(f"{file} is not here")
    pooled = validate_training(file).report.pooled
    assert pooled.median_abs_pct <= median
    assert pooled.mean_abs_pct <= mean
    assert 75 <= pooled.coverage_pct <= 90
