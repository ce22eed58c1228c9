"""`groundplane calibrate`: a user's own runs become a profile that the planner takes."""

import csv
import json
from importlib import resources
from pathlib import Path

import pytest
from click.testing import CliRunner

from groundplane.cli.calibrate import calibrate_command
from groundplane.perfmodel.profiles import stack_profile, training_calibration
from groundplane.perfmodel.published import COLUMNS
from groundplane.spec.errors import InputError


def runs(folder: Path, source: str, count: int) -> Path:
    text = resources.files("groundplane.catalog").joinpath("calibration", "points_training.csv").read_text()
    rows = [row for row in csv.DictReader(text.splitlines()) if source in row["source"]]
    file = folder / "ours.csv"
    with file.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, COLUMNS)
        writer.writeheader()
        writer.writerows(rows[:count])
    return file


def test_own_runs_become_a_profile(tmp_path: Path) -> None:
    out = tmp_path / "ours.yaml"
    data = runs(tmp_path, "InternEvo", 12)
    arguments = [str(data), "--stack", "internevo", "--out", str(out), "--json"]
    done = CliRunner().invoke(calibrate_command, arguments, catch_exceptions=False)
    found = json.loads(done.stdout)
    assert set(found["errors"]) == {"before", "fitted", "unseen"}
    assert found["errors"]["fitted"]["median_abs_pct"] <= found["errors"]["before"]["median_abs_pct"] + 2
    profile = stack_profile(str(out))
    assert profile.name == "internevo-ours"
    assert profile.gradient_bytes == stack_profile("internevo").gradient_bytes
    calibration = training_calibration()
    for several in (False, True):
        assert calibration.spread_of(profile.name, several_servers=several) == calibration.spread_of(
            "internevo", several_servers=several
        )


def test_too_few_runs_are_refused(tmp_path: Path) -> None:
    data = runs(tmp_path, "DeepSeek", 1)
    with pytest.raises(InputError, match="holds 1 runs that can be priced, 3 are needed"):
        CliRunner().invoke(calibrate_command, [str(data), "--stack", "megatron-core"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.csv", "--stack", "megatron-cor"], "unknown software stack"),
        (["x.csv", "--stack", "megatron-core", "--out", "x.txt"], "must end in .yaml"),
        (["nothing.csv", "--stack", "megatron-core"], "no such file"),
    ],
)
def test_bad_arguments_are_one_clear_line(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(calibrate_command, arguments, catch_exceptions=False)
