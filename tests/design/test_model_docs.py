"""The examples in the docs of the model run as they stand."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "docs" / "model" / "README.md"


@pytest.mark.usefixtures("calibration")
def test_examples_of_the_readme() -> None:
    result = doctest.testfile(str(README), module_relative=False)
    assert result.attempted >= 4
    assert result.failed == 0
