"""Simulates a deployment under requests: the one entrance to both simulators."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from groundplane.sim.serving.deployment import Deployment
from groundplane.sim.serving.outcome import Outcome
from groundplane.sim.serving.prepare import Prepared, prepare
from groundplane.sim.serving.requests import Requests


def simulate(
    requests: Requests,
    deployment: Deployment,
    *,
    log: bool = False,
    sample_ns: int | None = None,
    simulator: Literal["fast", "reference"] = "fast",
) -> Outcome:
    """Serves the requests and says what came of each.

    Args:
        requests: sorted by arrival; the first one's arrival is the start.
        deployment: what serves them.
        log: keep every event (48 bytes each, one an iteration and a few a request).
        sample_ns: time between samples of the replicas' state; a 256th of the arrivals' span if not given.
        simulator: the compiled one, or the plain one that it equals and that is some hundred times slower.

    Raises:
        InputError: a deployment or requests that are not sound; see `prepare`.
    """
    prepared = prepare(requests, deployment, sample_ns)
    if simulator == "reference":
        from groundplane.sim.serving.reference import run as plain

        outcome = plain.run(prepared)
        return _with_outside(prepared, outcome if log else dataclasses.replace(outcome, log=None))
    from groundplane.sim.serving.fast import run as compiled

    return _with_outside(prepared, compiled.run(prepared, log=log))


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
