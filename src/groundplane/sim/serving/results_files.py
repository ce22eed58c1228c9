"""Results as files: one row a request (CSV, Parquet), and a trace of the replicas for Perfetto.

Files are written beside and moved into place when whole. Parquet needs pyarrow, imported only then.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from groundplane.sim.serving.outcome import NEVER, State
from groundplane.sim.serving.results import metric_s
from groundplane.sim.serving.results_run import ServingRun
from groundplane.sim.serving.results_trace import trace_events
from groundplane.spec.errors import InputError

_CHUNK_ROWS: Final = 100_000


def request_columns(run: ServingRun) -> dict[str, np.ndarray]:
    """One array a column, one entry a request: times in seconds, NaN where there is none.

    `arrival_s` counts from the first arrival, the other times from the request's own.
    """
    requests, outcome = run.requests, run.outcome
    names = np.array([pool.name for pool in run.built.simulated.pools] or [""])
    pools = np.where(outcome.replica >= 0, outcome.replicas.pool[np.maximum(outcome.replica, 0)], -1)
    columns: dict[str, np.ndarray] = {
        "request": np.arange(len(requests), dtype=np.int64),
        "arrival_s": requests.arrival_ns * 1e-9,
        "model": np.array(run.built.models)[requests.model],
        "session": requests.session,
        "priority": requests.priority,
        "prompt_tokens": requests.prompt_tokens,
        "output_tokens": outcome.output_tokens,
        "state": np.array([state.name.lower() for state in State])[outcome.state - 1],
        "pool": np.where(pools >= 0, names[np.maximum(pools, 0)], ""),
        "replica": outcome.replica,
        "queue_s": metric_s(requests, outcome, "queue"),
        "ttft_s": metric_s(requests, outcome, "ttft"),
        "tpot_s": metric_s(requests, outcome, "tpot"),
        "longest_gap_s": metric_s(requests, outcome, "itl"),
        "e2e_s": metric_s(requests, outcome, "e2e"),
        "hit_tokens": outcome.hit_tokens,
        "tier_hit_tokens": outcome.tier_hit_tokens,
        "preemptions": outcome.preemptions,
        "moves": outcome.moves,
        "transfer_s": np.where(outcome.transfer_ns == NEVER, 0, outcome.transfer_ns) * 1e-9,
    }
    return columns


def write_csv(run: ServingRun, path: Path) -> None:
    """One line a request with a header; empty cells where a request has no such time.

    Raises:
        InputError: the file cannot be written.
    """
    columns = request_columns(run)

    def write(file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for begin in range(0, len(run.requests), _CHUNK_ROWS):
            cells = [_cells(values[begin : begin + _CHUNK_ROWS]) for values in columns.values()]
            writer.writerows(zip(*cells, strict=True))
        text.flush()
        text.detach()

    _written(path, write)


def write_parquet(run: ServingRun, path: Path) -> None:
    """The same columns as Parquet.

    Raises:
        InputError: pyarrow is not installed, or the file cannot be written.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            "needs pyarrow for Parquet: pip install pyarrow, or write CSV", file=str(path)
        ) from None
    columns = request_columns(run)
    arrays = {
        name: arrow.array(values, from_pandas=values.dtype.kind == "f") for name, values in columns.items()
    }
    table = arrow.table(arrays)
    _written(path, lambda file: parquet.write_table(table, file))


def write_trace(run: ServingRun, path: Path) -> int:
    """A trace in Chrome's JSON format, which Perfetto opens; returns how many events it has.

    Raises:
        InputError: the run kept no log, or the file cannot be written.
    """
    import msgspec

    events = trace_events(run)
    encoder = msgspec.json.Encoder()

    def write(file: BinaryIO) -> None:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        for index, event in enumerate(events):
            file.write(b",\n" if index else b"")
            file.write(encoder.encode(event))
        file.write(b"\n]}\n")

    _written(path, write)
    return len(events)


def _cells(values: np.ndarray) -> list[Any]:
    if values.dtype.kind != "f":
        return list(values.tolist())
    return ["" if np.isnan(value) else f"{value:.9g}" for value in values]


def _written(path: Path, write: Callable[[BinaryIO], None]) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            write(file)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from None
