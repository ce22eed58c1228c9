"""Steady state of every engine at every load at once: what a deployment costs at least, before simulation.

With r running sequences an iteration takes quiet(r); r / output of them end in it, and each is followed by a
prompt that stretches it. No waiting is counted, so that the replicas found here are a lower bound and what
they cannot do, no simulation will find. Arrays have one entry a number of running sequences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from groundplane.design.deployment_space import EngineChoice
from groundplane.perfmodel.collectives import Links
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.serving import IterationPricer
from groundplane.perfmodel.serving_profiles import serving_calibration
from groundplane.sim.serving.engine_table import engine_parts
from groundplane.sim.serving.iteration import PriceParts
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.llm import LlmSpec
from groundplane.spec.slo import Slo

MOST_RUNNING: Final = 1024
CHUNK_TOKENS: Final = 8192
_TIGHT: Final = 0.7
_TIGHT_FACTOR: Final = 1.5
"""Where prompts alone take more than this share of the time to first token, waiting will take the rest and
more: such candidates are ordered as if they cost so many times as much."""

_ALONE_SHARE: Final = 0.9
"""Share of a prompt's time alone that its first token takes at least: larger parts are a little quicker."""

SLACK: Final = 1.1
"""How much more than its steady state an engine is taken to carry, so that the bound stays one: the length of
prompts is a mean here, and the end of a trace is served after its arrivals."""


@dataclass(frozen=True)
class Load:
    """Means of a workload: requests a second, prompt tokens to compute, those found cached, output tokens.

    `prompt_at` are percentiles of the tokens to compute, by the names that bounds have.
    """

    rate_per_s: float
    prompt: float
    cached: float
    output: float
    prompt_at: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Screened:
    """One engine in steady state.

    Arrays over `running` sequences on one rank: seconds per token and requests a second of the whole engine,
    when it also computes prompts, and when it decodes alone. `prompt_s` is a prompt alone on an engine of
    its own, `prompts_per_s` how many of them the engine computes, `first_token_s` the least time to first
    token of the prompts at each percentile.
    """

    choice: EngineChoice
    running: FloatArray
    tpot_s: FloatArray
    rate_per_s: FloatArray
    ttft_s: FloatArray
    decode_tpot_s: FloatArray
    decode_rate_per_s: FloatArray
    prompt_s: float
    prompts_per_s: float
    outside_s: float
    first_token_s: Mapping[str, float]

    def may_keep(self, slo: Slo) -> bool:
        """Whether prompts alone are short enough for the bounds on first tokens.

        A percentile of times to first token is at least the time of that percentile of prompts.
        """
        return self.tightness(slo) <= 1.0

    def tightness(self, slo: Slo) -> float:
        """The least time to first token over its limit, of the bound where that is largest."""
        return max(
            (
                self.first_token_s.get(bound.statistic, 0.0) / bound.limit_s
                for bound in slo
                if bound.metric == "ttft"
            ),
            default=0.0,
        )


@dataclass(frozen=True)
class Candidate:
    """Engines that together may carry the load.

    `counts` are the least replicas of each; `chips` and `usd_per_hour` what they take, the latter in chip
    hours where no price is known. `running` is the sequences on a rank of the (decoding) engine then.
    """

    engines: tuple[Screened, ...]
    counts: tuple[int, ...]
    chips: int
    usd_per_hour: float
    tpot_s: float
    running: float

    @property
    def disaggregated(self) -> bool:
        """Whether prompts are computed apart from decoding."""
        return len(self.engines) == 2


def screen(model: LlmSpec, cluster: ClusterSpec, links: Links, choice: EngineChoice, load: Load) -> Screened:
    """One engine over all numbers of running sequences that its cache holds."""
    layout = choice.layout
    pricer = IterationPricer(cluster.chip, links, model, layout, choice.formats, engine=choice.engine)
    profile = serving_calibration().profile(choice.engine, cluster.chip.name)
    parts = engine_parts(pricer, profile)
    context = load.prompt + load.cached + load.output / 2.0
    room = min(choice.capacity.num_sequences(context), float(MOST_RUNNING))
    running = np.unique(np.rint(np.geomspace(1.0, max(room, 1.0), 32)))
    one, none = np.ones(1), np.zeros(1)
    rest, attend, _ = parts(running, np.array([context]), none, none, one)
    quiet_s = rest + attend
    chunks = max(math.ceil(load.prompt / CHUNK_TOKENS), 1)
    part = np.array([max(load.prompt / chunks, 1.0)])
    before = np.array([load.cached + (chunks - 1) * load.prompt / chunks / 2.0])
    mixed, _, attention = parts(running, np.array([context]), part, before, one)
    stretch_s = chunks * (np.maximum(mixed - rest, 0.0) + attention)
    alone, _, alone_attention = parts(none, one, part, before, one)
    prompt_s = float(chunks * (alone + alone_attention)[0])
    tpot_s = quiet_s + running / load.output * stretch_s
    ranks = float(layout.attention_dp)
    outside_s = profile.request_s + profile.request_token_s * (load.prompt + load.cached)
    return Screened(
        choice=choice,
        running=running,
        tpot_s=tpot_s,
        rate_per_s=ranks * running / (load.output * tpot_s),
        ttft_s=outside_s + chunks * quiet_s + stretch_s,
        decode_tpot_s=quiet_s,
        decode_rate_per_s=ranks * running / (load.output * quiet_s),
        prompt_s=prompt_s,
        prompts_per_s=ranks * _prompt_rate(parts, load, prompt_s),
        outside_s=outside_s,
        first_token_s={
            name: profile.request_s + _ALONE_SHARE * _alone_s(parts, tokens)
            for name, tokens in load.prompt_at.items()
        },
    )


def _alone_s(parts: PriceParts, tokens: float) -> float:
    """One prompt with nothing beside it, part after part."""
    begins = np.arange(0.0, max(tokens, 1.0), float(CHUNK_TOKENS))
    sizes = np.minimum(max(tokens, 1.0) - begins, float(CHUNK_TOKENS))
    none, one = np.zeros(1), np.ones(1)
    rest, _, attention = parts(none, one, sizes, begins, one)
    return float(np.sum(rest + attention))


def _prompt_rate(parts: PriceParts, load: Load, prompt_s: float) -> float:
    """Prompts a second on one rank: short ones share an iteration up to its tokens."""
    together = max(math.floor(CHUNK_TOKENS / max(load.prompt, 1.0)), 1)
    if together == 1:
        return 1.0 / prompt_s
    none, one = np.zeros(1), np.ones(1)
    tokens = np.array([together * load.prompt])
    rest, _, _ = parts(none, one, tokens, np.array([load.cached]), np.array([float(together)]))
    _, _, attention = parts(none, one, np.array([max(load.prompt, 1.0)]), np.array([load.cached]), one)
    return max(together / float((rest + together * attention)[0]), 1.0 / prompt_s)


def candidates(
    screened: list[Screened], load: Load, slo: Slo, prices: list[float | None], chips: list[int],
    *, aggregated: bool = True, disaggregated: bool = True,
) -> list[Candidate]:  # fmt: skip
    """What may carry the load within the SLO, cheapest first; those with little time to wait come later.

    Args:
        screened: engines of all clusters.
        load: means of the workload.
        slo: bounds; means are held against all of them.
        prices: USD of a chip and hour of each cluster, None where unknown.
        chips: of each cluster.
        aggregated, disaggregated: which kinds to make.
    """
    found: list[Candidate] = []
    if aggregated:
        for one in screened:
            candidate = _aggregated(one, load, slo, prices[one.choice.cluster])
            if candidate is not None:
                found.append(candidate)
    if disaggregated:
        found += _pairs(screened, load, slo, prices)
    found = [one for one in found if one.chips <= chips[one.engines[0].choice.cluster]]

    def promise(one: Candidate) -> tuple[float, bool, float]:
        late = _TIGHT_FACTOR if one.engines[0].tightness(slo) > _TIGHT else 1.0
        return one.usd_per_hour * late, one.disaggregated, one.tpot_s

    return sorted(found, key=promise)


def _aggregated(one: Screened, load: Load, slo: Slo, price: float | None) -> Candidate | None:
    good = _within(slo, one.ttft_s, one.tpot_s, load)
    if not good.any() or not one.may_keep(slo):
        return None
    best = int(np.argmax(np.where(good, one.rate_per_s, -1.0)))
    count = max(math.ceil(load.rate_per_s / (one.rate_per_s[best] * SLACK)), 1)
    chips = count * one.choice.layout.num_chips
    # Fewer run when replicas are many: the load is met where the rate is as large as each one's share.
    place = min(int(np.searchsorted(one.rate_per_s, load.rate_per_s / count)), len(one.running) - 1)
    return Candidate(
        (one,), (count,), chips, chips * _price(price), float(one.tpot_s[place]), float(one.running[place])
    )


def _pairs(screened: list[Screened], load: Load, slo: Slo, prices: list[float | None]) -> list[Candidate]:
    found: list[Candidate] = []
    prefill: dict[tuple[int, str, str, str], list[tuple[float, int, Screened]]] = {}
    ttft_limit = slo.request_limit_s("ttft") or math.inf
    for one in screened:
        key = (one.choice.cluster, one.choice.engine, one.choice.weights, one.choice.cache)
        if one.outside_s + one.prompt_s > ttft_limit or not one.may_keep(slo):
            continue
        count = max(math.ceil(load.rate_per_s / (one.prompts_per_s * SLACK)), 1)
        prefill.setdefault(key, []).append((count * one.choice.layout.num_chips, count, one))
    for options in prefill.values():
        options.sort(
            key=lambda option: (
                option[0] * (_TIGHT_FACTOR if option[2].tightness(slo) > _TIGHT else 1.0), option[2].prompt_s
            )
        )  # fmt: skip
    for one in screened:
        key = (one.choice.cluster, one.choice.engine, one.choice.weights, one.choice.cache)
        good = _within(slo, np.zeros_like(one.decode_tpot_s), one.decode_tpot_s, load)
        if key not in prefill or not good.any():
            continue
        best = int(np.argmax(np.where(good, one.decode_rate_per_s, -1.0)))
        count = max(math.ceil(load.rate_per_s / (one.decode_rate_per_s[best] * SLACK)), 1)
        place = min(
            int(np.searchsorted(one.decode_rate_per_s, load.rate_per_s / count)), len(one.running) - 1
        )
        # The cheapest prefill engines of each kind are enough: dearer ones differ in latency alone.
        for prompt_chips, prompts, first in prefill[key][:3]:
            chips = prompt_chips + count * one.choice.layout.num_chips
            found.append(
                Candidate(
                    (first, one), (prompts, count), chips, chips * _price(prices[key[0]]),
                    float(one.decode_tpot_s[place]), float(one.running[place]),
                )
            )  # fmt: skip
    return found


def _within(slo: Slo, ttft_s: FloatArray, tpot_s: FloatArray, load: Load) -> np.ndarray:
    """Where the means keep every bound; a mean beyond a percentile's limit cannot meet it either."""
    good = np.ones(len(tpot_s), dtype=bool)
    for bound in slo:
        if bound.metric == "ttft":
            good &= ttft_s <= bound.limit_s
        elif bound.metric == "tpot":
            good &= tpot_s <= bound.limit_s
        elif bound.metric == "e2e" and bound.statistic != "p50":
            good &= ttft_s + (load.output - 1.0) * tpot_s <= bound.limit_s
    return good


def _price(price: float | None) -> float:
    return 1.0 if price is None else price
