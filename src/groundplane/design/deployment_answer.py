"""What a search over deployments has to say: options, the front of price and latency, what binds and next."""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np

from groundplane.design.deployment_search import Search, Trial
from groundplane.perfmodel.serving_profiles import serving_calibration
from groundplane.sim.serving.described import BuiltDeployment
from groundplane.sim.serving.results_run import ServingResult, simulate_serving
from groundplane.sim.serving.workload_scale import scaled
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.request_trace import ScaleSpec

GROWTH: Final = (1.1, 1.25, 1.5, 2.0)
"""Loads that the answer is tried under, as multiples of the one asked for, until a bound breaks."""

_FULL: Final = 0.9
"""Share of a cache or of sequences from which it counts as used up."""


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One simulated deployment in a line; times in seconds, prices None where unknown."""

    cluster: str
    pools: tuple[str, ...]
    weights: str
    cache: str
    engine: str
    routing: str
    chips: int
    chip_hours_per_hour: float
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    ttft_p99_s: float
    tpot_p99_s: float
    e2e_p99_s: float
    goodput_share: float | None
    output_tokens_per_s: float
    meets_slo: bool


class FrontPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A deployment that none beats in price, time to first token and time per token at once."""

    usd_per_hour: float
    chips: int
    ttft_p99_s: float
    tpot_p99_s: float
    meets_slo: bool
    pools: tuple[str, ...]


def option_of(trial: Trial) -> Option:
    """A trial in a line."""
    latency, cost, spec = trial.latency, trial.run.result.cost, trial.spec
    per_million = cost.usd_per_million_output_tokens
    return Option(
        cluster=spec.cluster,
        pools=pool_words(trial),
        weights=spec.weights or "as published",
        cache=spec.cache,
        engine=spec.engine,
        routing=spec.routing,
        chips=trial.chips,
        chip_hours_per_hour=cost.chip_hours / max(trial.run.outcome.end_ns / 3.6e12, 1e-12),
        usd_per_hour=cost.usd_per_hour,
        usd_per_million_output_tokens=None if per_million is None else per_million.value,
        ttft_p99_s=latency.ttft.p99.value,
        tpot_p99_s=latency.tpot.p99.value,
        e2e_p99_s=latency.e2e.p99.value,
        goodput_share=None if latency.goodput is None else latency.goodput.share.value,
        output_tokens_per_s=latency.output_tokens_per_s.value,
        meets_slo=trial.meets,
    )


def options_of(trials: list[Trial], top: int) -> tuple[Option, ...]:
    """The best trial of each structure (layouts, formats, engine), best first, at most `top`."""
    found: dict[tuple[object, ...], Option] = {}
    for trial in sorted(trials, key=lambda trial: trial.rank):
        spec = trial.spec
        shape = tuple((pool.role, pool.tp, pool.pp, pool.attention_dp, pool.ep) for pool in spec.pools)
        found.setdefault((spec.cluster, spec.engine, spec.weights, spec.cache, shape), option_of(trial))
    return tuple(found.values())[:top]


def pool_words(trial: Trial) -> tuple[str, ...]:
    """Each pool in words: "8 x serve (tp 4, 256 sequences, 8192 tokens)"."""
    found = []
    for pool in trial.spec.pools:
        parts = [f"tp {pool.tp}"]
        parts += [f"pp {pool.pp}"] if pool.pp > 1 else []
        parts += [f"attention dp {pool.attention_dp}"] if pool.attention_dp > 1 else []
        parts += [f"ep {pool.ep}"] if pool.ep > 1 else []
        parts += [f"{pool.max_sequences} sequences", f"{pool.max_batched_tokens} tokens"]
        count = str(pool.replicas)
        if pool.autoscale is not None:
            count = f"{pool.autoscale.min_replicas} to {pool.autoscale.max_replicas}"
        found.append(f"{count} x {pool.name} ({', '.join(parts)})")
    return tuple(found)


def front_of(trials: list[Trial]) -> tuple[FrontPoint, ...]:
    """The Pareto front over price and both p99 latencies, cheapest first, of trials that lost no request."""
    points = [
        (trial.usd_per_hour, trial.latency.ttft.p99.value, trial.latency.tpot.p99.value, trial)
        for trial in trials
        if trial.latency.ended == trial.latency.requests
    ]
    points = [point for point in points if not any(math.isnan(value) for value in point[:2])]
    values = np.array([[point[0], point[1], np.nan_to_num(point[2])] for point in points])
    found = []
    for index, (usd, first, each, trial) in enumerate(points):
        no_worse = (values <= values[index]).all(axis=1)
        better = (values < values[index]).any(axis=1)
        if not (no_worse & better).any():
            found.append(FrontPoint(usd, trial.chips, first, each, trial.meets, pool_words(trial)))
    unique = {(point.usd_per_hour, point.ttft_p99_s, point.tpot_p99_s): point for point in found}
    return tuple(sorted(unique.values(), key=lambda point: (point.usd_per_hour, point.tpot_p99_s)))


def bottleneck(built: BuiltDeployment, result: ServingResult) -> str:
    """What most of a request's time goes into: waiting, prompts, or the largest part of decoding."""
    shares = result.latency.shares
    largest = max(shares, key=lambda name: shares[name].value, default="decode")
    spent = shares[largest].value if largest in shares else 0.0
    if largest != "decode":
        return f"{largest} ({spent:.0%} of the time of requests)"
    pool, used = built.pools[-1], result.pools[-1]
    work = serving_calibration().profile(pool.engine, pool.pricer.chip.name)
    context = result.workload.prompt_mean + result.workload.output_mean / 2.0
    stages = work.work_s(pool.pricer.price([max(used.batch_mean, 1.0)], [context]))
    parts = {name: float(np.asarray(seconds).ravel()[0]) for name, seconds in stages.items()}
    parts["host"] = work.host_s + work.host_sequence_s * used.batch_mean
    name = max(parts, key=lambda one: parts[one])
    share = parts[name] / sum(parts.values())
    return (
        f"decode ({spent:.0%} of the time of requests), in it {name.replace('_', ' ')} "
        f"({share:.0%} of an iteration of {used.batch_mean:.0f} sequences)"
    )


def growth(search: Search, best: Trial) -> dict[str, str]:
    """What breaks under larger loads: the first bound, or "holds"; stops at the first that breaks."""
    found: dict[str, str] = {}
    if not best.meets:
        return found
    rng = np.random.default_rng(0)
    for factor in GROWTH:
        if search.over:
            break
        rows = scaled(search.rows, ScaleSpec(factor=factor), rng)
        run = simulate_serving(
            best.run.built, rows, slo=search.slo, intervals=False, pessimistic=search.sure,
            simulator=search.simulator,
        )  # fmt: skip
        latency = run.result.latency
        if latency.meets_slo:
            found[f"{factor:g}"] = "holds"
            continue
        broken = [bound for bound in latency.bounds if not bound.met]
        lost = latency.requests - latency.ended
        worst = max(broken, key=lambda bound: bound.value.value / bound.limit_s, default=None)
        found[f"{factor:g}"] = worst.name if worst is not None else f"{lost} requests refused"
        break
    return found


def next_constraint(best: Trial, cluster: ClusterSpec, grown: dict[str, str]) -> str:
    """What binds when the load grows, and why."""
    latency, result = best.latency, best.run.result
    if not best.meets:
        missed = [
            f"{bound.name} {bound.value.value:.3g} s, limit {bound.limit_s:.3g} s"
            for bound in latency.bounds
            if not bound.met
        ]
        lost = latency.requests - latency.ended
        missed += [f"{lost} of {latency.requests} requests refused or failed"] if lost else []
        return "the SLO is missed: " + "; ".join(missed)
    reasons = []
    for factor, what in grown.items():
        if what != "holds":
            reasons.append(f"{what} breaks at {factor} times the load")
    if not reasons:
        tight = max(latency.bounds, key=lambda bound: bound.value.value / bound.limit_s, default=None)
        if tight is not None:
            reasons.append(
                f"{tight.name} is nearest to its limit ({tight.value.value / tight.limit_s:.0%} of it)"
            )
    for pool, used in zip(best.spec.pools, result.pools, strict=True):
        if used.kv_peak_share.value >= _FULL:
            reasons.append(f"the cache of {pool.name} is full at its peak")
        if used.batch_mean >= _FULL * pool.max_sequences:
            reasons.append(f"{pool.name} runs its {pool.max_sequences} sequences")
    if best.chips > 0.5 * cluster.num_chips:
        reasons.append(f"{best.chips} of {cluster.num_chips} chips are used")
    return "; ".join(reasons)
