"""The search behind `groundplane plan serve --slo`: its workload, its answer in lines, and its files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from groundplane.cli.simulate_serving import read_workload, seconds

if TYPE_CHECKING:
    from groundplane.design.deployment_answer import Option
    from groundplane.design.deployment_plan import ServingPlan
    from groundplane.sim.serving.workload_rows import RequestRows

LEAST_DRAWN = 1_000
MOST_DRAWN = 20_000
"""Requests drawn for a load given by its rate: enough for a 99th percentile, no more than a search bears."""

DRAWN_S = 120.0
ANSWERS = 8.0
TOKEN_S = 0.03
"""They span two minutes, or so many answers of `TOKEN_S` a token: a service fills before it is judged."""


MOST_MISSED = 5
"""Points of the front that miss the SLO and are shown all the same, the dearest."""


@dataclass(frozen=True)
class Asked:
    """What the search may choose from, as it was written."""

    engine: str
    weights: str | None
    cache: str | None
    kind: str
    sure: bool
    top: int
    usd_per_chip_hour: float | None
    time_limit_s: float | None = None


def drawn_or_read(
    trace: str | None, *, columns: str, requests: int | None, rate: float | None, isl: float | None,
    osl: float | None, burstiness: float, length_cv: float, scale_rate: float | None,
    scale_factor: float | None, scale_how: str, seed: int | None,
) -> RequestRows:  # fmt: skip
    """The requests of a trace, or drawn at a rate with mean lengths.

    Raises:
        InputError: neither trace nor rate and lengths; a trace and lengths.
    """
    import msgspec

    from groundplane.sim.serving.workload import requests_of
    from groundplane.spec.errors import InputError
    from groundplane.spec.request_trace import WorkloadSpec

    if trace is not None:
        if isl is not None or osl is not None:
            raise InputError("a trace has its own lengths", field="--isl" if isl is not None else "--osl")
        return read_workload(
            trace, columns=columns, requests=requests, rate=rate, scale_rate=scale_rate,
            scale_factor=scale_factor, scale_how=scale_how, seed=seed,
        )  # fmt: skip
    for name, value in (("--rate", rate), ("--isl", isl), ("--osl", osl)):
        if value is None:
            raise InputError("is required, or --trace", field=name)
        if not 0 < value < 1e9:
            raise InputError("must be more than 0 and less than 1e9", field=name, value=value)
    span_s = max(DRAWN_S, ANSWERS * (osl or 1.0) * TOKEN_S)
    count = requests or int(min(max((rate or 1.0) * span_s, LEAST_DRAWN), MOST_DRAWN))
    length = {"shape": "lognormal", "cv": length_cv}
    try:
        spec = msgspec.convert(
            {
                "kind": "workload", "arrivals": {"rate": rate, "burstiness": burstiness},
                "prompt": length | {"mean": isl}, "output": length | {"mean": osl}, "requests": count,
                "seed": seed or 0,
            },
            WorkloadSpec,
        )  # fmt: skip
    except msgspec.ValidationError as error:
        raise InputError(str(error).lower(), field="--rate") from None
    rows = requests_of(spec)
    rows.notes.append(
        f"{count:,} requests drawn: gaps' cv {burstiness:g}, lengths log-normal with cv {length_cv:g}"
    )
    return rows


def search_command(
    model: str, clusters: tuple[str, ...], rows: RequestRows, slo: str, asked: Asked, *, as_json: bool,
    html: Path | None, deployment_out: Path | None, manifest_out: Path | None,
) -> None:  # fmt: skip
    """Searches, prints, and writes what was asked for; exits with 1 where nothing meets the SLO."""
    import sys

    import msgspec

    from groundplane.design.deployment_plan import DEFAULT_CACHES, plan_serving
    from groundplane.spec.errors import InputError, unknown_name
    from groundplane.spec.slo import parse_slo

    bounds = parse_slo(slo)
    kinds = _words(asked.kind)
    for one in kinds:
        if one not in ("aggregated", "disaggregated"):
            raise unknown_name("kind of deployment", one, ("aggregated", "disaggregated"), field="--kind")
    for path in (html, deployment_out, manifest_out):
        if path is not None and not path.resolve().parent.is_dir():
            raise InputError("cannot be written: no such folder", file=str(path))
    plan = plan_serving(
        model,
        clusters,
        rows,
        bounds,
        engines=_words(asked.engine),
        weights=_words(asked.weights or ""),
        caches=_words(asked.cache) if asked.cache else DEFAULT_CACHES,
        kinds=kinds,
        usd_per_chip_hour=asked.usd_per_chip_hour,
        sure=asked.sure,
        top=asked.top,
        time_limit_s=math.inf if asked.time_limit_s is None else asked.time_limit_s,
    )
    wrote = []
    for path, text in ((deployment_out, plan.deployment), (manifest_out, plan.manifest)):
        if path is not None and text:
            _write(path, text)
            wrote.append(f"Wrote {path}.")
    if html is not None:
        from groundplane.cli.plan_serve_page import plan_page

        plan_page(plan).write(html)
        wrote.append(f"Wrote {html}.")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(plan), indent=1).decode())
    else:
        for line in [*lines(plan), *wrote]:
            click.echo(line)
    if not plan.meets_slo:
        sys.exit(1)


def lines(plan: ServingPlan) -> list[str]:
    """The answer for people."""
    text = [
        f"{plan.model} under {plan.slo}: {plan.screened:,} engines screened, {plan.candidates:,} candidates, "
        f"{plan.simulated:,} deployments simulated"
    ]
    if plan.best is None or plan.result is None:
        return [*text, "no deployment found", *(f"  - {note}" for note in plan.notes)]
    work = plan.result.workload
    verdict = "meets it" if plan.meets_slo else "the nearest, which MISSES it"
    sure = (
        ""
        if plan.surely_meets_slo or not plan.meets_slo
        else " as predicted, though not at the interval's end"
    )
    text += [
        f"workload          {work.requests:,} requests, {work.rate_per_s:.3g}/s, gaps' cv {work.gap_cv:.2g}, "
        f"{work.prompt_mean:,.0f} + {work.output_mean:,.0f} tokens",
        "",
        f"best              {verdict}{sure}: {'; '.join(plan.best.pools)}",
        f"                  {plan.best.engine} on {plan.best.cluster}, {plan.best.weights} weights, "
        f"{plan.best.cache} cache, routing {plan.best.routing.replace('_', ' ')}",
        f"                  {option_words(plan.best)}",
        f"bottleneck        {plan.bottleneck}",
        f"next constraint   {plan.next_constraint}",
    ]
    for bound in plan.result.latency.bounds:
        value = bound.value
        text.append(
            f"  {bound.name:<16}{seconds(value.value):>8} of {seconds(bound.limit_s)} "
            f"({seconds(value.low)} to {seconds(value.high)} in 8 of 10 cases)"
        )
    text += ["", "other options:"]
    text += [
        f"  {'; '.join(option.pools)}, {option.weights}/{option.cache}: {option_words(option)}"
        for option in plan.options[1:]
    ]
    text += ["", "front of price and latency (all of it with --json):"]
    shown = [point for point in plan.front if point.meets_slo]
    shown = [*[point for point in plan.front if not point.meets_slo][-MOST_MISSED:], *shown]
    unit = "USD/h" if plan.priced else "chips"
    text += [
        f"  {point.usd_per_hour:9.2f} {unit}  first token {seconds(point.ttft_p99_s):>8}  each "
        f"{seconds(point.tpot_p99_s):>8}  {'; '.join(point.pools)}"
        for point in sorted(shown, key=lambda point: point.usd_per_hour)
    ]
    text += ["", "start it (text to look through; tried on no engine here):"]
    for launch in plan.launch:
        text += [f"  {launch.replicas} x {launch.pool}:", f"    {launch.show('vllm')}"]
        text += [f"    {launch.show('sglang')}", *(f"    note: {note}" for note in launch.notes)]
    text += ["", f"evidence: {plan.result.evidence.grade}; notes:"]
    return text + [f"  - {note}" for note in (*work.notes, *plan.notes, *plan.result.assumptions)]


def option_words(option: Option) -> str:
    """Chips, price, latencies and goodput of an option."""
    price = f"{option.chips} chips"
    if option.usd_per_hour is not None:
        price += f", {option.usd_per_hour:.2f} USD/h"
    if option.usd_per_million_output_tokens is not None:
        price += f", {option.usd_per_million_output_tokens:.3g} USD a million output tokens"
    good = "" if option.goodput_share is None else f", {option.goodput_share:.1%} good"
    return (
        f"{price}; p99 first token {seconds(option.ttft_p99_s)}, each {seconds(option.tpot_p99_s)}{good}"
        + ("" if option.meets_slo else " (misses the SLO)")
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _write(path: Path, text: str) -> None:
    from groundplane.spec.errors import InputError

    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from None
