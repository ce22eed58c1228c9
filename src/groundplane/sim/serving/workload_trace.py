"""Request traces from files: CSV or JSONL with named columns, times of day or numbers, block hashes.

Reads what the public traces bring along (CRLF, a byte order mark, fractions of any length, lines out of
order) and refuses the rest in one line with its place. Knows nothing of scaling or of the simulator.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from groundplane.sim.serving.requests import MAX_PRIORITY, MAX_TOKENS
from groundplane.sim.serving.workload_columns import find_columns, named_unit
from groundplane.sim.serving.workload_rows import IntArray, RequestRows
from groundplane.sim.serving.workload_times import numbers_ns, times_of_day_ns, unit_of_size
from groundplane.spec import units
from groundplane.spec.errors import InputError, nearest_name
from groundplane.spec.request_trace import TraceColumns, TraceSpec

MAX_TRACE_BYTES: Final = 2 * 2**30
"""Largest trace file that is read: its lines are held in memory."""

_JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")


def read_trace(spec: TraceSpec, *, folder: Path | None = None) -> RequestRows:
    """The requests of a trace file in the order of their arrival; evenly spaced where the spec has a rate.

    Args:
        spec: which file, which columns, which unit.
        folder: what `spec.path` is relative to.

    Raises:
        InputError: a file that cannot be read, a missing or unknown column, or a cell that is no such value.
    """
    path = (folder or Path()) / spec.path
    file = str(path)
    names, cells, lines = _table(path, file)
    columns = find_columns(names, spec.columns, file=file, need_arrival=spec.rate is None)
    reader = _Cells(file, names, cells, lines)
    rows = RequestRows(
        np.zeros(0, dtype=np.int64), reader.tokens(columns.prompt), reader.tokens(columns.output)
    )
    if spec.rate is None:
        rows.arrival_ns = _arrivals(reader, columns, spec, rows)
    else:
        rows.arrival_ns = np.round(np.arange(len(rows.prompt)) * (1e9 / spec.rate)).astype(np.int64)
    _add_optional(rows, reader, columns, spec)
    return _checked(rows, spec, file)


def _arrivals(reader: _Cells, columns: TraceColumns, spec: TraceSpec, rows: RequestRows) -> IntArray:
    cells = reader.column(columns.arrival)
    if isinstance(cells[0], str) and not _is_number(cells[0]):
        return reader.converted(columns.arrival, times_of_day_ns)
    unit = spec.time_unit or named_unit(columns.arrival)
    if unit is None:
        # Mooncake's files, and those made like them, count milliseconds without saying so.
        unit = "ms" if columns.blocks else unit_of_size(cells)
        rows.notes.append(f"column {columns.arrival} is taken as {unit}; say time_unit if it is not")
    chosen = unit
    return reader.converted(columns.arrival, lambda values: numbers_ns(values, chosen))


def _add_optional(rows: RequestRows, reader: _Cells, columns: TraceColumns, spec: TraceSpec) -> None:
    if columns.session:
        known, place = np.unique(
            np.array([str(cell) for cell in reader.column(columns.session)]), return_inverse=True
        )
        blank = known == ""
        rows.session = np.where(blank[place], -1, place).astype(np.int64)
    if columns.priority:
        rows.priority = reader.whole(columns.priority, least=-MAX_PRIORITY, most=MAX_PRIORITY)
    if columns.model:
        known, place = np.unique(
            np.array([str(cell) for cell in reader.column(columns.model)]), return_inverse=True
        )
        rows.model_names = tuple(str(name) for name in known)
        rows.model = place.astype(np.int64)
    if columns.blocks:
        rows.block_tokens = spec.block_tokens
        rows.block_start, rows.block_hash = _whole_blocks(rows, *reader.lists(columns.blocks))


def _whole_blocks(rows: RequestRows, start: IntArray, hashes: IntArray) -> tuple[IntArray, IntArray]:
    """Hashes of whole prompt blocks: the last of many traces names part of a block, which no cache keeps."""
    counts = np.diff(start)
    kept = np.minimum(counts, rows.prompt // rows.block_tokens)
    place = np.arange(len(hashes), dtype=np.int64) - np.repeat(start[:-1], counts)
    return np.concatenate([[0], np.cumsum(kept)]).astype(np.int64), hashes[place < np.repeat(kept, counts)]


def _checked(rows: RequestRows, spec: TraceSpec, file: str) -> RequestRows:
    """Without failed requests, in order, counted from the first, no longer than asked for."""
    kept = (rows.prompt > 0) & (rows.output > 0)
    if not kept.any():
        raise InputError("holds no request with prompt and output tokens", file=file)
    unsorted = int((np.diff(rows.arrival_ns) < 0).sum())
    if not kept.all():
        rows.notes.append(f"{int((~kept).sum()):,} requests without prompt or output tokens are left out")
    if unsorted:
        rows.notes.append(f"arrivals went back in time at {unsorted:,} places and have been sorted")
    if unsorted or not kept.all():
        rows = rows.take(np.flatnonzero(kept)).in_order()
    if spec.limit is not None and spec.limit < len(rows):
        rows = rows.take(np.arange(spec.limit))
    rows.arrival_ns = rows.arrival_ns - rows.arrival_ns[0]
    return rows


class _Cells:
    """Columns of one table, with the line of each row for errors."""

    def __init__(
        self, file: str, names: Sequence[str], cells: Sequence[Sequence[Any]], lines: IntArray
    ) -> None:
        self._file, self._names, self._cells, self._lines = file, list(names), cells, lines

    def column(self, name: str) -> Sequence[Any]:
        """The cells of a column."""
        return self._cells[self._names.index(name)]

    def tokens(self, name: str) -> IntArray:
        """A column of token counts."""
        return self.whole(name, least=0, most=MAX_TOKENS)

    def whole(self, name: str, *, least: int, most: int) -> IntArray:
        """A column of whole numbers; "12.0" is one."""

        def convert(values: Sequence[Any]) -> IntArray:
            # A null, true or a list is no number, though numpy would make one of some of them.
            if any(isinstance(value, bool) or not isinstance(value, str | int | float) for value in values):
                raise ValueError("must be a whole number")
            numbers = np.array(values).astype(np.float64)
            if not np.isfinite(numbers).all() or (numbers != np.floor(numbers)).any():
                raise ValueError("must be a whole number")
            if (numbers < least).any():
                raise ValueError("must not be negative" if least == 0 else f"must be at least {least}")
            if (numbers > most).any():
                raise ValueError(f"must be at most {most:,}")
            return numbers.astype(np.int64)

        return self.converted(name, convert, "must be a whole number")

    def converted(
        self, name: str, convert: Callable[[Sequence[Any]], IntArray], rule: str | None = None
    ) -> IntArray:
        """A column through `convert`; its ValueError becomes ours, at the first row that alone raises it."""
        values = self.column(name)
        try:
            return convert(values)
        except (ValueError, TypeError, OverflowError):
            for row, value in enumerate(values):
                try:
                    convert([value])
                except (ValueError, TypeError, OverflowError) as error:
                    own = str(error)
                    said = own if own.startswith("must") else (rule or "cannot be read")
                    raise InputError(
                        said, file=self._file, line=int(self._lines[row]), field=name, value=value
                    ) from None
            raise

    def lists(self, name: str) -> tuple[IntArray, IntArray]:
        """A column of lists of whole numbers, as starts and one long array."""
        found: list[list[int]] = []
        for row, cell in enumerate(self.column(name)):
            try:
                value = msgspec.json.decode(cell, type=list[int]) if isinstance(cell, str) else cell
                if value is None or value == "":
                    value = []
                if not isinstance(value, list) or any(type(one) is not int for one in value):
                    raise ValueError
                if any(not -(2**63) <= one < 2**63 for one in value):
                    raise ValueError
            except (ValueError, msgspec.DecodeError):
                raise InputError(
                    "must be a list of whole numbers of at most 64 bits",
                    file=self._file, line=int(self._lines[row]), field=name, value=cell,
                ) from None  # fmt: skip
            found.append(value)
        counts = np.array([len(one) for one in found], dtype=np.int64)
        start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return start, np.array([one for each in found for one in each], dtype=np.int64)


# Files
# ----------------------------------------------------------------------------------------------------


def _table(path: Path, file: str) -> tuple[list[str], list[Sequence[Any]], IntArray]:
    """Names, columns and the line of each row."""
    text = _text(path, file)
    if path.suffix.lower() in _JSON_SUFFIXES or text.lstrip()[:1] in ("{", "["):
        return _json_table(text, file)
    return _csv_table(text, file)


def _text(path: Path, file: str) -> str:
    try:
        if path.stat().st_size > MAX_TRACE_BYTES:
            raise InputError(f"must be smaller than {units.show_bytes(MAX_TRACE_BYTES)}", file=file)
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError("no such file", file=file, nearest=nearest_name(path.name, beside)) from None
    except UnicodeDecodeError:
        raise InputError("must be UTF-8 text", file=file) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=file) from None
    if "\0" in text:
        raise InputError("must be text, and holds a zero byte", file=file)
    if not text.strip():
        raise InputError("is empty", file=file)
    return text


def _csv_table(text: str, file: str) -> tuple[list[str], list[Sequence[Any]], IntArray]:
    head = text.partition("\n")[0]
    delimiter = max((",", "\t", ";"), key=head.count)
    rows: list[list[str]] = []
    lines: list[int] = []
    names: list[str] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        for row in reader:
            if not row or row == [""]:
                continue
            if not names:
                names = [name.strip() for name in row]
                continue
            if len(row) != len(names):
                raise InputError(
                    f"must have {len(names)} cells as the header, has {len(row)}",
                    file=file,
                    line=reader.line_num,
                )
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(f"is no CSV: {error}", file=file, line=reader.line_num) from None
    if not rows:
        raise InputError("holds a header and no requests", file=file)
    return names, [*zip(*rows, strict=True)], np.array(lines, dtype=np.int64)


def _json_table(text: str, file: str) -> tuple[list[str], list[Sequence[Any]], IntArray]:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    if text.lstrip()[0] == "[":
        try:
            rows = msgspec.json.decode(text, type=list[dict[str, Any]])
        except msgspec.MsgspecError as error:
            raise InputError(f"must be a list of objects: {error}", file=file) from None
        lines = [1] * len(rows)
    else:
        decoder = msgspec.json.Decoder(dict[str, Any])
        for number, line in enumerate(text.split("\n"), start=1):
            if line and not line.isspace():
                try:
                    rows.append(decoder.decode(line))
                except msgspec.MsgspecError as error:
                    raise InputError(
                        f"must be one JSON object a line: {error}", file=file, line=number
                    ) from None
                lines.append(number)
    if not rows:
        raise InputError("holds no requests", file=file)
    names = [*rows[0]]
    for name in names:
        for row, number in zip(rows, lines, strict=True):
            if name not in row:
                raise InputError("is missing", file=file, line=number, field=name)
    return names, [[row[name] for row in rows] for name in names], np.array(lines, dtype=np.int64)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
