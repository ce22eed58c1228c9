"""Where text comes from: files, folders, globs, .jsonl, .parquet, and the sources of Python's own library.

`check` is for whoever accepts a job, long before it runs; it imports nothing heavy. `documents` yields the
text in one fixed order. Knows nothing of tokens.
"""

from __future__ import annotations

import glob
import json
import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from groundplane.spec.errors import InputError, nearest_name

PYTHON_SOURCES: Final = "python-sources"
PYTHON_SOURCES_LIMIT_BYTES: Final = 24 << 20
MAX_PIECE_BYTES: Final = 1 << 20
"""Longer texts are cut here, so that a file of any size is read in bounded memory."""
_SKIPPED_FOLDERS: Final = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def check(data: Sequence[str], text_field: str = "text") -> None:
    """Refuses sources that do not exist or hold nothing.

    Args:
        data: as in `TrainSpec.data`.
        text_field: the field of .jsonl and .parquet rows that holds the text.

    Raises:
        InputError: a missing path (with the nearest name beside it), an empty one, or rows without the field.
    """
    if not data:
        raise InputError("must name at least one source of text", field="data")
    for index, source in enumerate(data):
        files = list_files(source, field=f"data[{index}]")
        if not any(file.stat().st_size for file in files):
            raise InputError("holds no text", field=f"data[{index}]", value=source)
        for file in files:
            _check_rows(file, text_field, field=f"data[{index}]")


def list_files(source: str, *, field: str = "data") -> list[Path]:
    """The files of one source, sorted by path.

    Raises:
        InputError: nothing there, or a file that cannot be read.
    """
    if source == PYTHON_SOURCES:
        return _python_files()
    path = Path(source).expanduser()
    if path.is_dir():
        files = [
            Path(here) / name
            for here, _, names in os.walk(path)
            for name in names
            if not name.startswith(".")
        ]
    elif path.is_file():
        files = [path]
    elif glob.has_magic(source):
        files = [Path(name) for name in glob.glob(str(path), recursive=True) if os.path.isfile(name)]
    else:
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest_name(path.name, beside) or nearest_name(source, [PYTHON_SOURCES])
        raise InputError("no such file, folder or built-in corpus", field=field, value=source, nearest=near)
    if not files:
        raise InputError("matches no file", field=field, value=source)
    for file in files:
        if not os.access(file, os.R_OK):
            raise InputError("cannot be read", field=field, value=str(file))
    return sorted(files)


def total_bytes(data: Sequence[str]) -> int:
    """Size of all files of all sources."""
    return sum(file.stat().st_size for source in data for file in list_files(source))


def documents(data: Sequence[str], text_field: str) -> Iterator[Iterator[str]]:
    """Every document of every source in order, each as pieces of at most about `MAX_PIECE_BYTES`.

    A text file is one document, and so is each row of a .jsonl or .parquet file. Empty ones are left out.
    Bytes that are no UTF-8 become U+FFFD.
    """
    for source in data:
        for file in list_files(source):
            if file.suffix == ".jsonl":
                yield from (_pieces(text) for text in _jsonl_rows(file, text_field) if text)
            elif file.suffix == ".parquet":
                yield from (_pieces(text) for text in _parquet_rows(file, text_field) if text)
            elif file.stat().st_size:
                yield _file_pieces(file)


def _python_files() -> list[Path]:
    """The library's .py and .txt files in order of their relative path, up to the size limit."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[Path] = []
    for here, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        found += [Path(here) / name for name in names if name.endswith((".py", ".txt"))]
    found.sort(key=lambda file: file.relative_to(root).parts)
    files, size = [], 0
    for file in found:
        size += file.stat().st_size
        if size > PYTHON_SOURCES_LIMIT_BYTES:
            break
        files.append(file)
    return files


def _file_pieces(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8", errors="replace", newline="") as stream:
        while piece := stream.read(MAX_PIECE_BYTES):
            yield piece + stream.readline() if len(piece) == MAX_PIECE_BYTES else piece


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), MAX_PIECE_BYTES):
        yield text[start : start + MAX_PIECE_BYTES]


def _jsonl_rows(file: Path, text_field: str) -> Iterator[str]:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                raise InputError("is not valid JSON", file=str(file), line=number) from None
            if not isinstance(row, dict) or not isinstance(row.get(text_field), str):
                near = nearest_name(text_field, row) if isinstance(row, dict) else None
                raise InputError(
                    f"has no text in the field {text_field!r}", file=str(file), line=number, nearest=near
                )
            yield row[text_field]


def _parquet_rows(file: Path, text_field: str) -> Iterator[str]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as table:
        for group in table.iter_batches(batch_size=256, columns=[text_field]):
            yield from (text for text in group.column(0).to_pylist() if text is not None)


def _check_rows(file: Path, text_field: str, *, field: str) -> None:
    """Looks at the first row, so that a wrong field name is said before devices are taken."""
    if file.suffix == ".jsonl":
        next(_jsonl_rows(file, text_field), None)
    elif file.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        try:
            kinds = {column.name: column.type for column in parquet.read_schema(file)}
        except pyarrow.ArrowInvalid:
            raise InputError("is not a Parquet file", field=field, value=str(file)) from None
        if text_field not in kinds:
            near = nearest_name(text_field, kinds)
            raise InputError(
                f"has no column {text_field!r}", file=str(file), field="text_field", nearest=near
            )
        if not (
            pyarrow.types.is_string(kinds[text_field]) or pyarrow.types.is_large_string(kinds[text_field])
        ):
            raise InputError("must be a column of text", file=str(file), field="text_field", value=text_field)
