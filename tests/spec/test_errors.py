"""How errors read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.spec.errors import InputError, nearest_name, unknown_name


def test_one_line_with_file_line_field_value_and_nearest() -> None:
    error = InputError(
        "unknown field", file="job.yaml", line=3, field="train.sepz", value=12, nearest="steps"
    )
    assert str(error) == "job.yaml:3: train.sepz: unknown field, got 12; did you mean 'steps'?"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InputError("is wrong"), "is wrong"),
        (InputError("is wrong", file="a.yaml"), "a.yaml: is wrong"),
        (InputError("is wrong", field="x"), "x: is wrong"),
        (InputError("is wrong", value=None), "is wrong, got None"),
        (InputError("is wrong", value="x" * 200), "is wrong, got '" + "x" * 76 + "..."),
    ],
)
def test_parts_that_are_unknown_are_left_out(error: InputError, text: str) -> None:
    assert str(error) == text


def test_a_caller_adds_the_place_but_never_replaces_it() -> None:
    error = InputError("is wrong", field="x").at(file="a.yaml", line=2, field="y").at(file="b.yaml", line=9)
    assert (error.file, error.line, error.field) == ("a.yaml", 2, "x")


def test_nearest_name_ignores_case_and_gives_up_when_far() -> None:
    assert nearest_name("H10O", ["h100", "a100"]) == "h100"
    assert nearest_name("zzz", ["h100", "a100"]) is None


@settings(deadline=None)
@given(st.lists(st.text(alphabet="abcdef123", min_size=1, max_size=6), min_size=1, max_size=40))
def test_unknown_name_never_lists_more_than_twelve(names: list[str]) -> None:
    error = unknown_name("chip", "zz", names)
    assert error.rule.startswith("unknown chip; known: ")
    assert error.rule.count(",") <= 13
    assert error.value == "zz"
