"""Reads CSV tables of measurements and says clearly what is wrong with one."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from groundplane.spec.errors import InputError, nearest_name
from groundplane.spec.load import read_text


class Row:
    """One line of a table: text by column, with the place for errors and reasons."""

    __slots__ = ("file", "line", "values")

    def __init__(self, file: str, line: int, values: dict[str, str]) -> None:
        self.file = file
        self.line = line
        self.values = values

    def text(self, column: str) -> str:
        """The column's text without blanks around, "" where absent."""
        return (self.values.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """The column's number, None where blank.

        Raises:
            InputError: not a number, not finite, or negative.
        """
        written = self.text(column)
        if not written:
            return None
        try:
            value = float(written)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            raise self.error("must be a number that is not negative", column)
        return value

    def positive(self, column: str) -> float:
        """The column's number, which must be given and above zero.

        Raises:
            InputError: blank, not a number, or not positive.
        """
        value = self.number(column)
        if value is None or value <= 0:
            raise self.error("must be a positive number", column)
        return value

    def error(self, rule: str, column: str) -> InputError:
        """An error at this line and column."""
        return InputError(rule, file=self.file, line=self.line, field=column, value=self.text(column))


def read_table(path: str | Path, required: Sequence[str]) -> list[Row]:
    """The rows of a CSV file that has at least the columns in `required`.

    Raises:
        InputError: unreadable file, no header, a missing column (with the nearest), or no rows.
    """
    return _parse(read_text(Path(path)), str(path), required)


def shipped_table(name: str, required: Sequence[str]) -> list[Row]:
    """As `read_table`, for the points cited in the catalogue."""
    text = resources.files("groundplane.catalog").joinpath("calibration", name).read_text(encoding="utf-8")
    return _parse(text, name, required)


def _parse(text: str, file: str, required: Sequence[str]) -> list[Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    columns = [column.strip() for column in reader.fieldnames or []]
    if not columns:
        raise InputError("must begin with a line of column names", file=file, line=1)
    reader.fieldnames = columns
    for column in required:
        if column not in columns:
            raise InputError(
                f"column {column!r} is missing; needed: {', '.join(required)}",
                file=file,
                line=1,
                nearest=nearest_name(column, [name for name in columns if name not in required]),
            )
    rows = [Row(file, reader.line_num, values) for values in reader]
    if not rows:
        raise InputError("holds no rows", file=file)
    return rows
