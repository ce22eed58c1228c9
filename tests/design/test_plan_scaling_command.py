"""`groundplane plan scaling` as a user types it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from groundplane.cli import plan_scaling
from groundplane.cli.main import root
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.profiles import StackProfile
from groundplane.spec.errors import InputError

ARGUMENTS = ["plan", "scaling", "llama-3.1-8b", "--cluster", "h100", "--global-batch", "128", "--seq", "4096"]


@pytest.fixture(autouse=True)
def _plain_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack that no fit moves, so that these tests do not change with a calibration."""
    monkeypatch.setattr("groundplane.perfmodel.profiles.stack_profile", StackProfile)
    monkeypatch.setattr("groundplane.perfmodel.memory_profile.memory_profile", MemoryProfile)


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(root, [*ARGUMENTS, *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_a_table_with_one_line_a_size() -> None:
    lines = _run("--chips", "16,64").splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("16 ")
    assert "100.0 %" in lines[2]


def test_json_with_layouts_and_what_ifs() -> None:
    data = json.loads(_run("--chips", "16,32", "--json", "--what-if", "--layout", "tp=2,recompute=selective"))
    assert [point["chips"] for point in data["points"]] == [16, 32]
    point = data["points"][0]
    assert point["fits"]
    assert point["layout"]["tp"] == 2
    assert point["layout"]["recompute"] == "selective"
    assert point["layout"]["tp"] * point["layout"]["cp"] * point["layout"]["pp"] * point["layout"]["dp"] == 16
    assert {item["change"] for item in data["what_if"]} >= {"twice the memory", "network cards twice as fast"}


def test_what_does_not_fit_is_said() -> None:
    arguments = [
        "llama-3.1-405b",
        "--cluster",
        "l40s",
        "--global-batch",
        "8",
        "--seq",
        "4096",
        "--chips",
        "8",
    ]
    result = CliRunner().invoke(root, ["plan", "scaling", *arguments], catch_exceptions=False)
    assert "does not fit: needs" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--chips", "16,many"], "positive integers with commas"),
        (["--chips", "64,16"], "must ascend"),
        (["--chips", "12"], "must fill whole servers of 8 chips"),
        (["--chips", "16", "--layout", "tpp=2"], "unknown part of a layout"),
        (["--chips", "16", "--schedules", "gpipe"], "unknown schedule"),
        (["--chips", "16", "--layout", "tp=7"], "no layout divides"),
        (["--chips", "16", "--seq", "0"], "positive integer"),
    ],
)
def test_bad_input(arguments: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        CliRunner().invoke(root, [*ARGUMENTS, *arguments], catch_exceptions=False, standalone_mode=False)


def test_sizes_are_parsed() -> None:
    assert plan_scaling.whole_numbers("8, 16,32") == [8, 16, 32]
