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
from groundplane.sim.serving.results import Estimate, LatencyResult

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
    busy_share: float
    iterations: int
    batch_mean: float
    prompt_tokens: int
    decode_tokens: int
    kv_blocks: int
    kv_mean_share: float
    kv_peak_share: float
    preemptions: int
    evicted_blocks: int
    transfer_share: float
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
    energy_j: float | None
    energy_j_per_output_token: float | None
    mean_power_w: float | None


def pool_results(built: BuiltDeployment, outcome: Outcome) -> tuple[PoolResult, ...]:
    """One result a pool, in the deployment's order."""
    totals = outcome.replicas
    length_ns = max(outcome.end_ns, 1)
    found = []
    for index, pool in enumerate(built.pools):
        mine = totals.pool == index
        ranks = pool.layout.attention_dp
        up_ns, ready_ns = float(totals.up_ns[mine].sum()), float(totals.ready_ns[mine].sum())
        blocks = pool.capacity.num_blocks
        iterations = int(totals.iterations[mine].sum())
        made = int(totals.decode_tokens[mine].sum())
        found.append(
            PoolResult(
                name=pool.spec.name,
                role=pool.spec.role,
                model=pool.spec.model or built.spec.model,
                chips_per_replica=pool.spec.num_chips,
                replicas_mean=up_ns / length_ns / ranks,
                chip_hours=up_ns / _HOUR_NS * pool.rank_chips,
                busy_share=_ratio(float(totals.busy_ns[mine].sum()), ready_ns),
                iterations=iterations,
                batch_mean=_ratio(made, iterations),
                prompt_tokens=int(totals.prompt_tokens[mine].sum()),
                decode_tokens=made,
                kv_blocks=blocks,
                kv_mean_share=_ratio(float(totals.kv_block_ns[mine].sum()), ready_ns * blocks),
                kv_peak_share=_ratio(float(np.max(totals.kv_peak_blocks[mine], initial=0)), blocks),
                preemptions=int(totals.preemptions[mine].sum()),
                evicted_blocks=int(totals.evicted_blocks[mine].sum()),
                transfer_share=_ratio(float(totals.transfer_ns[mine].sum()), ready_ns),
                starts=int(totals.starts[mine].sum()),
            )
        )
    return tuple(found)


def cost_result(
    built: BuiltDeployment,
    outcome: Outcome,
    latency: LatencyResult,
    prompt_tokens: int,
    *,
    usd_per_chip_hour: float | None = None,
) -> CostResult:
    """The price and energy of a run.

    Args:
        built, outcome, latency: the deployment, what happened, and its rates.
        prompt_tokens: of all requests that ended.
        usd_per_chip_hour: of a chip, before the deployment's own and the catalogue's.
    """
    pools = pool_results(built, outcome)
    hours = sum(pool.chip_hours for pool in pools)
    price, source = price_of(built, usd_per_chip_hour)
    usd = None if price is None else hours * price
    seconds = max(outcome.end_ns, 1) * 1e-9
    energy_j = _energy_j(built, outcome)
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
        energy_j=energy_j,
        energy_j_per_output_token=None if energy_j is None or not output else energy_j / output,
        mean_power_w=None if energy_j is None else energy_j / seconds,
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


def _energy_j(built: BuiltDeployment, outcome: Outcome) -> float | None:
    tdp_w = built.cluster.chip.tdp_w
    if tdp_w is None:
        return None
    busy_s = 0.0
    for index, pool in enumerate(built.pools):
        mine = outcome.replicas.pool == index
        busy_s += float(outcome.replicas.busy_ns[mine].sum()) * 1e-9 * pool.rank_chips
    return busy_s * tdp_w


def _per_million(usd: float | None, tokens: float, rate: Estimate) -> Estimate | None:
    if usd is None or not tokens:
        return None
    value = usd / tokens * _MILLION
    low = value * _ratio(rate.value, rate.high) if rate.high else value
    high = value * _ratio(rate.value, rate.low) if rate.low else value
    return Estimate(value, min(low, value), max(high, value))


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else 0.0
