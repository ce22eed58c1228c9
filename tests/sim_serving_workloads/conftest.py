"""What tests of results share: the plain simulator behind the one call, and small deployments."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from groundplane.sim.serving import results_run
from groundplane.sim.serving.simulate import simulate
from groundplane.sim.serving.workload_rows import RequestRows
from groundplane.spec.deployment import DeploymentSpec, ReplicaPool


@pytest.fixture
def plain_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations by the plain simulator, which needs no compiling: it equals the compiled one."""
    plain = functools.partial(simulate, simulator="reference")

    def run(requests: object, deployment: object, *, log: bool = False, simulator: str = "") -> object:
        return plain(requests, deployment, log=log)  # type: ignore[arg-type]

    monkeypatch.setattr(results_run, "simulate", run)


@pytest.fixture
def small_deployment() -> Callable[..., DeploymentSpec]:
    """`small_deployment(replicas=2, ...)`: an 8B model on H100s."""

    def make(**pool: object) -> DeploymentSpec:
        given = {"replicas": 2, "tp": 1, "max_sequences": 32, "max_batched_tokens": 2048}
        return DeploymentSpec(
            name="small", cluster="h100x8", pools=(ReplicaPool(**(given | pool)),), model="llama-3.1-8b"
        )

    return make


@pytest.fixture
def few_requests() -> RequestRows:
    """60 requests in 6 s, of 200 + 20 tokens."""
    return RequestRows(
        np.arange(60, dtype=np.int64) * 100_000_000, np.full(60, 200), np.full(60, 20), notes=["as made"]
    )
