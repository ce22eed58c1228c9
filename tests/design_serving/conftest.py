"""What tests of the search over deployments share."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from groundplane.design.deployment_plan import ServingPlan, plan_serving
from groundplane.sim.serving.workload import load_workload
from groundplane.sim.serving.workload_rows import RequestRows
from groundplane.spec.request_trace import ArrivalSpec, LengthSpec, WorkloadSpec


@pytest.fixture(scope="session")
def drawn() -> Callable[..., RequestRows]:
    """`drawn(rate, count)`: Poisson arrivals of 500 + 40 tokens."""

    def make(rate: float = 20.0, count: int = 150) -> RequestRows:
        return load_workload(
            WorkloadSpec(
                arrivals=ArrivalSpec(rate), prompt=LengthSpec(500.0, cv=0.3), output=LengthSpec(40.0, cv=0.3),
                requests=count,
            )
        )  # fmt: skip

    return make


@pytest.fixture(scope="session")
def planned() -> Callable[..., ServingPlan]:
    """`plan_serving` by the plain simulator, which needs no compiling."""
    return functools.partial(plan_serving, simulator="reference")
