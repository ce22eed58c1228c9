"""Events of a trace of replicas, in Chrome's JSON format: iterations, requests, caches and lines over time.

Each pool is a process, each replica a thread of iterations; requests are a process of their own with a slice
for each stage. Times are microseconds, as the format wants.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from groundplane.sim.serving.outcome import NEVER, EventKind, EventLog, State
from groundplane.sim.serving.results_run import ServingRun
from groundplane.spec.errors import InputError

MAX_ITERATIONS: Final = 300_000
MAX_TRACED_REQUESTS: Final = 20_000
"""Iterations and requests that a trace shows, the first ones: more is neither drawn nor read."""

_REQUESTS_PROCESS: Final = 1000
_MARKS: Final = {
    EventKind.PREEMPTED: "preempted", EventKind.STARTING: "starting", EventKind.READY: "ready",
    EventKind.LOST: "lost", EventKind.STOPPED: "stopped",
}  # fmt: skip


def trace_events(run: ServingRun) -> list[dict[str, Any]]:
    """All events, names first.

    Raises:
        InputError: the run kept no log.
    """
    log = run.outcome.log
    if log is None:
        raise InputError("needs a run that kept its log", field="trace")
    events = _names(run)
    events += _iterations(run, log)
    events += _marks(run, log)
    events += _samples(run)
    events += _requests(run)
    return events


def _names(run: ServingRun) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def name(kind: str, process: int, thread: int, text: str) -> None:
        found.append({"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": text}})

    for index, pool in enumerate(run.built.simulated.pools):
        name("process_name", index + 1, 0, f"{pool.name} ({pool.role})")
    for replica, pool_index in enumerate(run.outcome.replicas.pool.tolist()):
        name("thread_name", pool_index + 1, replica, f"replica {replica}")
    name("process_name", _REQUESTS_PROCESS, 0, "requests")
    return found


def _iterations(run: ServingRun, log: EventLog) -> list[dict[str, Any]]:
    chosen = np.flatnonzero(log.kind == EventKind.ITERATION)[:MAX_ITERATIONS]
    pool = run.outcome.replicas.pool
    found = []
    for begin, end, replica, decode, prompt in zip(
        log.start_ns[chosen].tolist(), log.time_ns[chosen].tolist(), log.replica[chosen].tolist(),
        log.subject[chosen].tolist(), log.value[chosen].tolist(), strict=True,
    ):  # fmt: skip
        kind = "mixed" if decode and prompt else ("decode" if decode else "prefill")
        found.append(
            {
                "ph": "X", "name": kind, "pid": int(pool[replica]) + 1, "tid": replica, "ts": begin / 1e3,
                "dur": (end - begin) / 1e3, "args": {"decoding": decode, "prompt_tokens": prompt},
            }
        )  # fmt: skip
    return found


def _marks(run: ServingRun, log: EventLog) -> list[dict[str, Any]]:
    pool = run.outcome.replicas.pool
    found = []
    for kind, text in _MARKS.items():
        for place in np.flatnonzero(log.kind == kind)[:MAX_TRACED_REQUESTS].tolist():
            replica = int(log.replica[place])
            found.append(
                {
                    "ph": "i", "s": "t", "name": text, "pid": int(pool[replica]) + 1, "tid": replica,
                    "ts": float(log.time_ns[place]) / 1e3, "args": {"subject": int(log.subject[place])},
                }
            )  # fmt: skip
    return found


def _samples(run: ServingRun) -> list[dict[str, Any]]:
    samples, pool = run.outcome.samples, run.outcome.replicas.pool
    found = []
    for row, time_ns in enumerate(samples.time_ns.tolist()):
        for replica, pool_index in enumerate(pool.tolist()):
            shown = {
                "running": int(samples.running[row, replica]), "waiting": int(samples.waiting[row, replica]),
            }  # fmt: skip
            blocks = {
                "held": int(samples.used_blocks[row, replica]),
                "cached": int(samples.cached_blocks[row, replica]),
            }
            for name, values in (("requests", shown), ("blocks", blocks)):
                found.append(
                    {
                        "ph": "C", "name": f"{name} {replica}", "pid": pool_index + 1, "tid": replica,
                        "ts": time_ns / 1e3, "args": values,
                    }
                )  # fmt: skip
    return found


def _requests(run: ServingRun) -> list[dict[str, Any]]:
    outcome, requests = run.outcome, run.requests
    found: list[dict[str, Any]] = []
    chosen = np.flatnonzero(outcome.state == State.ENDED)[:MAX_TRACED_REQUESTS]
    for index in chosen.tolist():
        stages = [
            ("queue", int(requests.arrival_ns[index]), int(outcome.admitted_ns[index])),
            ("prefill", int(outcome.admitted_ns[index]), int(outcome.first_token_ns[index])),
            ("decode", int(outcome.first_token_ns[index]), int(outcome.finish_ns[index])),
        ]
        for name, begin, end in stages:
            if begin == NEVER or end < begin:
                continue
            common = {"cat": "request", "id": index, "name": name, "pid": _REQUESTS_PROCESS, "tid": 0}
            tokens = {
                "prompt": int(requests.prompt_tokens[index]),
                "output": int(outcome.output_tokens[index]),
            }
            found.append({"ph": "b", "ts": begin / 1e3, "args": tokens, **common})
            found.append({"ph": "e", "ts": end / 1e3, **common})
    return found
