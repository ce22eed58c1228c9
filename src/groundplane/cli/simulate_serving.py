"""`groundplane simulate serving`: a deployment under a request trace, on simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from groundplane.sim.serving.results import Distribution, Estimate
    from groundplane.sim.serving.results_cost import PoolResult
    from groundplane.sim.serving.results_run import ServingResult
    from groundplane.sim.serving.workload_rows import RequestRows


def workload_options(command: Any) -> Any:
    """The options that say which requests come."""
    options = [
        click.option(
            "--trace", "trace", metavar="FILE|FOLDER",
            help="Requests: a CSV or JSONL trace, a folder of ServeGen clients, or a workload file.",
        ),
        click.option(
            "--columns", default="", metavar="arrival=NAME,...",
            help="Columns of a trace: arrival, prompt, output, blocks, session, priority, model.",
        ),
        click.option("--requests", type=click.IntRange(1), help="The first so many requests."),
        click.option("--scale-rate", type=float, help="Bring the trace to so many requests a second."),
        click.option("--scale-factor", type=float, help="Bring the trace to so many times its rate."),
        click.option(
            "--scale-how", type=click.Choice(["compress", "layers"]), default="compress", show_default=True,
            help="Divide times, or add copies of requests: both keep the burstiness.",
        ),
        click.option("--seed", type=click.IntRange(0), help="Picks what is drawn."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def read_workload(
    trace: str, *, columns: str, requests: int | None, rate: float | None, scale_rate: float | None,
    scale_factor: float | None, scale_how: str, seed: int | None,
) -> RequestRows:  # fmt: skip
    """The requests that the options name.

    Raises:
        InputError: as `load_workload`; both scales given.
    """
    import msgspec

    from groundplane.sim.serving.workload import load_workload
    from groundplane.sim.serving.workload_columns import columns_from_text
    from groundplane.spec.errors import InputError
    from groundplane.spec.request_trace import ScaleSpec

    scale = None
    for name, value in (("--scale-rate", scale_rate), ("--scale-factor", scale_factor), ("--rate", rate)):
        if value is not None and not 0 < value < 1e9:
            raise InputError("must be more than 0 and less than 1e9", field=name, value=value)
    if scale_rate is not None or scale_factor is not None:
        if scale_rate is not None and scale_factor is not None:
            raise InputError("give one of --scale-rate and --scale-factor", field="--scale-rate")
        scale = msgspec.convert({"rate": scale_rate, "factor": scale_factor, "how": scale_how}, ScaleSpec)
    return load_workload(
        trace,
        columns=columns_from_text(columns) if columns else None,
        scale=scale,
        requests=requests,
        rate_per_s=rate,
        seed=seed,
    )


@click.command(
    "serving",
    epilog="Examples: groundplane simulate serving chat.yaml --trace requests.csv --slo "
    "ttft_p99=500ms,tpot_p99=50ms;  groundplane simulate serving chat.yaml --trace requests.jsonl "
    "--scale-factor 2 --html report.html --csv requests.csv --json",
)
@click.argument("deployment", metavar="DEPLOYMENT.yaml")
@workload_options
@click.option("--rate", type=float, help="Requests a second, for traces of lengths alone and for clients.")
@click.option("--slo", default="", metavar="ttft_p99=500ms,...", help="Bounds, for goodput.")
@click.option("--intervals/--no-intervals", default=True, help="Simulate twice more, fast and slow.")
@click.option("--usd-per-chip-hour", type=float, help="Price of a chip, instead of the catalogue's.")
@click.option(
    "--tool", metavar="vllm|aiperf|llmperf", help="Print the figures by a benchmark tool's definitions."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, times in seconds.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page.")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Write one line a request.")
@click.option("--parquet", type=click.Path(path_type=Path), help="Write the same as Parquet.")
@click.option("--trace-out", type=click.Path(path_type=Path), help="Write a trace of replicas for Perfetto.")
def serving_command(
    deployment: str, trace: str | None, columns: str, requests: int | None, scale_rate: float | None,
    scale_factor: float | None, scale_how: str, seed: int | None, rate: float | None, slo: str,
    intervals: bool, usd_per_chip_hour: float | None, tool: str | None, as_json: bool, html: Path | None,
    csv_path: Path | None, parquet: Path | None, trace_out: Path | None,
) -> None:  # fmt: skip
    """Predict latencies, goodput and price of a deployment under real traffic, request by request."""
    import msgspec

    from groundplane.sim.serving.results_files import write_csv, write_parquet, write_trace
    from groundplane.sim.serving.results_run import simulate_serving
    from groundplane.sim.serving.results_tools import TOOLS, tool_report
    from groundplane.spec.errors import InputError, unknown_name
    from groundplane.spec.slo import parse_slo

    if trace is None:
        raise InputError("is required: the requests", field="--trace")
    if tool is not None and tool not in TOOLS:
        raise unknown_name("benchmark tool", tool, TOOLS, field="--tool")
    for path in (html, csv_path, parquet, trace_out):
        if path is not None and not path.resolve().parent.is_dir():
            raise InputError("cannot be written: no such folder", file=str(path))
    bounds = parse_slo(slo) if slo else None
    rows = read_workload(
        trace, columns=columns, requests=requests, rate=rate, scale_rate=scale_rate,
        scale_factor=scale_factor, scale_how=scale_how, seed=seed,
    )  # fmt: skip
    run = simulate_serving(
        deployment, rows, slo=bounds, intervals=intervals, log=trace_out is not None,
        usd_per_chip_hour=usd_per_chip_hour,
    )  # fmt: skip
    wrote = []
    for path, write in ((csv_path, write_csv), (parquet, write_parquet), (trace_out, write_trace)):
        if path is not None:
            write(run, path)
            wrote.append(f"Wrote {path}.")
    if html is not None:
        from groundplane.cli.simulate_serving_page import serving_page

        serving_page(run).write(html)
        wrote.append(f"Wrote {html}.")
    report = None if tool is None else tool_report(run, tool)
    if as_json:
        shown = msgspec.to_builtins(run.result) | ({} if report is None else {"tool": {tool: report}})
        click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=1).decode())
        return
    if report is not None:
        for name, value in report.items():
            click.echo(f"{name:<44}{value:>14.3f}")
        return
    for line in lines(run.result, run.slo.show()):
        click.echo(line)
    for line in wrote:
        click.echo(line)


def lines(result: ServingResult, slo: str) -> list[str]:
    """The result for people."""
    work, latency = result.workload, result.latency
    text = [
        f"{result.deployment} on {result.cluster}: {result.chips} chips; {work.requests:,} requests in "
        f"{seconds(work.duration_s)}, {work.rate_per_s:.3g}/s, gaps' cv {work.gap_cv:.2g}, "
        f"{work.prompt_mean:,.0f} + {work.output_mean:,.0f} tokens",
        *(f"note: {note}" for note in work.notes),
        "",
        f"{'':<18}{'mean':>12}{'p50':>12}{'p90':>12}{'p99':>12}{'p99.9':>12}   8 of 10 cases at p99",
    ]
    for name, words in LATENCIES.items():
        text.append(_latency_line(words, getattr(latency, name)))
    lost = latency.requests - latency.ended
    ended = f"{latency.ended:,} ended" + (
        f"; {latency.refused_long:,} too long, {latency.refused_full:,} refused, {latency.failed:,} failed"
        if lost
        else ""
    )
    text += [
        "",
        f"requests          {ended}; {latency.requests_per_s.value:.3g}/s",
        f"tokens            {latency.output_tokens_per_s.value:,.0f}/s out, "
        f"{latency.prompt_tokens_per_s.value:,.0f}/s in, "
        f"{latency.prefix_hit_share.value:.0%} of prompts cached",
        "time goes to      "
        + ", ".join(
            f"{name} {share.value:.0%}" for name, share in latency.shares.items() if share.value >= 0.005
        ),
    ]
    if latency.goodput is not None:
        good = latency.goodput
        text.append(
            f"goodput           {good.requests_per_s.value:.3g}/s, {good.share.value:.1%} of requests "
            f"({good.share.low:.1%} to {good.share.high:.1%}) within {slo}"
        )
        text += [
            f"  {bound.name:<16}{seconds(bound.value.value):>8} of {seconds(bound.limit_s)}: "
            + ("met" if bound.surely_met else "met as predicted, not surely" if bound.met else "missed")
            for bound in latency.bounds
        ]
    text += [_pool_line(pool) for pool in result.pools]
    text += cost_lines(result)
    text += ["", f"evidence: {result.evidence.grade}; assumed:"]
    return text + [f"  - {assumption}" for assumption in result.assumptions]


def _pool_line(pool: PoolResult) -> str:
    return (
        f"{pool.name:<18}{pool.replicas_mean:.3g} replicas of {pool.chips_per_replica} chips, busy "
        f"{pool.busy_share.value:.0%}, {pool.batch_mean:.3g} tokens an iteration, cache "
        f"{pool.kv_mean_share.value:.0%} (peak {pool.kv_peak_share.value:.0%}), "
        f"{pool.preemptions:,} preemptions"
    )


LATENCIES = {
    "ttft": "first token",
    "tpot": "each token",
    "itl": "between tokens",
    "e2e": "end to end",
    "queue": "queue",
}
"""Words for each latency."""


def cost_lines(result: ServingResult) -> list[str]:
    """Price and energy, where they are known."""
    cost = result.cost
    text = []
    if cost.usd is None:
        text.append(f"cost              {cost.chip_hours:.3g} chip hours; {cost.price_source}")
    else:
        each = _per_million(cost.usd_per_million_output_tokens)
        text += [
            f"cost              {cost.usd_per_hour:.2f} USD/h{each}",
            f"price             {cost.usd_per_chip_hour:.2f} USD a chip and hour ({cost.price_source})",
        ]
    each_j = cost.energy_j_per_output_token
    if cost.energy_j is not None and each_j is not None:
        text.append(
            f"energy            {cost.energy_j.value / 3.6e6:.3g} kWh, "
            f"{each_j.value:.3g} J a token ({each_j.low:.3g} to {each_j.high:.3g}; "
            "chips' design power x time busy)"
        )
    return text


def seconds(value: float) -> str:
    """A duration for reading; "-" where there is none."""
    from groundplane.spec.units import show_duration

    return "-" if value != value else show_duration(value)  # noqa: PLR0124 - NaN alone differs from itself


def _per_million(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    return f", {estimate.value:.3g} USD a million output tokens ({estimate.low:.3g} to {estimate.high:.3g})"


def _latency_line(words: str, distribution: Distribution) -> str:
    names = ("mean", "p50", "p90", "p99", "p999")
    cells = "".join(f"{seconds(getattr(distribution, name).value):>12}" for name in names)
    tail = distribution.p99
    return f"{words:<18}{cells}   {seconds(tail.low)} to {seconds(tail.high)}"
