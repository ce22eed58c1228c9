"""The cheapest deployment of a model that meets an SLO: `plan_serving` answers in one call.

Every engine is screened in steady state, the cheapest candidates are simulated under the real workload, and
the answer says what binds it, what binds next, and how to start it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from groundplane.catalog.prices import chip_price
from groundplane.catalog.resolve import resolve_cluster
from groundplane.design.deployment_answer import (
    FrontPoint,
    Option,
    bottleneck,
    front_of,
    growth,
    next_constraint,
    option_of,
    options_of,
)
from groundplane.design.deployment_launch import Launch, launches
from groundplane.design.deployment_manifest import manifest
from groundplane.design.deployment_screen import Candidate, Load, Screened, candidates, screen
from groundplane.design.deployment_search import Search, Trial
from groundplane.design.deployment_space import engine_choices
from groundplane.perfmodel.serving_links import serving_links
from groundplane.perfmodel.serving_models import serving_llm
from groundplane.perfmodel.serving_profiles import serving_calibration
from groundplane.sim.serving.checkpoint_format import native_weights
from groundplane.sim.serving.described import build_deployment
from groundplane.sim.serving.results_run import ServingResult, simulate_serving
from groundplane.sim.serving.workload_rows import IntArray, RequestRows
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.dump import to_yaml
from groundplane.spec.errors import InputError
from groundplane.spec.llm import LlmSpec
from groundplane.spec.slo import PERCENT, Slo

DEFAULT_CACHES: Final = ("bf16", "fp8")


class ServingPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer. `best` is None where no engine holds the model; it may still miss the SLO (`meets_slo`).

    `front` are simulated deployments none of which another beats in price and both latencies; `screened`
    counts engines, `candidates` what may carry the load, `simulated` deployments tried. Prices are chip hours
    where no price is known (`priced` false).
    """

    model: str
    slo: str
    meets_slo: bool
    surely_meets_slo: bool
    best: Option | None
    options: tuple[Option, ...]
    front: tuple[FrontPoint, ...]
    bottleneck: str
    next_constraint: str
    growth: dict[str, str]
    deployment: str
    launch: tuple[Launch, ...]
    manifest: str
    result: ServingResult | None
    priced: bool
    screened: int
    candidates: int
    simulated: int
    notes: tuple[str, ...]


def plan_serving(
    model: str,
    clusters: str | Sequence[str],
    workload: RequestRows,
    slo: Slo,
    *,
    engines: Sequence[str] = ("vllm",),
    weights: Sequence[str] = (),
    caches: Sequence[str] = DEFAULT_CACHES,
    kinds: Sequence[str] = ("aggregated", "disaggregated"),
    usd_per_chip_hour: float | None = None,
    sure: bool = False,
    top: int = 5,
    time_limit_s: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
    simulator: Any = "fast",
) -> ServingPlan:
    """The cheapest deployment that meets the SLO, and what else was found on the way.

    Args:
        model: catalogue name, or a `config.json`.
        clusters: one or several, by preset or file; the best of all is chosen.
        workload: requests, as `load_workload` gives them.
        slo: bounds that must hold over all requests.
        engines, weights, caches: what may be used: engines of the calibration, number formats (of weights:
            as published and, where that is bf16, fp8, when none is named).
        kinds: "aggregated", "disaggregated" or both.
        usd_per_chip_hour: price for all clusters, instead of the catalogue's.
        sure: hold the upper ends of intervals against the SLO.
        top: how many options to name.
        time_limit_s: no simulation begins after it, by `clock`.
        simulator: the compiled one, or the plain one that it equals.

    Raises:
        InputError: unknown names; several clusters and no price for one of them; no engine holds the model.
    """
    llm = serving_llm(model)
    weights = tuple(weights) or usual_weights(model, llm)
    names = [clusters] if isinstance(clusters, str) else list(clusters)
    found = _clusters(names, usd_per_chip_hour)
    load = load_of(workload)
    screened, listed = _screened(
        llm, found, load, slo, workload, tuple(engines), tuple(weights), tuple(caches), tuple(kinds)
    )
    search = Search(
        model, found, workload, slo, sure=sure, deadline_s=clock() + time_limit_s, clock=clock,
        simulator=simulator,
    )  # fmt: skip
    best = search.run(listed)
    notes = _notes(found, weights, llm)
    if best is None:
        notes.append(_why_none(screened, load, slo))
        return _empty(model, slo, len(screened), len(listed), notes)
    return _answer(llm, search, best, len(screened), len(listed), top, notes)


def usual_weights(model: str, llm: LlmSpec) -> tuple[str, ...]:
    """Formats that a model is served in: its published one and, where that is bf16, fp8.

    Mixtures are quantised to fp8 in blocks, as their makers do it.
    """
    native = native_weights(model)
    if native != "bf16":
        return (native,)
    return ("bf16", "fp8_block" if llm.is_moe else "fp8")


def load_of(rows: RequestRows) -> Load:
    """Means of a workload; of its prompts, what an endless cache would hold is taken out."""
    found = ideal_hit_tokens(rows)
    prompt = float(rows.prompt.mean())
    shared = min(float(found.mean()), prompt - 1.0)
    rate = rows.rate_per_s or float(len(rows))
    rest = np.maximum(rows.prompt - found, 1)
    marks = np.percentile(rest, list(PERCENT.values()))
    at = {name: float(mark) for name, mark in zip(PERCENT, marks, strict=True)}
    return Load(rate, prompt - shared, shared, float(rows.output.mean()), at | {"mean": float(rest.mean())})


def ideal_hit_tokens(rows: RequestRows) -> IntArray:
    """(n,) prompt tokens that an endless prefix cache would find: every block but the first of its hash."""
    if not len(rows.block_hash):
        return np.zeros(len(rows), dtype=np.int64)
    counts = np.diff(rows.block_start)
    place = np.arange(len(rows.block_hash)) - np.repeat(rows.block_start[:-1], counts)
    inside = (place + 1) * rows.block_tokens <= np.repeat(rows.prompt, counts)
    _, first = np.unique(rows.block_hash, return_index=True)
    found = inside.copy()
    found[first] = False
    owner = np.repeat(np.arange(len(rows)), counts)
    return np.bincount(owner, weights=found, minlength=len(rows)).astype(np.int64) * rows.block_tokens


def _clusters(names: list[str], given: float | None) -> list[tuple[str, ClusterSpec, float | None]]:
    found = []
    for name in names:
        cluster = resolve_cluster(name)
        price = chip_price(cluster.chip.name)
        found.append((name, cluster, given if given is not None else price.usd_per_hour if price else None))
    unknown = [cluster.chip.name for _, cluster, price in found if price is None]
    if unknown and len(found) > 1:
        raise InputError(
            f"no price is known of {unknown[0]}, to compare clusters by: give usd_per_chip_hour",
            field="cluster",
        )
    return found


def _screened(
    llm: LlmSpec, found: list[tuple[str, ClusterSpec, float | None]], load: Load, slo: Slo, rows: RequestRows,
    engines: tuple[str, ...], weights: tuple[str, ...], caches: tuple[str, ...], kinds: tuple[str, ...],
) -> tuple[list[Screened], list[Candidate]]:  # fmt: skip
    for engine in engines:
        serving_calibration().profile(engine)
    longest = int((rows.prompt + rows.output).max())
    screened: list[Screened] = []
    for place, (_, cluster, _) in enumerate(found):
        links = serving_links(cluster)
        choices = engine_choices(
            llm, cluster, place, engines=engines, weights=weights, caches=caches, longest=longest
        )
        screened += [screen(llm, cluster, links, choice, load) for choice in choices]
    if not screened:
        shown = ", ".join(cluster.name for _, cluster, _ in found)
        raise InputError(
            f"does not fit on {shown} with {' or '.join(weights)} weights and two requests of {longest} "
            "tokens",
            field="MODEL",
            value=llm.name,
        )
    listed = candidates(
        screened, load, slo, [price for _, _, price in found], [cluster.num_chips for _, cluster, _ in found],
        aggregated="aggregated" in kinds, disaggregated="disaggregated" in kinds,
    )  # fmt: skip
    return screened, listed


def _answer(
    llm: LlmSpec, search: Search, best: Trial, screened: int, listed: int, top: int,
    notes: list[str],
) -> ServingPlan:  # fmt: skip
    _, cluster, price = search.clusters[best.cluster]
    longest = int((search.rows.prompt + search.rows.output).max())
    built = build_deployment(best.spec, cluster=cluster, max_context=longest)
    final = simulate_serving(
        built, search.rows, slo=search.slo, usd_per_chip_hour=price, simulator=search.simulator
    ).result
    started = launches(
        best.spec, f"/models/{llm.name}", longest, cluster.server.num_chips, native_weights(search.model)
    )
    grown = {} if search.over else growth(search, best)
    return ServingPlan(
        model=llm.name,
        slo=search.slo.show(),
        meets_slo=best.meets,
        surely_meets_slo=final.latency.meets_slo and all(bound.surely_met for bound in final.latency.bounds),
        best=option_of(best),
        options=options_of(search.trials, top),
        front=front_of(search.trials),
        bottleneck=bottleneck(built, final),
        next_constraint=next_constraint(best, cluster, grown),
        growth=grown,
        deployment=to_yaml(best.spec),
        launch=started,
        manifest=manifest(best.spec, cluster, started),
        result=final,
        priced=price is not None,
        screened=screened,
        candidates=listed,
        simulated=len(search.trials),
        notes=tuple(notes),
    )


def _notes(
    found: list[tuple[str, ClusterSpec, float | None]], weights: Sequence[str], llm: LlmSpec
) -> list[str]:
    notes = []
    if any(one not in ("bf16", "fp16") for one in weights):
        notes.append(
            "narrower weights and caches are taken where they help: what they do to answers is not predicted"
        )
    for _, cluster, price in found:
        if price is None:
            notes.append(f"no price is known of {cluster.chip.name}: deployments are compared by chips")
    return notes + [f"not priced: {part}" for part in llm.left_out]


def _why_none(screened: list[Screened], load: Load, slo: Slo) -> str:
    first = min(float(one.ttft_s.min()) for one in screened)
    each = min(float(one.tpot_s.min()) for one in screened)
    return (
        f"no engine of {len(screened)} can: alone, a request of {load.prompt + load.cached:.0f} + "
        f"{load.output:.0f} tokens takes at least {1e3 * first:.0f} ms to the first token and "
        f"{1e3 * each:.1f} ms a token, or {load.rate_per_s:.2f}/s need more chips than there are; "
        f"asked: {slo.show()}"
    )


def _empty(model: str, slo: Slo, screened: int, listed: int, notes: list[str]) -> ServingPlan:
    return ServingPlan(
        model=model, slo=slo.show(), meets_slo=False, surely_meets_slo=False, best=None, options=(), front=(),
        bottleneck="", next_constraint=notes[-1], growth={}, deployment="", launch=(), manifest="",
        result=None, priced=False, screened=screened, candidates=listed, simulated=0, notes=tuple(notes),
    )  # fmt: skip
