"""`groundplane plan train MODEL` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from groundplane.catalog import model_entry
from groundplane.cli.main import root
from groundplane.cli.plan_train import changed_parts, number_of_tokens
from groundplane.spec.errors import InputError

pytestmark = pytest.mark.usefixtures("calibration")

ARGUMENTS = ["--cluster", "h100x16", "--global-batch", "32", "--seq", "4096"]
LAYOUT = ["--layout", "tp=2,cp=1,pp=2,vpp=1,dp=4,micro=1,zero=1,sp,recompute=none"]


def _run(*arguments: str, model: str = "llama-3.1-8b") -> str:
    result = CliRunner().invoke(
        root, ["plan", "train", model, *ARGUMENTS, *arguments], catch_exceptions=False, standalone_mode=False
    )
    return result.output


def test_the_plan_for_people() -> None:
    text = _run(*LAYOUT, "--tokens", "15T")
    for words in (
        "in 8 of 10 cases", "MFU", "HFU", "bottleneck", "15 T tokens", "chip-hours", "matrix products",
        "weights", "what would relieve it", "evidence:", "assumed:",
    ):  # fmt: skip
        assert words in text, words


def test_json_page_and_trace(tmp_path: Path) -> None:
    page, trace = tmp_path / "plan.html", tmp_path / "step.json"
    data = json.loads(_run("--layout", "tp=2,pp=2", "--json", "--html", str(page), "--trace", str(trace)))
    assert data["fits"]
    assert data["estimate"]["step_low_s"] < data["estimate"]["step_s"] < data["estimate"]["step_high_s"]
    assert data["layout_parts"]["tp"] == 2
    assert len(data["next_best"]) == 4
    assert data["front"][0]["step_s"] == data["estimate"]["step_s"]
    html = page.read_text()
    for words in (
        "Where the time goes",
        "Memory of the fullest chip",
        "Scaling",
        "One step",
        "no layout beats",
    ):
        assert words in html, words
    events = json.loads(trace.read_text())
    assert events["otherData"]["estimated_step_s"] == data["estimate"]["step_s"]


def test_a_config_file_is_a_model(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(model_entry("llama-3.1-8b")["config"]))
    mine = json.loads(_run(*LAYOUT, "--json", model=str(config)))
    named = json.loads(_run(*LAYOUT, "--json"))
    assert mine["estimate"] == named["estimate"]


def test_what_does_not_fit_is_said_with_what_would() -> None:
    text = _run("--layout", "tp=1,cp=1,pp=1,micro=2,zero=0")
    assert "does not fit" in text
    assert "to make it fit:" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tokens", "15Q"], "--tokens: must be a positive number such as 15T"),
        (["--html", "/none/at/all.html"], "no such folder"),
        (["--layout", "tpp=2"], "unknown part of a layout"),
        (["--global-batch", "-8"], "must be a positive integer"),
        (["--schedules", ""], "must name one schedule"),
        (["--cluster", "h1000x8"], "no such file, and no preset"),
    ],
)
def test_bad_input(arguments: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        _run(*arguments)


def test_a_model_needs_a_batch_and_a_job_file_takes_none(tmp_path: Path) -> None:
    runner = CliRunner()
    with pytest.raises(InputError, match="--global-batch: is required"):
        runner.invoke(
            root,
            ["plan", "train", "gpt2", "--cluster", "h100x8"],
            catch_exceptions=False,
            standalone_mode=False,
        )
    job = tmp_path / "job.yaml"
    with pytest.raises(InputError, match="--global-batch: is only for a model"):
        runner.invoke(
            root, ["plan", "train", str(job), *ARGUMENTS], catch_exceptions=False, standalone_mode=False
        )


def test_numbers_of_tokens() -> None:
    assert number_of_tokens("15T") == 15e12
    assert number_of_tokens("300B") == number_of_tokens("300 G") == 300e9
    assert number_of_tokens("2e12") == 2e12
    for text in ("", "T", "-1", "0", "1e999", "1.5.2T"):
        with pytest.raises(InputError):
            number_of_tokens(text)


def test_only_what_changed_is_shown() -> None:
    assert changed_parts("tp=2,micro=1,zero=1", "tp=2,micro=2,zero=1") == "micro=2"
