"""What a simulated deployment gives its users, and what it costs: definitions stated, intervals carried.

Definitions (docs/serving-simulation.md has those of other tools):

* time to first token (ttft): arrival until the first token reaches the client, all waiting included;
* time per output token (tpot): (last - first token) / (tokens - 1) of one request, of more than one token;
* inter-token latency (itl): each gap between two tokens, over all requests;
* end to end (e2e): arrival until the last token. Refused and failed requests have none of these.

Percentiles interpolate linearly. Knows nothing of files or pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.sim.serving.outcome import NEVER, Outcome, State
from groundplane.sim.serving.requests import Requests
from groundplane.sim.serving.results_evidence import ServingEvidence
from groundplane.spec.slo import METRICS, PERCENT, STATISTICS, Metric, Slo

MICRO: Final = 1e6


class Estimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A predicted number and the bounds of 8 of 10 cases."""

    value: float
    low: float
    high: float


class Distribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A latency in seconds; `count` of them."""

    count: int
    mean: Estimate
    p50: Estimate
    p90: Estimate
    p95: Estimate
    p99: Estimate
    p999: Estimate


class BoundResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One bound of the SLO: met as predicted, and for sure (even at the upper end of the interval)."""

    name: str
    limit_s: float
    value: Estimate
    met: bool
    surely_met: bool


class Goodput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests that kept every bound by themselves, refused and failed ones counted as not good."""

    requests_per_s: Estimate
    share: Estimate
    output_tokens_per_s: float


class LatencyResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latencies, rates and shares of one set of requests.

    `shares` divides the end-to-end time of all requests: `outside` the engine, `queue` until first in a
    batch, `prefill` until the first token, `transfer` of the cache, `decode` until the last token.
    """

    requests: int
    ended: int
    refused_long: int
    refused_full: int
    failed: int
    duration_s: float
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2e: Distribution
    queue: Distribution
    requests_per_s: Estimate
    prompt_tokens_per_s: Estimate
    output_tokens_per_s: Estimate
    shares: dict[str, Estimate]
    prefix_hit_share: Estimate
    goodput: Goodput | None
    bounds: tuple[BoundResult, ...]

    def of(self, metric: Metric) -> Distribution:
        """The distribution of a metric that an SLO bounds."""
        found: Distribution = getattr(self, metric)
        return found

    @property
    def meets_slo(self) -> bool:
        """Whether every bound holds as predicted and no request was refused or failed."""
        return all(bound.met for bound in self.bounds) and self.ended == self.requests


class Runs(msgspec.Struct, frozen=True):
    """Outcomes of one workload: as predicted, and with iterations as fast and as slow as the evidence allows.

    `fast` and `slow` are None where no intervals are asked for; a spread of the time to first token beyond
    what they show is added from the evidence.
    """

    requests: Requests
    central: Outcome
    fast: Outcome | None
    slow: Outcome | None
    evidence: ServingEvidence

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The central outcome and, where intervals are asked for, the fast and the slow one."""
        return tuple(run for run in (self.central, self.fast, self.slow) if run is not None)

    def over(self, figure: Callable[[Outcome], float]) -> Estimate:
        """A figure of the central outcome, with the bounds that the others give it."""
        values = [figure(outcome) for outcome in self.outcomes]
        return _estimate(values[0], values)


def latency_result(
    runs: Runs, slo: Slo, outside_ns: np.ndarray, *, model: int | None = None
) -> LatencyResult:
    """Results of all requests, or those of one model.

    Args:
        runs: the outcomes.
        slo: bounds to hold them against; none asks for no goodput.
        outside_ns: (n,) time of each request outside the engine.
        model: index of a model of the deployment.
    """
    requests, outcome = runs.requests, runs.central
    chosen = np.ones(len(requests), dtype=bool) if model is None else requests.model == model
    state = outcome.state[chosen]
    distributions = {name: _distribution(runs, chosen, name, model) for name in (*METRICS, "queue")}
    duration_s = _duration_s(requests, outcome, chosen)
    ended = (outcome.state == State.ENDED) & chosen

    def rate(total: float, name: str) -> Estimate:
        return _rate(runs, chosen, total, name)

    return LatencyResult(
        requests=int(chosen.sum()),
        ended=int(ended.sum()),
        refused_long=int((state == State.REJECTED_LONG).sum()),
        refused_full=int((state == State.REJECTED_FULL).sum()),
        failed=int((state == State.FAILED).sum()),
        duration_s=duration_s,
        **distributions,
        requests_per_s=rate(float(ended.sum()), "requests"),
        prompt_tokens_per_s=rate(float(requests.prompt_tokens[ended].sum()), "prompt"),
        output_tokens_per_s=rate(float(outcome.output_tokens[chosen].sum()), "output"),
        shares=_shares(runs, chosen, outside_ns),
        prefix_hit_share=runs.over(lambda one: _hit_share(requests, one, chosen)),
        goodput=_goodput(runs, chosen, slo) if slo else None,
        bounds=tuple(_bound(distributions, bound.name, bound.limit_s) for bound in slo),
    )


# Latencies
# ----------------------------------------------------------------------------------------------------


def metric_s(requests: Requests, outcome: Outcome, name: str) -> FloatArray:
    """(n,) seconds of one metric for each request, NaN where it has none; `itl` is the longest gap."""
    first, last = outcome.first_token_ns, outcome.finish_ns
    ended = outcome.state == State.ENDED
    found = np.full(len(requests), np.nan)
    if name == "ttft":
        reached = ended & (first != NEVER)
        found[reached] = (first - requests.arrival_ns)[reached] * 1e-9
    elif name == "e2e":
        found[ended] = (last - requests.arrival_ns)[ended] * 1e-9
    elif name == "queue":
        reached = ended & (outcome.admitted_ns != NEVER)
        found[reached] = (outcome.admitted_ns - requests.arrival_ns)[reached] * 1e-9
    elif name == "tpot":
        several = ended & (outcome.output_tokens > 1)
        gaps = np.maximum(outcome.output_tokens - 1, 1)
        found[several] = ((last - first) / gaps)[several] * 1e-9
    else:
        several = ended & (outcome.output_tokens > 1)
        found[several] = outcome.max_gap_ns[several] * 1e-9
    return found


def _distribution(runs: Runs, chosen: np.ndarray, name: str, model: int | None) -> Distribution:
    """Statistics of the central run; bounds from the fast and slow ones and the evidence's own spread."""
    central, count = _statistics(runs.requests, runs.central, chosen, name, model)
    others = [_statistics(runs.requests, run, chosen, name, model)[0] for run in runs.outcomes[1:]]
    spread = runs.evidence.ttft if name in ("ttft", "queue") else runs.evidence.tpot
    estimates = {}
    for statistic in STATISTICS:
        value = central[statistic]
        candidates = [value, *(other[statistic] for other in others)]
        if others and name != "queue":
            candidates += [value * spread.ratio_p10, value * spread.ratio_p90]
        estimates[statistic] = _estimate(value, candidates)
    return Distribution(count=count, **estimates)


def _statistics(
    requests: Requests, outcome: Outcome, chosen: np.ndarray, name: str, model: int | None
) -> tuple[dict[str, float], int]:
    if name == "itl":
        return _gap_statistics(outcome, model)
    values = metric_s(requests, outcome, name)[chosen]
    values = values[~np.isnan(values)]
    if not len(values):
        return dict.fromkeys(STATISTICS, float("nan")), 0
    found = {"mean": float(values.mean())}
    marks = np.percentile(values, list(PERCENT.values()))
    found |= {statistic: float(mark) for statistic, mark in zip(PERCENT, marks, strict=True)}
    return found, len(values)


def _gap_statistics(outcome: Outcome, model: int | None) -> tuple[dict[str, float], int]:
    from groundplane.sim.serving.outcome import gap_bin_edges_ns

    counts = outcome.gap_counts.sum(axis=0) if model is None else outcome.gap_counts[model]
    total = int(counts.sum())
    edges = gap_bin_edges_ns()
    middles = (edges[:-1] + edges[1:] - 1) / 2.0
    mean = float((counts * middles).sum() / total) * 1e-9 if total else float("nan")
    found = {"mean": mean}
    found |= {
        statistic: outcome.gap_percentile_ns(percent, model) * 1e-9 for statistic, percent in PERCENT.items()
    }
    return found, total


def _estimate(value: float, candidates: list[float]) -> Estimate:
    known = [one for one in candidates if np.isfinite(one)]
    return Estimate(value, min(known, default=value), max(known, default=value))


def _bound(distributions: dict[str, Distribution], name: str, limit_s: float) -> BoundResult:
    metric, _, statistic = name.partition("_")
    value: Estimate = getattr(distributions[metric], statistic)
    # Requests of one token each have no time per token, and none too long.
    met = bool(np.isnan(value.value)) or value.value <= limit_s
    return BoundResult(name, limit_s, value, met, met and not value.high > limit_s)


# Rates and shares
# ----------------------------------------------------------------------------------------------------


def _duration_s(requests: Requests, outcome: Outcome, chosen: np.ndarray) -> float:
    """First arrival to last token, as vLLM's and NVIDIA's tools count it."""
    if not chosen.any():
        return 0.0
    last = max(int(outcome.finish_ns[chosen].max()), int(requests.arrival_ns[chosen].max()))
    return (last - int(requests.arrival_ns[chosen].min())) * 1e-9


def _rate(runs: Runs, chosen: np.ndarray, total: float, name: str) -> Estimate:
    def one(outcome: Outcome) -> float:
        ended = (outcome.state == State.ENDED) & chosen
        amount = {
            "requests": float(ended.sum()),
            "prompt": float(runs.requests.prompt_tokens[ended].sum()),
            "output": float(outcome.output_tokens[chosen].sum()),
        }[name]
        return _ratio(amount, _duration_s(runs.requests, outcome, chosen))

    value = _ratio(total, _duration_s(runs.requests, runs.central, chosen))
    return _estimate(value, [value, *(one(run) for run in runs.outcomes[1:])])


def _hit_share(requests: Requests, outcome: Outcome, chosen: np.ndarray) -> float:
    ended = (outcome.state == State.ENDED) & chosen
    found = outcome.hit_tokens + outcome.tier_hit_tokens
    return _ratio(float(found[ended].sum()), float(requests.prompt_tokens[ended].sum()))


def _shares(runs: Runs, chosen: np.ndarray, outside_ns: np.ndarray) -> dict[str, Estimate]:
    each = [_shares_of(runs.requests, one, chosen, outside_ns) for one in runs.outcomes]
    return {
        name: _estimate(share, [one[name] for one in each if name in one]) for name, share in each[0].items()
    }


def _shares_of(
    requests: Requests, outcome: Outcome, chosen: np.ndarray, outside_ns: np.ndarray
) -> dict[str, float]:
    ended = (outcome.state == State.ENDED) & chosen
    if not ended.any():
        return {}
    arrival, admitted = requests.arrival_ns[ended], outcome.admitted_ns[ended]
    first, last = outcome.first_token_ns[ended], outcome.finish_ns[ended]
    transfer = np.maximum(outcome.transfer_ns[ended], 0)
    outside = np.minimum(outside_ns[ended], first - arrival)
    queue = np.clip(admitted - arrival, 0, first - arrival - outside)
    parts = {
        "outside": float(outside.sum()),
        "queue": float(queue.sum()),
        "prefill": float((first - arrival - outside - queue).sum()),
        "transfer": float(transfer.sum()),
        "decode": float((last - first - transfer).sum()),
    }
    whole = sum(parts.values())
    return {name: _ratio(part, whole) for name, part in parts.items()}


def good_requests(requests: Requests, outcome: Outcome, slo: Slo) -> np.ndarray:
    """(n,) whether each request ended within every bound, taken as a bound of its own.

    The limits are those of the SLO's tightest bound of each metric; `itl` holds the longest gap against it.
    """
    good = outcome.state == State.ENDED
    for metric in METRICS:
        limit_s = slo.request_limit_s(metric)
        if limit_s is not None:
            with np.errstate(invalid="ignore"):
                good &= ~(metric_s(requests, outcome, metric) > limit_s)
    return np.asarray(good)


def _goodput(runs: Runs, chosen: np.ndarray, slo: Slo) -> Goodput:
    found = []
    for outcome in runs.outcomes:
        good = good_requests(runs.requests, outcome, slo) & chosen
        duration_s = _duration_s(runs.requests, outcome, chosen)
        found.append((_ratio(good.sum(), duration_s), _ratio(good.sum(), chosen.sum())))
    good = good_requests(runs.requests, runs.central, slo) & chosen
    duration_s = _duration_s(runs.requests, runs.central, chosen)
    return Goodput(
        _estimate(found[0][0], [one[0] for one in found]),
        _estimate(found[0][1], [one[1] for one in found]),
        _ratio(float(runs.central.output_tokens[good].sum()), duration_s),
    )


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else 0.0
