"""Kernel times predicted against measured ones: matrix products or attention, by the file's columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from groundplane.catalog.resolve import resolve_chip
from groundplane.perfmodel.evidence import Evidence, FloatArray
from groundplane.perfmodel.kernel_catalogue import canonical_dtype
from groundplane.perfmodel.kernels import attention_time_s, kernel_evidence, matmul_time_s
from groundplane.perfmodel.validation.chip_names import chip_named
from groundplane.perfmodel.validation.report import Excluded, Outcome, Report, report_of
from groundplane.perfmodel.validation.table import Row, read_table, shipped_table
from groundplane.spec.cluster import ChipSpec
from groundplane.spec.errors import InputError

MATMUL_COLUMNS: Final = ("source", "chip", "dtype", "m", "n", "k", "latency_us")
ATTENTION_COLUMNS: Final = (
    "source",
    "chip",
    "dtype",
    "batch",
    "seq",
    "heads",
    "kv_heads",
    "head_dim",
    "latency_us",
)


def validate_kernels(data: str | Path | None = None) -> Report:
    """Compares kernel times; without `data` the cited points of the catalogue, products and attention.

    Args:
        data: a CSV file of products (`MATMUL_COLUMNS`) or of causal attention (`ATTENTION_COLUMNS`),
        recognised
            by its columns.

    Raises:
        InputError: unreadable file, a missing column, or a value that is no positive number.
    """
    if data is None:
        outcomes, excluded = _compare_matmul(shipped_table("points_matmul.csv", MATMUL_COLUMNS))
        more, more_excluded = _compare_attention(shipped_table("points_attention.csv", ATTENTION_COLUMNS))
        return report_of(outcomes + more, excluded + more_excluded)
    rows = read_table(data, ("source", "chip", "dtype", "latency_us"))
    compare = _compare_attention if "seq" in rows[0].values else _compare_matmul
    needed = ATTENTION_COLUMNS if compare is _compare_attention else MATMUL_COLUMNS
    return report_of(*compare(read_table(data, needed)))


Group = tuple[str, str]
Price = Callable[[ChipSpec, str, list[FloatArray]], FloatArray]


def _compare_matmul(rows: list[Row]) -> tuple[list[Outcome], list[Excluded]]:
    def price(chip: ChipSpec, dtype: str, shape: list[FloatArray]) -> FloatArray:
        rows, columns, depth = shape
        return matmul_time_s(chip, dtype, rows, columns, depth)

    return _compare(rows, ("m", "n", "k"), price, lambda chip, dtype: kernel_evidence(chip, "matmul", dtype))


def _compare_attention(rows: list[Row]) -> tuple[list[Outcome], list[Excluded]]:
    def price(chip: ChipSpec, dtype: str, shape: list[FloatArray]) -> FloatArray:
        batch, seq, heads, kv_heads, width = shape
        return attention_time_s(chip, dtype, batch, seq, seq, heads, kv_heads, width, cache_write=True)

    columns = ("batch", "seq", "heads", "kv_heads", "head_dim")
    return _compare(rows, columns, price, lambda chip, dtype: kernel_evidence(chip, "attention", dtype))


def _compare(
    rows: list[Row],
    columns: tuple[str, ...],
    price: Price,
    evidence_of: Callable[[ChipSpec, str], Evidence],
) -> tuple[list[Outcome], list[Excluded]]:
    """Prices all rows of a chip and format in one call."""
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        groups.setdefault((row.text("chip"), row.text("dtype")), []).append(row)
    outcomes: list[Outcome] = []
    excluded: list[Excluded] = []
    for (chip_name, dtype_name), members in groups.items():
        name = chip_named(chip_name)
        if name is None:
            reason = f"chip {chip_name!r} is not in the catalogue"
            excluded += [Excluded(row.line, reason) for row in members]
            continue
        chip = resolve_chip(name)
        try:
            dtype = canonical_dtype(dtype_name)
            chip.peak("fp8" if dtype == "fp8_block" else dtype)
        except InputError as error:
            excluded += [Excluded(row.line, str(error)) for row in members]
            continue
        shape = [np.array([row.positive(column) for row in members]) for column in columns]
        measured = np.array([row.positive("latency_us") * 1e-6 for row in members])
        predicted = price(chip, dtype, shape)
        spread = evidence_of(chip, dtype)
        outcomes += [
            Outcome(
                row=row.line,
                source=row.text("source"),
                measured=float(true),
                predicted=float(guess),
                low=float(guess) * spread.ratio_p10,
                high=float(guess) * spread.ratio_p90,
            )
            for row, true, guess in zip(members, measured, predicted, strict=True)
        ]
    return sorted(outcomes, key=lambda one: one.row), excluded
