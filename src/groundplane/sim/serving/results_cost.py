"""What a simulated deployment used: chip hours and their price, energy, cache and batches of each pool.

Prices are dated list prices of the catalogue or the user's own. Energy is thermal design power times the
share of time in which iterations ran: hosts, network, cooling and idle draw are not in it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from groundplane.catalog.prices import chip_price
from groundplane.sim.serving.described import BuiltDeployment
from groundplane.sim.serving.outcome import Outcome
from groundplane.sim.serving.results import Estimate, LatencyResult, Runs

_HOUR_NS = 3.6e12
_MILLION = 1e6


class PoolResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pool over the whole run.

    `replicas_mean` is up time over the run's length (ranks of data-parallel attention counted together as
    one replica), `busy_share` iterations over time ready, `kv_mean_share` and `kv_peak_share` blocks held by
    requests, `decode_tokens` all but the first tokens of requests, `batch_mean` of them an iteration.
    """

    name: str
    role: str
    model: str
    chips_per_replica: int
    replicas_mean: float
    chip_hours: float
    busy_share: Estimate
    iterations: int
    batch_mean: float
    prompt_tokens: int
    decode_tokens: int
    kv_blocks: int
    kv_mean_share: Estimate
    kv_peak_share: Estimate
    preemptions: int
    evicted_blocks: int
    transfer_share: Estimate
    starts: int


class CostResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Money and energy of the run. USD are None where the chip has no known price.

    Costs of a million tokens are those of all chip hours over the tokens made; `good` counts the tokens of
    requests within the SLO only. Their bounds follow the throughput's: the chips are paid for either way.
    """

    chip: str
    chip_hours: float
    usd_per_chip_hour: float | None
    price_source: str
    usd_per_hour: float | None
    usd: float | None
    usd_per_million_output_tokens: Estimate | None
    usd_per_million_tokens: Estimate | None
    usd_per_million_good_output_tokens: float | None
    energy_j: Estimate | None
    energy_j_per_output_token: Estimate | None
    mean_power_w: Estimate | None


def pool_results(built: BuiltDeployment, runs: Runs) -> tuple[PoolResult, ...]:
    """One result a pool, in the deployment's order."""
    return tuple(_pool_result(built, runs, index) for index in range(len(built.pools)))


def _pool_result(built: BuiltDeployment, runs: Runs, index: int) -> PoolResult:
    pool, totals = built.pools[index], runs.central.replicas
    mine = totals.pool == index
    up_ns = float(totals.up_ns[mine].sum())
    blocks = pool.capacity.num_blocks
    iterations = int(totals.iterations[mine].sum())
    made = int(totals.decode_tokens[mine].sum())

    def share(name: str, of: float = 1.0) -> Estimate:
        """A total over the time that the pool's replicas were ready."""

        def figure(outcome: Outcome) -> float:
            ready_ns = float(outcome.replicas.ready_ns[mine].sum())
            return _ratio(float(getattr(outcome.replicas, name)[mine].sum()), ready_ns * of)

        return runs.over(figure)

    def peak(outcome: Outcome) -> float:
        return _ratio(float(np.max(outcome.replicas.kv_peak_blocks[mine], initial=0)), blocks)

    return PoolResult(
        name=pool.spec.name,
        role=pool.spec.role,
        model=pool.spec.model or built.spec.model,
        chips_per_replica=pool.spec.num_chips,
        replicas_mean=up_ns / max(runs.central.end_ns, 1) / pool.layout.attention_dp,
        chip_hours=up_ns / _HOUR_NS * pool.rank_chips,
        busy_share=share("busy_ns"),
        iterations=iterations,
        batch_mean=_ratio(made, iterations),
        prompt_tokens=int(totals.prompt_tokens[mine].sum()),
        decode_tokens=made,
        kv_blocks=blocks,
        kv_mean_share=share("kv_block_ns", float(blocks)),
        kv_peak_share=runs.over(peak),
        preemptions=int(totals.preemptions[mine].sum()),
        evicted_blocks=int(totals.evicted_blocks[mine].sum()),
        transfer_share=share("transfer_ns"),
        starts=int(totals.starts[mine].sum()),
    )


def cost_result(
    built: BuiltDeployment,
    runs: Runs,
    latency: LatencyResult,
    prompt_tokens: int,
    *,
    usd_per_chip_hour: float | None = None,
) -> CostResult:
    """The price and energy of a run.

    Args:
        built, runs, latency: the deployment, what happened, and its rates.
        prompt_tokens: of all requests that ended.
        usd_per_chip_hour: of a chip, before the deployment's own and the catalogue's.
    """
    outcome = runs.central
    hours = sum(pool.chip_hours for pool in pool_results(built, runs))
    price, source = price_of(built, usd_per_chip_hour)
    usd = None if price is None else hours * price
    seconds = max(outcome.end_ns, 1) * 1e-9
    tdp_w = built.cluster.chip.tdp_w
    output = float(outcome.output_tokens.sum())
    good = latency.goodput.output_tokens_per_s * latency.duration_s if latency.goodput else 0.0
    rate = latency.output_tokens_per_s
    return CostResult(
        chip=built.cluster.chip.name,
        chip_hours=hours,
        usd_per_chip_hour=price,
        price_source=source,
        usd_per_hour=None if usd is None else usd / seconds * 3600.0,
        usd=usd,
        usd_per_million_output_tokens=_per_million(usd, output, rate),
        usd_per_million_tokens=_per_million(usd, output + prompt_tokens, rate),
        usd_per_million_good_output_tokens=None if usd is None or not good else usd / good * _MILLION,
        energy_j=None if tdp_w is None else runs.over(lambda one: _busy_s(built, one) * tdp_w),
        energy_j_per_output_token=None
        if tdp_w is None or not output
        else runs.over(lambda one: _ratio(_busy_s(built, one) * tdp_w, float(one.output_tokens.sum()))),
        mean_power_w=None
        if tdp_w is None
        else runs.over(lambda one: _ratio(_busy_s(built, one) * tdp_w, one.end_ns * 1e-9)),
    )


def price_of(built: BuiltDeployment, given: float | None) -> tuple[float | None, str]:
    """USD of one chip and hour, and where that comes from."""
    if given is not None:
        return given, "given"
    if built.spec.usd_per_chip_hour is not None:
        return built.spec.usd_per_chip_hour, "the deployment file"
    price = chip_price(built.cluster.chip.name)
    if price is None:
        return None, f"no price known of {built.cluster.chip.name}: give one"
    return price.usd_per_hour, f"{price.source}, {price.date}"


def _busy_s(built: BuiltDeployment, outcome: Outcome) -> float:
    """Chip seconds in which iterations ran."""
    busy_s = 0.0
    for index, pool in enumerate(built.pools):
        mine = outcome.replicas.pool == index
        busy_s += float(outcome.replicas.busy_ns[mine].sum()) * 1e-9 * pool.rank_chips
    return busy_s


def _per_million(usd: float | None, tokens: float, rate: Estimate) -> Estimate | None:
    if usd is None or not tokens:
        return None
    value = usd / tokens * _MILLION
    low = value * _ratio(rate.value, rate.high) if rate.high else value
    high = value * _ratio(rate.value, rate.low) if rate.low else value
    return Estimate(value, min(low, value), max(high, value))


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else 0.0
