"""`groundplane catalog` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from groundplane.catalog.tables import KINDS
from groundplane.cli.catalog import catalog_command
from groundplane.cli.main import root
from groundplane.spec.errors import InputError


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(root, ["catalog", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("kind", KINDS)
def test_every_section_lists_and_prints_json(kind: str) -> None:
    lines = _run(kind).splitlines()
    data = json.loads(_run(kind, "--json"))
    assert len(data) == len(lines) - 1
    assert all(line == line.rstrip() for line in lines)


def test_one_entry_shows_its_sources() -> None:
    text = _run("chips", "h100")
    assert "sources:" in text
    assert "989 TFLOP/s" in text
    data = json.loads(_run("chips", "h100", "--json"))
    assert data["peak"]["bf16"] == 989e12
    assert data["sources"]["*"]


def test_a_model_shows_exact_parameters_by_component() -> None:
    data = json.loads(_run("models", "mixtral-8x7b", "--json"))
    assert data["parameters"]["total"] == 46_702_792_704
    assert data["source"].startswith("huggingface.co/mistralai/")
    assert "config:" in _run("models", "mixtral-8x7b")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "more.yaml"
    file.write_text("chips:\n  new-chip: {base: h100}\n")
    assert "new-chip" in _run("chips", "--catalog", str(file))


@pytest.mark.parametrize(
    ("arguments", "nearest"), [(["chip"], "chips"), (["chips", "h101"], "h100"), (["models", "gpt3"], "gpt2")]
)
def test_unknown_names(arguments: list[str], nearest: str) -> None:
    with pytest.raises(InputError) as caught:
        CliRunner().invoke(catalog_command, arguments, catch_exceptions=False, standalone_mode=False)
    assert caught.value.nearest == nearest
