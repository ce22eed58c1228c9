"""The page of `groundplane plan serve --html`: the deployment found, what else was tried, how to start it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from groundplane.cli.plan_serve_search import option_words
from groundplane.cli.simulate_serving import seconds
from groundplane.report.page import Chart, Page, Section, Table, Text

if TYPE_CHECKING:
    from groundplane.design.deployment_plan import ServingPlan


def plan_page(plan: ServingPlan) -> Page:
    """The whole page."""
    if plan.best is None or plan.result is None:
        return Page(f"Serving {plan.model}", f"No deployment meets {plan.slo}.", [
            Section("Why", [Text("\n\n".join(plan.notes))]),
        ])  # fmt: skip
    verdict = "meets" if plan.meets_slo else "comes nearest to"
    best = plan.best
    lead = f"{'; '.join(best.pools)} on {best.cluster} {verdict} {plan.slo}: {option_words(best)}."
    bounds = [
        [bound.name, seconds(bound.limit_s), seconds(bound.value.value),
         f"{seconds(bound.value.low)} to {seconds(bound.value.high)}", "met" if bound.met else "missed"]
        for bound in plan.result.latency.bounds
    ]  # fmt: skip
    options = [
        ["; ".join(option.pools), f"{option.weights}/{option.cache}", option.routing, str(option.chips),
         "-" if option.usd_per_hour is None else f"{option.usd_per_hour:.2f}", seconds(option.ttft_p99_s),
         seconds(option.tpot_p99_s), "yes" if option.meets_slo else "no"]
        for option in plan.options
    ]  # fmt: skip
    started = "\n\n".join(
        f"# {launch.replicas} x {launch.pool}\n{launch.show('vllm')}\n{launch.show('sglang')}"
        for launch in plan.launch
    )
    sections = [
        Section("Objectives", [
            Table(["objective", "limit", "predicted", "8 of 10 cases", ""], bounds),
            Text(f"Bottleneck: {plan.bottleneck}.\n\nNext constraint: {plan.next_constraint}."),
        ]),
        Section("Price and latency", [_front(plan)]),
        Section("Options", [
            Table(["pools", "weights/cache", "routing", "chips", "USD/h", "first token p99", "each token p99",
                   "meets"], options),
        ]),
        Section("Deployment file", [Text(plan.deployment, preformatted=True)]),
        Section("Start it", [Text(started, preformatted=True)]),
        Section("Kubernetes", [Text(plan.manifest, preformatted=True)]),
        Section("What was assumed", [
            Text("\n".join((*plan.notes, *plan.result.assumptions)), preformatted=True),
        ]),
    ]  # fmt: skip
    return Page(f"Serving {plan.model}", lead, sections)


def _front(plan: ServingPlan) -> Chart:
    traces: list[dict[str, Any]] = []
    for name, meets in (("meets the SLO", True), ("misses it", False)):
        points = [point for point in plan.front if point.meets_slo == meets]
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": name,
                "x": [point.usd_per_hour for point in points], "y": [point.tpot_p99_s for point in points],
                "text": [
                    f"{'; '.join(point.pools)}, first token {seconds(point.ttft_p99_s)}" for point in points
                ],
            }
        )  # fmt: skip
    unit = "USD an hour" if plan.priced else "chips"
    return Chart(traces, {"xaxis": {"title": unit}, "yaxis": {"title": "seconds a token, p99"}})
