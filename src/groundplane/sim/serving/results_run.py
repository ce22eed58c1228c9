"""Simulate a deployment under a workload and say what came of it: the one call behind CLI and Python API."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from groundplane.sim.serving.deployment import Deployment
from groundplane.sim.serving.described import BuiltDeployment, build_deployment, scaled_table
from groundplane.sim.serving.iteration import IterationTable
from groundplane.sim.serving.outcome import Outcome
from groundplane.sim.serving.requests import Requests
from groundplane.sim.serving.results import LatencyResult, Runs, latency_result
from groundplane.sim.serving.results_cost import CostResult, PoolResult, cost_result, pool_results
from groundplane.sim.serving.results_evidence import ServingEvidence, weakest
from groundplane.sim.serving.simulate import Simulator, simulate
from groundplane.sim.serving.workload import simulated
from groundplane.sim.serving.workload_rows import RequestRows
from groundplane.spec.deployment import DeploymentSpec
from groundplane.spec.load import load
from groundplane.spec.slo import Slo


class WorkloadResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requests that came: how many, how fast, how bursty, how long."""

    requests: int
    duration_s: float
    rate_per_s: float
    gap_cv: float
    prompt_mean: float
    output_mean: float
    notes: tuple[str, ...]


class ServingResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a simulation says; `latency` is of all requests, `by_model` of each of several models."""

    deployment: str
    cluster: str
    chips: int
    workload: WorkloadResult
    latency: LatencyResult
    by_model: dict[str, LatencyResult]
    pools: tuple[PoolResult, ...]
    cost: CostResult
    evidence: ServingEvidence
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class ServingRun:
    """A result, and what it was computed from: for files, traces and pages."""

    built: BuiltDeployment
    rows: RequestRows
    requests: Requests
    outcome: Outcome
    result: ServingResult
    slo: Slo


def simulate_serving(
    deployment: DeploymentSpec | BuiltDeployment | str | Path,
    workload: RequestRows,
    *,
    slo: Slo | None = None,
    intervals: bool = True,
    pessimistic: bool = False,
    log: bool = False,
    usd_per_chip_hour: float | None = None,
    folder: Path | None = None,
    simulator: Simulator = "auto",
) -> ServingRun:
    """What latencies, goodput and price a deployment gives under a workload.

    Args:
        deployment: a spec, its file, or a built one.
        workload: requests, as `load_workload` gives them.
        slo: bounds for goodput; none asks for none.
        intervals: simulate twice more, with iterations as fast and as slow as the evidence allows.
        pessimistic: take iterations to be as slow as the evidence allows, instead of as predicted.
        log: keep every event, for a trace of the replicas.
        usd_per_chip_hour: of one chip, instead of the deployment's or the catalogue's.
        folder: what file names in a spec are relative to.
        simulator: which of the two that are equal; see `simulate`.

    Raises:
        InputError: as `build_deployment`; a model in the trace that is not served.
    """
    longest = int((workload.prompt + workload.output).max())
    if isinstance(deployment, BuiltDeployment):
        built = deployment
    elif isinstance(deployment, DeploymentSpec):
        built = build_deployment(deployment, folder=folder, max_context=longest)
    else:
        path = Path(deployment)
        built = build_deployment(load(path, DeploymentSpec), folder=path.parent, max_context=longest)
    requests = simulated(workload, models=built.models)
    evidence = weakest(built.pools)
    served = with_speed(built.simulated, evidence.tpot.ratio_p90) if pessimistic else built.simulated
    central = simulate(requests, served, log=log, simulator=simulator)
    fast = slow = None
    if intervals:
        fast = simulate(requests, with_speed(built.simulated, evidence.tpot.ratio_p10), simulator=simulator)
        slow = simulate(requests, with_speed(built.simulated, evidence.tpot.ratio_p90), simulator=simulator)
    runs = Runs(requests, central, fast, slow, evidence)
    bounds = slo or Slo()
    outside_ns = _outside_ns(built, requests, central)
    latency = latency_result(runs, bounds, outside_ns)
    by_model = {}
    if len(built.models) > 1:
        by_model = {
            name: latency_result(runs, bounds, outside_ns, model=index)
            for index, name in enumerate(built.models)
        }
    done = central.finish_ns >= 0
    result = ServingResult(
        deployment=built.spec.name,
        cluster=built.cluster.name,
        chips=built.num_chips,
        workload=_described(workload),
        latency=latency,
        by_model=by_model,
        pools=pool_results(built, runs),
        cost=cost_result(
            built, runs, latency, int(requests.prompt_tokens[done].sum()),
            usd_per_chip_hour=usd_per_chip_hour,
        ),
        evidence=evidence,
        assumptions=_assumptions(built, evidence),
    )  # fmt: skip
    return ServingRun(built, workload, requests, central, result, bounds)


def with_speed(deployment: Deployment, ratio: float) -> Deployment:
    """The deployment with every iteration `ratio` times as long."""
    tables: dict[int, IterationTable] = {}
    pools = []
    for pool in deployment.pools:
        table = tables.setdefault(id(pool.table), scaled_table(pool.table, ratio))
        pools.append(dataclasses.replace(pool, table=table))
    return dataclasses.replace(deployment, pools=tuple(pools))


def _outside_ns(built: BuiltDeployment, requests: Requests, outcome: Outcome) -> np.ndarray:
    """(n,) time outside the engine that each request spent, by the pool its first token came from."""
    totals = outcome.replicas
    per_pool = np.array([pool.outside_ns for pool in built.simulated.pools], dtype=np.int64)
    per_token = np.array([pool.outside_token_ps for pool in built.simulated.pools], dtype=np.int64)
    replica = np.maximum(outcome.prefill_replica, 0)
    pool = totals.pool[replica]
    return np.asarray(per_pool[pool] + per_token[pool] * requests.prompt_tokens // 1000)


def _described(rows: RequestRows) -> WorkloadResult:
    return WorkloadResult(
        len(rows), rows.duration_s, rows.rate_per_s, rows.gap_cv, float(rows.prompt.mean()),
        float(rows.output.mean()), tuple(rows.notes),
    )  # fmt: skip


def _assumptions(built: BuiltDeployment, evidence: ServingEvidence) -> tuple[str, ...]:
    left_out = [
        f"not priced: {part} ({pool.model.name})" for pool in built.pools for part in pool.model.left_out
    ]
    spread = evidence.tpot
    return (
        *built.assumptions,
        *dict.fromkeys(left_out),
        *evidence.reasons,
        f"intervals: iterations {spread.ratio_p10:.2f} to {spread.ratio_p90:.2f} times as long as predicted "
        f"({spread.num_points} runs, {spread.source}), and the spread of times to first token",
    )
