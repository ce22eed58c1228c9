"""The page of `groundplane simulate serving --html`: what came of a simulated deployment, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from groundplane.cli.simulate_serving import LATENCIES, cost_lines, seconds
from groundplane.report.page import Chart, Page, Section, Table, Text
from groundplane.sim.serving.results import metric_s

if TYPE_CHECKING:
    from groundplane.sim.serving.results_run import ServingRun

MAX_POINTS = 600
"""Points of a drawn curve: more is not seen."""


def serving_page(run: ServingRun) -> Page:
    """The whole page."""
    result = run.result
    latency, work = result.latency, result.workload
    lead = (
        f"{work.requests:,} requests at {work.rate_per_s:.3g}/s on {result.chips} chips of {result.cluster}: "
        f"first token {seconds(latency.ttft.p99.value)} and {seconds(latency.tpot.p99.value)} a token at the "
        "99th percentile."
    )
    sections = [
        Section("Latencies", [_latency_table(run), _curves(run)]),
        Section("Where the time goes", [_shares(run)]),
        Section("Over time", _over_time(run)),
        Section("Pools", [_pools(run)]),
        Section("Cost and energy", [Text("\n".join(cost_lines(result)), preformatted=True)]),
        Section("What was assumed", [Text("\n".join(result.assumptions), preformatted=True)]),
    ]
    if latency.bounds:
        sections.insert(1, Section("Objectives", [_bounds(run)]))
    return Page(f"Serving: {result.deployment}", lead, sections)


def _latency_table(run: ServingRun) -> Table:
    names = ("mean", "p50", "p90", "p95", "p99", "p999")
    rows = []
    for name, words in LATENCIES.items():
        distribution = getattr(run.result.latency, name)
        tail = distribution.p99
        cells = [seconds(getattr(distribution, one).value) for one in names]
        rows.append([words, *cells, f"{seconds(tail.low)} to {seconds(tail.high)}"])
    return Table(["", "mean", "p50", "p90", "p95", "p99", "p99.9", "8 of 10 cases at p99"], rows)


def _curves(run: ServingRun) -> Chart:
    traces: list[dict[str, Any]] = []
    for name in ("ttft", "tpot", "e2e"):
        values = metric_s(run.requests, run.outcome, name)
        values = np.sort(values[~np.isnan(values)])
        if not len(values):
            continue
        places = np.unique(np.linspace(0, len(values) - 1, MAX_POINTS).astype(int))
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": LATENCIES[name], "x": values[places].tolist(),
                "y": (100.0 * (places + 1) / len(values)).tolist(),
            }
        )  # fmt: skip
    layout = {"xaxis": {"title": "seconds", "type": "log"}, "yaxis": {"title": "% of requests within"}}
    return Chart(traces, layout)


def _bounds(run: ServingRun) -> Table:
    rows = []
    for bound in run.result.latency.bounds:
        verdict = "met" if bound.surely_met else "met as predicted" if bound.met else "missed"
        value = bound.value
        rows.append(
            [
                bound.name, seconds(bound.limit_s), seconds(value.value),
                f"{seconds(value.low)} to {seconds(value.high)}", verdict,
            ]
        )  # fmt: skip
    good = run.result.latency.goodput
    if good is not None:
        share = good.share
        rows.append(
            [
                "goodput", "-", f"{share.value:.1%} of requests", f"{share.low:.1%} to {share.high:.1%}",
                f"{good.requests_per_s.value:.3g}/s",
            ]
        )  # fmt: skip
    return Table(["objective", "limit", "predicted", "8 of 10 cases", ""], rows)


def _shares(run: ServingRun) -> Chart:
    shares = run.result.latency.shares
    traces = [
        {"type": "bar", "orientation": "h", "name": name, "x": [100.0 * share.value], "y": ["requests"]}
        for name, share in shares.items()
    ]
    layout = {"barmode": "stack", "height": 200, "xaxis": {"title": "% of the time of all requests"}}
    return Chart(traces, layout)


def _over_time(run: ServingRun) -> list[Text | Table | Chart]:
    samples = run.outcome.samples
    times = (samples.time_ns * 1e-9).tolist()
    requests = [
        {"type": "scatter", "mode": "lines", "name": name, "x": times, "y": values.sum(axis=1).tolist()}
        for name, values in (("running", samples.running), ("waiting", samples.waiting))
    ]
    blocks = [
        {"type": "scatter", "mode": "lines", "name": name, "x": times, "y": values.sum(axis=1).tolist()}
        for name, values in (("held", samples.used_blocks), ("cached", samples.cached_blocks))
    ]
    found: list[Text | Table | Chart] = []
    found.append(Chart(requests, {"xaxis": {"title": "seconds"}, "yaxis": {"title": "requests"}}))
    found.append(Chart(blocks, {"xaxis": {"title": "seconds"}, "yaxis": {"title": "blocks of cache"}}))
    return found


def _pools(run: ServingRun) -> Table:
    rows = [
        [
            pool.name, pool.role, pool.model, f"{pool.replicas_mean:.3g}", str(pool.chips_per_replica),
            f"{pool.busy_share.value:.1%}", f"{pool.batch_mean:.3g}", f"{pool.kv_mean_share.value:.1%}",
            f"{pool.kv_peak_share.value:.1%}", f"{pool.preemptions:,}", f"{pool.starts:,}",
        ]
        for pool in run.result.pools
    ]  # fmt: skip
    columns = ["pool", "role", "model", "replicas", "chips each", "busy", "tokens an iteration",
               "cache, mean", "cache, peak", "preemptions", "starts"]  # fmt: skip
    return Table(columns, rows)
