"""One measuring process: pinned to one core, it prints each point as a line of JSON. Started by
`probe.run`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Literal

import msgspec

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one process measures. `barrier` holds it back until its parent writes a line to it."""

    kind: Literal["torch", "numpy", "gloo"]
    core: int
    budget_s: float
    quick: bool = False
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    rank: int = 0
    rendezvous: str = ""


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of output: ready to begin, a point of some kind, or the last line with what the clock saw."""

    point: str = ""
    data: dict[str, str | int | float] = {}
    ready: bool = False
    wall_s: float = 0.0
    processor_s: float = 0.0


def main() -> None:
    """Runs the task given as JSON in the first argument."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    os.sched_setaffinity(0, {task.core})
    from groundplane.probe.timer import Stopwatch

    points: Iterator[msgspec.Struct]
    watch = Stopwatch(task.budget_s)
    if task.kind == "numpy":
        from groundplane.probe import numpy_bench

        points = numpy_bench.measure(watch)
    elif task.kind == "torch":
        from groundplane.probe import torch_bench

        points = torch_bench.measure(watch, task.dtypes, quick=task.quick)
    else:
        from groundplane.probe import gloo_bench

        points = gloo_bench.measure(task.rank, task.rendezvous, task.budget_s)
    _say(Line(ready=True))
    if not sys.stdin.readline():
        return
    for point in points:
        _say(Line(point=type(point).__name__, data=msgspec.structs.asdict(point)))
    _say(Line(wall_s=watch.wall_s, processor_s=watch.processor_s))


def _say(line: Line) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
