"""Starts measuring processes, holds them until all are ready, and gathers their points."""

from __future__ import annotations

import os
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from groundplane.probe.worker import THREAD_VARIABLES, Line, Task
from groundplane.spec.cluster import (
    AttentionPoint,
    BandwidthPoint,
    CollectivePoint,
    MatmulPoint,
    OperatorPoint,
    OverheadPoint,
)
from groundplane.spec.errors import InputError, InvariantError

PHASE_LIMIT_S: Final = 120.0
"""After so long a phase is given up: the machine is too busy to be measured."""

POINT_TYPES: Final = {
    kind.__name__: kind
    for kind in (MatmulPoint, AttentionPoint, OperatorPoint, OverheadPoint, BandwidthPoint, CollectivePoint)
}
_MEASURED_FIELDS: Final = ("time_s", "forward_s", "backward_s", "bandwidth_bytes_per_s")


class Phase(msgspec.Struct, frozen=True):
    """What the processes of one phase found: points, and the share of time that others took from them."""

    points: tuple[Any, ...]
    stolen_share: float


def run_phase(tasks: Sequence[Task], on_point: Callable[[str], None]) -> Phase:
    """Runs one process a task, all at once, and merges their points.

    Points that differ only in what was measured are merged by their median and, when several processes
    measured the same, marked with how many they were.

    Args:
        tasks: one process each.
        on_point: called with the kind of each point of the first process, for progress.

    Raises:
        InputError: no room for the processes, or the phase takes longer than `PHASE_LIMIT_S`.
        InvariantError: a process failed for a reason of its own.
    """
    processes = [_start(task) for task in tasks]
    try:
        lines = _gather(processes, on_point)
        for process in processes:
            if process.wait(timeout=10):
                raise _failure(process)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
    wall_s = sum(line.wall_s for line in lines)
    processor_s = sum(line.processor_s for line in lines)
    stolen = max(0.0, 1.0 - processor_s / wall_s) if wall_s > 0 else 0.0
    return Phase(_merged([line for line in lines if line.point], len(tasks)), stolen)


def _start(task: Task) -> subprocess.Popen[str]:
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
    return subprocess.Popen(
        [sys.executable, "-m", "groundplane.probe.worker", msgspec.json.encode(task).decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )


def _gather(processes: list[subprocess.Popen[str]], on_point: Callable[[str], None]) -> list[Line]:
    """All lines of all processes; they are released together once each has said that it is ready."""
    lines: list[Line] = []
    ready = 0
    deadline = time.monotonic() + PHASE_LIMIT_S
    decoder = msgspec.json.Decoder(Line)
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(_pipe(process.stdout), selectors.EVENT_READ, process)
        while selector.get_map():
            events = selector.select(timeout=deadline - time.monotonic())
            if not events and time.monotonic() >= deadline:
                raise InputError(
                    f"the machine is too busy to be measured: no end after {PHASE_LIMIT_S:.0f} s"
                )
            for key, _ in events:
                process = key.data
                text = _pipe(process.stdout).readline()
                if not text:
                    selector.unregister(key.fileobj)
                    if process.wait(timeout=10):
                        raise _failure(process)
                    continue
                line = decoder.decode(text)
                lines.append(line)
                if line.point and process is processes[0]:
                    on_point(line.point)
                if line.ready:
                    ready += 1
                    if ready == len(processes):
                        for waiting in processes:
                            _pipe(waiting.stdin).write("go\n")
                            _pipe(waiting.stdin).flush()
    return lines


def _pipe(stream: Any) -> Any:
    if stream is None:
        raise InvariantError("a measuring process has no pipe")
    return stream


def _failure(process: subprocess.Popen[str]) -> InputError | InvariantError:
    """The error for a process that ended badly: killed from outside (most often for memory), or its own
    fault."""
    code = process.wait()
    if code < 0:
        return InputError(f"a measuring process was killed by signal {-code}: is enough memory free?")
    last = (_pipe(process.stderr).read().strip().splitlines() or ["no message"])[-1]
    return InvariantError(f"a measuring process failed with code {code}: {last}")


def _merged(lines: list[Line], num_processes: int) -> tuple[Any, ...]:
    """One point for each thing measured: the median over the processes that measured it."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        identity = tuple((name, value) for name, value in line.data.items() if name not in _MEASURED_FIELDS)
        groups.setdefault((line.point, *identity), []).append(line)
    points: list[Any] = []
    for same in groups.values():
        data: dict[str, Any] = dict(same[0].data)
        for name in _MEASURED_FIELDS:
            if name in data:
                data[name] = float(f"{statistics.median(float(line.data[name]) for line in same):.5g}")
        if "processes" in data:
            data["processes"] = num_processes
        points.append(POINT_TYPES[same[0].point](**data))
    return tuple(points)
