"""Recorded workloads: which jobs came when, how large they were, and how long they ran.

`read_trace` finds out what a file is: job lists that Gavel (Narayanan et al., OSDI 2020) made of Microsoft's
Philly traces (`*.trace`, or a folder of them), the converted Acme trace (Hu et al., NSDI 2024), or any CSV
with a header. A CSV's columns are called as in `COLUMNS`, or a mapping says how they are called.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from groundplane.sim.workload import SimJob, Training, gang_of
from groundplane.spec.errors import InputError, nearest_name, unknown_name
from groundplane.spec.load import MAX_FILE_BYTES, read_text

S = 1_000_000_000
SHORTEST_RUN_S: Final = 1.0
"""Run times of zero stand for jobs that ended within the clock's resolution."""
LONGEST_S: Final = 10.0 * 366 * 86_400
"""Later than this is no time of a trace but a date, or a mistake."""
MAX_GANG: Final = 1 << 20
MAX_TRACE_BYTES: Final = 2 << 30
"""Largest trace that is read."""

COLUMNS: Final = ("submit_s", "devices", "run_s", "predicted_s", "queue", "priority", "job_id", "model",
                  "global_batch", "seq", "steps")  # fmt: skip
"""Columns of a CSV. The first two must be there, and `run_s` unless there are `model` and `steps`."""
_ACME_COLUMNS: Final = ("arrival_time", "num_iteration", "iteration_computing_time", "gpu_workers",
                        "gpu_per_worker")  # fmt: skip


@dataclass(frozen=True)
class TraceOptions:
    """How a trace is read.

    `run_times` is a file of measured run times (a header, then one number of seconds a line), from which each
    job's is drawn; Gavel's lists have none of their own. `prediction_sigma` is the standard deviation of the
    logarithm of predicted over real run time, where the trace has no prediction.
    """

    devices_per_node: int
    seed: int = 0
    run_times: Path | None = None
    columns: Mapping[str, str] | None = None
    prediction_sigma: float = 0.0


def read_trace(path: Path, options: TraceOptions) -> list[SimJob]:
    """The jobs of a trace in the order of their arrival, the first at time 0.

    Raises:
        InputError: nothing is there, it cannot be read, or a line is no job.
    """
    lists = sorted(path.glob("*.trace")) if path.is_dir() else [path] if path.suffix == ".trace" else []
    if path.is_dir() and not lists:
        raise InputError("is a folder without .trace files", file=str(path))
    if lists:
        if options.run_times is None:
            rule = "these lists have no run times: give measured ones (--run-times)"
            raise InputError(rule, file=str(path))
        return read_gavel(
            lists, run_times=options.run_times, devices_per_node=options.devices_per_node,
            seed=options.seed, prediction_sigma=options.prediction_sigma,
        )  # fmt: skip
    return _read_csv(path, options)


def read_gavel(
    paths: Sequence[Path],
    *,
    run_times: Path,
    devices_per_node: int,
    seed: int,
    speed: float = 1.0,
    prediction_sigma: float = 0.0,
) -> list[SimJob]:
    """The jobs of several lists as one workload, each list a queue, in the order of their arrival.

    The last two of a line's tab-separated columns are the arrival in seconds and the number of devices. The
    steps in it are no durations: those are drawn from measured run times.

    Args:
        run_times: measured run times.
        devices_per_node: how gangs are cut into ranks.
        seed: picks the run times.
        speed: how many times as fast the jobs arrive as they did; changes the load.
        prediction_sigma: as in `TraceOptions`.

    Raises:
        InputError: a file that cannot be read, or a line that is no job.
    """
    rows = sorted(
        (row for path in paths for row in _rows(path)), key=lambda row: (row[0], row[1])
    )  # time, then list and line
    random = np.random.default_rng(seed)
    run_s = np.maximum(SHORTEST_RUN_S, random.choice(_run_times(run_times), size=len(rows)))
    predicted_s = run_s * np.exp(prediction_sigma * random.standard_normal(len(rows)))
    return [
        SimJob(
            job_id=f"j{number}",
            submit_ns=int(arrival_s / speed * S),
            gang=gang_of(num_devices, devices_per_node),
            run_ns=int(run_s[number] * S),
            predicted_run_ns=int(predicted_s[number] * S),
            queue=line.partition(".")[0],
        )
        for number, (arrival_s, line, num_devices) in enumerate(rows)
    ]


def _rows(path: Path) -> list[tuple[float, str, int]]:
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        cells = line.split("\t")
        try:
            arrival_s, num_devices = float(cells[-2]), int(cells[-1])
        except (IndexError, ValueError):
            rule = "must end in an arrival in seconds and a number of devices, after tabs"
            raise InputError(rule, file=str(path), line=number) from None
        if not (0 <= arrival_s < LONGEST_S) or not 1 <= num_devices <= MAX_GANG:
            raise InputError("needs an arrival of 0 or later and a device", file=str(path), line=number)
        rows.append((arrival_s, f"{path.stem}.{number:09d}", num_devices))
    return rows


def _run_times(path: Path) -> np.ndarray:
    lines = read_text(path).splitlines()[1:]
    try:
        run_s = np.array([float(line) for line in lines])
    except ValueError as error:
        raise InputError(f"must hold one run time a line: {error}", file=str(path)) from None
    if not len(run_s) or not np.isfinite(run_s).all() or run_s.min() < 0:
        raise InputError("must hold run times of 0 or more", file=str(path))
    return run_s


# Any CSV -------------------------------------------------------------------------------------------------


def _read_csv(path: Path, options: TraceOptions) -> list[SimJob]:
    reader = _lines_of(path)
    header = next(reader, None)
    if not header:
        raise InputError("has no header", file=str(path))
    names = [name.strip().lstrip("\ufeff") for name in header]
    is_acme = set(_ACME_COLUMNS) <= set(names) and options.columns is None
    places = _places(path, names, _ACME_COLUMNS if is_acme else None, options.columns)
    drawn = None if options.run_times is None else _run_times(options.run_times)
    random = np.random.default_rng(options.seed)
    jobs = []
    for number, cells in enumerate(reader, start=2):
        if not cells:
            continue
        if len(cells) != len(names):
            rule = f"must have {len(names)} cells, as the header has, not {len(cells)}"
            raise InputError(rule, file=str(path), line=number)
        row = _Row(path, number, cells, places)
        jobs.append(_acme_job(row, options) if is_acme else _job(row, options, drawn is not None))
    if not jobs:
        raise InputError("has no jobs", file=str(path))
    jobs.sort(key=lambda job: job.submit_ns)
    if jobs[-1].submit_ns - jobs[0].submit_ns > LONGEST_S * S:
        rule = f"must not spread over more than {LONGEST_S:.0f} s (is it in milliseconds?)"
        raise InputError(rule, file=str(path), field="submit_s", value=jobs[-1].submit_ns // S)
    if len({job.job_id for job in jobs}) < len(jobs):
        raise InputError("must not name a job twice", file=str(path), field="job_id")
    return _finished(jobs, drawn, random, options.prediction_sigma)


def _lines_of(path: Path) -> Iterator[list[str]]:
    """The cells of each line."""
    reader = csv.reader(_text_of(path).splitlines())
    try:
        yield from reader
    except csv.Error as error:
        raise InputError(f"is no CSV: {error}", file=str(path), line=reader.line_num) from None


def _text_of(path: Path) -> str:
    """The text of a trace, which may be larger than what people write by hand."""
    try:
        if MAX_FILE_BYTES < path.stat().st_size <= MAX_TRACE_BYTES:
            return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        pass  # said by the next line
    return read_text(path)


def _finished(
    jobs: Sequence[SimJob], drawn: np.ndarray | None, random: np.random.Generator, sigma: float
) -> list[SimJob]:
    """The jobs from time 0 on, with run times drawn where asked for, and predictions where there are none."""
    first_ns = jobs[0].submit_ns
    runs = None if drawn is None else np.maximum(SHORTEST_RUN_S, random.choice(drawn, size=len(jobs)))
    errors = np.exp(sigma * random.standard_normal(len(jobs)))
    done = []
    for number, job in enumerate(jobs):
        run_ns = job.run_ns if runs is None else int(runs[number] * S)
        predicted_ns = job.predicted_run_ns or int(run_ns * errors[number])
        done.append(
            replace(job, submit_ns=job.submit_ns - first_ns, run_ns=run_ns, predicted_run_ns=predicted_ns)
        )
    return done


class _Row:
    """The cells of one line by the names of `COLUMNS` (or of the Acme trace)."""

    def __init__(self, path: Path, line: int, cells: list[str], places: Mapping[str, int]) -> None:
        self._path, self.line, self._cells, self._places = path, line, cells, places

    def has(self, name: str) -> bool:
        """Whether there is such a column, and something in it."""
        return name in self._places and bool(self._cells[self._places[name]].strip())

    def text(self, name: str) -> str:
        """The cell without blanks around it."""
        return self._cells[self._places[name]].strip()

    def number(self, name: str, least: float, most: float) -> float:
        """The cell as a number.

        Raises:
            InputError: it is none, or out of range.
        """
        text = self.text(name) if name in self._places else ""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            rule = f"must be a number from {least:g} to {most:g}"
            raise InputError(rule, file=str(self._path), line=self.line, field=name, value=text)
        return value

    def whole(self, name: str, least: int, most: int) -> int:
        """The cell as a whole number.

        Raises:
            InputError: it is none, or out of range.
        """
        value = self.number(name, least, most)
        if value != int(value):
            rule = "must be a whole number"
            raise InputError(rule, file=str(self._path), line=self.line, field=name, value=self.text(name))
        return int(value)


def _places(
    path: Path, names: list[str], required: Sequence[str] | None, columns: Mapping[str, str] | None
) -> dict[str, int]:
    if required is not None:
        return {name: names.index(name) for name in required}
    for name in columns or {}:
        if name not in COLUMNS:
            raise unknown_name("column", name, COLUMNS, field="columns")
    called = {name: (columns or {}).get(name, name) for name in COLUMNS}
    places = {name: names.index(there) for name, there in called.items() if there in names}
    needed = ["submit_s", "devices", *([] if {"model", "steps"} <= set(places) else ["run_s"])]
    for name in [*needed, *(columns or {})]:
        if name not in places:
            near = nearest_name(called[name], names)
            rule = f"has no column {called[name]!r}; columns: {', '.join(names[:12])}"
            raise InputError(rule, file=str(path), field=name, nearest=near)
    return places


def _job(row: _Row, options: TraceOptions, is_drawn: bool) -> SimJob:
    training = None
    if row.has("model"):
        training = Training(
            row.text("model"),
            row.whole("global_batch", 1, 1 << 24) if row.has("global_batch") else 0,
            row.whole("seq", 1, 1 << 24) if row.has("seq") else 0,
            row.whole("steps", 0, 1 << 40) if row.has("steps") else 0,
        )
    has_steps = training is not None and training.steps > 0
    run_s = 0.0 if has_steps or is_drawn else row.number("run_s", 0.0, LONGEST_S)
    return SimJob(
        job_id=row.text("job_id") if row.has("job_id") else f"j{row.line - 2}",
        submit_ns=int(row.number("submit_s", 0.0, 1e12) * S),
        gang=gang_of(row.whole("devices", 1, MAX_GANG), options.devices_per_node),
        run_ns=0 if has_steps else int(max(SHORTEST_RUN_S, run_s) * S),
        predicted_run_ns=int(row.number("predicted_s", 0.0, LONGEST_S) * S) if row.has("predicted_s") else 0,
        queue=row.text("queue") if row.has("queue") else "default",
        priority=row.whole("priority", -1000, 1000) if row.has("priority") else 0,
        training=training,
    )


def _acme_job(row: _Row, options: TraceOptions) -> SimJob:
    """Workers are nodes; a run time is iterations x seconds of one; the other columns are invented."""
    devices = row.whole("gpu_workers", 1, 1 << 16) * row.whole("gpu_per_worker", 1, 16)
    run_s = row.number("num_iteration", 0.0, 1e12) * row.number("iteration_computing_time", 0.0, 1e6)
    return SimJob(
        job_id=f"j{row.line - 2}",
        submit_ns=int(row.number("arrival_time", 0.0, LONGEST_S) * S),
        gang=gang_of(devices, options.devices_per_node),
        run_ns=int(max(SHORTEST_RUN_S, run_s) * S),
        predicted_run_ns=0,
    )
