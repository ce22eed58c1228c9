"""Simulates a deployment under requests: the one entrance to both simulators."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import numpy as np

from groundplane.sim.serving.deployment import Deployment
from groundplane.sim.serving.outcome import Outcome
from groundplane.sim.serving.prepare import Prepared, prepare
from groundplane.sim.serving.requests import Requests

Simulator = Literal["auto", "fast", "reference"]

PLAIN_TOKENS: Final = 20_000
"""Outputs up to which the plain simulator is quicker than compiling: one to three seconds for each."""

_FAST: Final = "groundplane.sim.serving.fast.run"


def simulate(
    requests: Requests,
    deployment: Deployment,
    *,
    log: bool = False,
    sample_ns: int | None = None,
    simulator: Simulator = "auto",
    notify: Callable[[str], None] | None = None,
) -> Outcome:
    """Serves the requests and says what came of each.

    Args:
        requests: sorted by arrival; the first one's arrival is the start.
        deployment: what serves them.
        log: keep every event (48 bytes each, one an iteration and a few a request).
        sample_ns: time between samples of the replicas' state; a 256th of the arrivals' span if not given.
        simulator: the compiled one ("fast"), or the plain one ("reference") that it equals and that is some
            hundred times slower. Compiling takes most of a minute, once; until then "auto" gives small work
            to the plain one.
        notify: is told, in one line, before something is compiled; else standard error is.

    Raises:
        InputError: a deployment or requests that are not sound; see `prepare`.
    """
    prepared = prepare(requests, deployment, sample_ns)
    cold = not _was_compiled()
    small = int(requests.output_tokens.sum()) + len(requests) <= PLAIN_TOKENS
    if simulator == "reference" or (simulator == "auto" and cold and small):
        from groundplane.sim.serving.reference import run as plain

        outcome = plain.run(prepared)
        return _with_outside(prepared, outcome if log else dataclasses.replace(outcome, log=None))
    if cold:
        (notify or _to_standard_error)("compiling the serving simulator, once: about a minute")
    from groundplane.sim.serving.fast import run as compiled

    return _with_outside(prepared, compiled.run(prepared, log=log))


def _to_standard_error(line: str) -> None:
    sys.stderr.write(f"groundplane: {line}\n")
    sys.stderr.flush()


def _was_compiled() -> bool:
    """Whether this process has the compiled simulator already, or finds it in the package's own cache."""
    if _FAST in sys.modules:
        return True
    return any((Path(__file__).parent / "fast" / "__pycache__").glob("clock.advance-*.nbi"))


def _with_outside(prepared: Prepared, outcome: Outcome) -> Outcome:
    """Tokens reach the client later by what the request spent outside the engine before its first."""
    pools = prepared.deployment.pools
    fixed_ns = np.array([pool.outside_ns for pool in pools], dtype=np.int64)
    token_ps = np.array([pool.outside_token_ps for pool in pools], dtype=np.int64)
    if not (fixed_ns.any() or token_ps.any()):
        return outcome
    pool = prepared.pool_of[np.maximum(outcome.prefill_replica, 0)]
    late_ns = fixed_ns[pool] + token_ps[pool] * prepared.requests.prompt_tokens // 1000
    late_ns = np.where(outcome.first_token_ns >= 0, late_ns, 0)
    return dataclasses.replace(
        outcome, first_token_ns=outcome.first_token_ns + late_ns, finish_ns=outcome.finish_ns + late_ns
    )
