"""Simulates the cheapest candidates under the real workload until nothing cheaper can meet the SLO.

Candidates come cheapest first with a lower bound of their replicas. Each is simulated there, and with more
replicas until it meets the SLO or costs as much as the best found. Then the winner's knobs are tried:
tokens of an iteration, sequences, routing, and replicas that come and go. Every loop has a named limit.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from groundplane.design.deployment_screen import Candidate
from groundplane.sim.serving.described import build_deployment
from groundplane.sim.serving.results import LatencyResult
from groundplane.sim.serving.results_run import ServingRun, simulate_serving
from groundplane.sim.serving.workload_rows import RequestRows
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.deployment import AutoscaleLimits, DeploymentSpec, ReplicaPool
from groundplane.spec.slo import Slo

MAX_SIMULATIONS: Final = 80
LEAST_SIMULATIONS: Final = 30
MAX_REQUESTS_SIMULATED: Final = 700_000
MAX_CANDIDATES: Final = 24
MAX_STEPS: Final = 7
FOR_KNOBS: Final = 16
"""Most simulations (fewer where there are many requests, at least so many), requests served in all of them,
candidates that are simulated, steps with one candidate, simulations kept for the winner's knobs."""

_GAIN: Final = 0.2
"""Share that a bound must come down by when the chips are doubled, for more of them to be tried."""

_NEAR: Final = 0.8
"""Share of another candidate's need over its lower bound at which the next one begins."""

_CHUNK: Final = 8192
_CHUNKS: Final = (2048, 4096, 8192, 16384)
_SEQUENCES: Final = (64, 128, 256, 512, 1024)
_FILL: Final = 0.8
"""Share of its least sequences that a replica is filled to when replicas come and go."""


@dataclass(frozen=True)
class Trial:
    """One simulated deployment; `usd_per_hour` are chip hours where no price is known."""

    spec: DeploymentSpec
    cluster: int
    chips: int
    usd_per_hour: float
    run: ServingRun

    @property
    def latency(self) -> LatencyResult:
        """What came of it."""
        return self.run.result.latency

    @property
    def meets(self) -> bool:
        """Whether the SLO holds."""
        return self.latency.meets_slo

    @property
    def excess(self) -> float:
        """The worst bound's value over its limit; requests refused or failed count as far beyond."""
        lost = 1.0 - self.latency.ended / max(self.latency.requests, 1)
        ratios = [bound.value.value / bound.limit_s for bound in self.latency.bounds]
        return max((ratio for ratio in ratios if not math.isnan(ratio)), default=0.0) + 100.0 * lost

    @property
    def rank(self) -> tuple[bool, float, int, float]:
        """Those that meet the SLO by price, pools and latency, the others by how far they are off."""
        price = round(self.usd_per_hour, 6) if self.meets else self.excess
        return (not self.meets, price, len(self.spec.pools), self.excess)


@dataclass
class Search:
    """A search under way: what it simulates with, what it tried, and what it has left.

    `model` is its name in deployment files. `sure` holds the upper ends of intervals against the
    SLO: every iteration is as slow as the evidence allows.
    """

    model: str
    clusters: list[tuple[str, ClusterSpec, float | None]]
    rows: RequestRows
    slo: Slo
    sure: bool = False
    deadline_s: float = float("inf")
    clock: Callable[[], float] = time.monotonic
    simulator: Any = "fast"
    trials: list[Trial] = field(default_factory=list)
    left: int = field(init=False)
    _seen: dict[DeploymentSpec, Trial] = field(default_factory=dict)
    _burst: float = 1.0

    def __post_init__(self) -> None:
        share = MAX_REQUESTS_SIMULATED // max(len(self.rows), 1)
        self.left = min(max(share, LEAST_SIMULATIONS), MAX_SIMULATIONS)

    @property
    def best(self) -> Trial | None:
        """The best trial so far."""
        return min(self.trials, key=lambda trial: trial.rank, default=None)

    @property
    def over(self) -> bool:
        """Whether nothing more may be simulated."""
        return self.left <= 0 or self.clock() >= self.deadline_s

    def run(self, candidates: list[Candidate]) -> Trial | None:
        """The best deployment of all candidates, None where there are none."""
        for candidate in _by_turns(candidates)[:MAX_CANDIDATES]:
            best = self.best
            if self.left <= FOR_KNOBS:
                break
            if best is not None and best.meets and not self._promises(candidate, best):
                continue
            self._grow(candidate)
        self._refine()
        return self.best

    @staticmethod
    def _promises(candidate: Candidate, best: Trial) -> bool:
        """Whether it may be cheaper than the best, or as cheap with one kind of engine instead of two."""
        if candidate.usd_per_hour < best.usd_per_hour * (1.0 - 1e-9):
            return True
        simpler = not candidate.disaggregated and len(best.spec.pools) > 1
        return simpler and candidate.usd_per_hour <= best.usd_per_hour * (1.0 + 1e-9)

    # One candidate
    # ------------------------------------------------------------------------------------------------

    def _grow(self, candidate: Candidate) -> None:
        """More replicas until the SLO holds or the candidate is too dear, then fewer as long as it does."""
        most = self._affordable(candidate)
        counts = self._first(candidate, most)
        failed = [count - 1 for count in candidate.counts]
        chunk = _CHUNK
        last: Trial | None = None
        for _ in range(MAX_STEPS):
            if sum(self._chips(candidate, counts)) > most:
                return
            trial = self._try(self._spec(candidate, tuple(counts), chunk))
            if trial is None:
                return
            if last is None and not trial.meets and self._stalls(trial):
                # Small parts hold each token up for less, large ones fewer tokens.
                for other in (_CHUNKS[0], _CHUNKS[-1]):
                    changed = self._try(self._spec(candidate, tuple(counts), other))
                    if changed is not None and changed.excess < trial.excess:
                        trial, chunk = changed, other
            if last is not None and not trial.meets and not _improved(last, trial):
                return
            last = trial
            if trial.meets:
                self._shrink(candidate, failed, counts, chunk)
                return
            before, counts = counts, self._more(trial, candidate, counts)
            # What was not grown was not known to be too few.
            failed = [had if has > had else low for low, had, has in zip(failed, before, counts, strict=True)]
            if sum(self._chips(candidate, counts)) > most and not candidate.disaggregated:
                # The last step goes as far as the money does, no further.
                top = most // candidate.engines[0].choice.layout.num_chips
                counts = [top] if top > failed[0] else counts

    def _affordable(self, candidate: Candidate) -> int:
        """Chips that the cluster has and that cost no more than the best found."""
        chips = self.clusters[candidate.engines[0].choice.cluster][1].num_chips
        best = self.best
        if best is None or not best.meets:
            return chips
        price = candidate.usd_per_hour / candidate.chips
        simpler = not candidate.disaggregated and len(best.spec.pools) > 1
        limit = best.usd_per_hour * (1.0 + (1e-9 if simpler else -1e-9))
        return min(chips, int(limit / price)) if price else chips

    def _first(self, candidate: Candidate, most: int) -> list[int]:
        """Where to begin: at the least, or, when it is known how far bursts go above the mean, near there."""
        best = self.best
        if best is None or not best.meets:
            return list(candidate.counts)
        if not candidate.disaggregated:
            # The dearest that would still win: when that fails, one simulation was enough.
            return [max(most // candidate.engines[0].choice.layout.num_chips, candidate.counts[0])]
        guessed = [max(count, math.ceil(count * self._burst * _NEAR)) for count in candidate.counts]
        return guessed if sum(self._chips(candidate, guessed)) <= most else list(candidate.counts)

    @staticmethod
    def _chips(candidate: Candidate, counts: list[int]) -> list[int]:
        return [
            count * one.choice.layout.num_chips for count, one in zip(counts, candidate.engines, strict=True)
        ]

    def _more(self, trial: Trial, candidate: Candidate, counts: list[int]) -> list[int]:
        """More where it was too slow, by how far: prefill for first tokens, decoding for the others."""
        step = 1.0 + min(max(trial.excess - 1.0, 0.0), 1.0)

        def grown(count: int) -> int:
            return max(count + 1, round(count * step))

        if not candidate.disaggregated:
            return [grown(counts[0])]
        late = {bound.name.partition("_")[0] for bound in trial.latency.bounds if not bound.met}
        lost = trial.latency.ended < trial.latency.requests
        first = "ttft" in late or (lost and not late)
        others = bool(late - {"ttft"}) or not first
        return [grown(counts[0]) if first else counts[0], grown(counts[1]) if others else counts[1]]

    def _shrink(self, candidate: Candidate, failed: list[int], met: list[int], chunk: int) -> None:
        """Halves the way between counts that failed and that met the SLO, one engine after the other."""
        for place in range(len(met)):
            low, high = min(failed[place], met[place] - 1), met[place]
            for _ in range(MAX_STEPS):
                if high - low <= 1:
                    break
                middle = [*met]
                middle[place] = (low + high) // 2
                trial = self._try(self._spec(candidate, tuple(middle), chunk))
                if trial is None:
                    return
                if trial.meets:
                    high = middle[place]
                    met = middle
                else:
                    low = middle[place]
        ratios = [count / least for count, least in zip(met, candidate.counts, strict=True)]
        self._burst = max(ratios)

    @staticmethod
    def _stalls(trial: Trial) -> bool:
        """Whether tokens come too slowly where prompts and decoding share an engine."""
        late = {bound.name.partition("_")[0] for bound in trial.latency.bounds if not bound.met}
        return len(trial.spec.pools) == 1 and bool(late & {"tpot", "itl"})

    def _spec(self, candidate: Candidate, counts: tuple[int, ...], chunk: int) -> DeploymentSpec:
        names = ("prefill", "decode") if candidate.disaggregated else ("serve",)
        first = candidate.engines[0].choice
        pools = []
        for name, engine, count in zip(names, candidate.engines, counts, strict=True):
            layout = engine.choice.layout
            pools.append(
                ReplicaPool(
                    name=name,
                    role="both" if name == "serve" else ("prefill" if name == "prefill" else "decode"),
                    replicas=count,
                    tp=layout.tp,
                    pp=layout.pp,
                    attention_dp=layout.attention_dp,
                    ep=layout.expert_ep,
                    max_sequences=sequences_for(candidate.running),
                    max_batched_tokens=chunk,
                )
            )
        return DeploymentSpec(
            name="planned",
            cluster=self.clusters[first.cluster][0],
            pools=tuple(pools),
            model=self.model,
            engine=first.engine,
            weights=first.weights,
            cache=first.cache,
            routing="prefix" if len(self.rows.block_start) else "least_work",
        )

    # The winner's knobs
    # ------------------------------------------------------------------------------------------------

    def _refine(self) -> None:
        """Other chunks, sequences and routing; then fewer replicas while they will do; then scaling."""
        best = self.best
        if best is None:
            return
        for changed in self._variants(best.spec):
            self._try(changed)
        share = 0.25
        for _ in range(MAX_STEPS):
            before = self.best
            if before is None or not before.meets:
                return
            for fewer in _fewer(before.spec, share):
                self._try(fewer)
            if self.best is before:
                if share * max(pool.replicas for pool in before.spec.pools) <= 1.0:
                    break
                share /= 2.0
        best = self.best
        if best is not None and best.meets:
            for scaled in _scaling(best):
                self._try(scaled)

    def _variants(self, spec: DeploymentSpec) -> list[DeploymentSpec]:
        found = []
        for chunk in _CHUNKS:
            pools = tuple(
                msgspec.structs.replace(pool, max_batched_tokens=max(chunk, pool.max_sequences))
                for pool in spec.pools
            )
            found.append(msgspec.structs.replace(spec, pools=pools))
        place = _SEQUENCES.index(spec.pools[-1].max_sequences)
        for other in _SEQUENCES[max(place - 1, 0) : place + 2]:
            pools = (*spec.pools[:-1], msgspec.structs.replace(spec.pools[-1], max_sequences=other))
            found.append(msgspec.structs.replace(spec, pools=pools))
        routings = ["least_work", "round_robin"]
        if len(self.rows.block_start):
            routings.append("prefix")
        if len(self.rows.session) and len(spec.pools) == 1:
            routings.append("session")
        found += [msgspec.structs.replace(spec, routing=routing) for routing in routings]
        return [one for one in found if one != spec]

    # Simulation
    # ------------------------------------------------------------------------------------------------

    def _try(self, spec: DeploymentSpec) -> Trial | None:
        """Simulates a deployment; None when nothing more may be or the cluster is too small for it."""
        if spec in self._seen:
            return self._seen[spec]
        place = next(i for i, (name, _, _) in enumerate(self.clusters) if name == spec.cluster)
        _, cluster, price = self.clusters[place]
        chips = sum(pool.num_chips * pool.max_replicas for pool in spec.pools)
        if self.over or chips > cluster.num_chips:
            return None
        self.left -= 1
        longest = int((self.rows.prompt + self.rows.output).max())
        built = build_deployment(spec, cluster=cluster, max_context=longest)
        run = simulate_serving(
            built, self.rows, slo=self.slo, intervals=False, pessimistic=self.sure,
            usd_per_chip_hour=price, simulator=self.simulator,
        )  # fmt: skip
        hours = run.result.cost.chip_hours / max(run.outcome.end_ns / 3.6e12, 1e-12)
        trial = Trial(spec, place, chips, hours * (1.0 if price is None else price), run)
        self.trials.append(trial)
        self._seen[spec] = trial
        return trial


def sequences_for(running: float) -> int:
    """The least of the usual limits that leaves half as much again for bursts."""
    return next((limit for limit in _SEQUENCES if limit >= 1.5 * running), _SEQUENCES[-1])


def _by_turns(candidates: list[Candidate]) -> list[Candidate]:
    """Engines that do both and those apart by turns, each in their order: neither kind uses up the search."""
    kinds = [[one for one in candidates if one.disaggregated == apart] for apart in (False, True)]
    return [one for pair in itertools.zip_longest(*kinds) for one in pair if one is not None]


def _improved(before: Trial, after: Trial) -> bool:
    """Whether any bound that was missed is nearer, in proportion to what was added, or fewer were lost.

    Twice the chips should take off a fifth at least: a bound that is held up by something else, such as one
    long prompt, is not met by more replicas.
    """
    if after.latency.ended > before.latency.ended:
        return True
    wanted = 1.0 - _GAIN * min(after.chips / before.chips - 1.0, 1.0)
    return any(
        new.value.value < wanted * old.value.value
        for old, new in zip(before.latency.bounds, after.latency.bounds, strict=True)
        if not old.met
    )


def _fewer(spec: DeploymentSpec, share: float) -> list[DeploymentSpec]:
    """The deployment with a share of each pool's replicas less, at least one."""
    found = []
    for index, pool in enumerate(spec.pools):
        if pool.replicas > 1:
            less = min(max(round(pool.replicas * share), 1), pool.replicas - 1)
            changed = msgspec.structs.replace(pool, replicas=pool.replicas - less)
            found.append(
                msgspec.structs.replace(spec, pools=(*spec.pools[:index], changed, *spec.pools[index + 1 :]))
            )
    return found


def _scaling(best: Trial) -> list[DeploymentSpec]:
    """The winner with replicas between a part of its number and all of it, for loads that come and go."""
    spec = best.spec
    if all(pool.replicas == 1 for pool in spec.pools):
        return []
    found = []
    for share in (0.25, 0.5):
        pools = []
        for pool, result in zip(spec.pools, best.run.result.pools, strict=True):
            least = max(1, round(pool.replicas * share))
            per_rank = max(result.batch_mean * pool.attention_dp, 1.0)
            busy = max(per_rank / max(result.busy_share.value, 0.05) * _FILL, 1.0)
            limits = AutoscaleLimits(
                max_replicas=pool.replicas, min_replicas=least, target_requests=max(round(busy), 1)
            )
            pools.append(msgspec.structs.replace(pool, autoscale=limits) if pool.replicas > 1 else pool)
        found.append(msgspec.structs.replace(spec, pools=tuple(pools)))
    return found
