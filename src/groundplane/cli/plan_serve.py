"""`groundplane plan serve`: the cheapest deployment that meets an SLO, or one engine under a steady load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from groundplane.cli.simulate_serving import workload_options

if TYPE_CHECKING:
    from groundplane.perfmodel.serving_estimate import ServingEstimate


@click.command(
    "serve",
    epilog="Examples: groundplane plan serve llama-3.1-70b --cluster h200x64 --trace requests.csv "
    "--slo ttft_p99=500ms,tpot_p99=50ms;  groundplane plan serve deepseek-v3 --cluster h200x64 --rate 20 "
    "--isl 2000 --osl 400 --slo ttft_p99=2s,tpot_p99=50ms;  groundplane plan serve llama-3.1-70b "
    "--cluster h100x8 --isl 1024 --osl 512 --concurrency 32 --weights fp8",
)
@click.argument("model_name", metavar="MODEL")
@click.option(
    "--cluster",
    "cluster_names",
    required=True,
    multiple=True,
    help="Cluster file, or a preset such as h100x8; several are compared by price.",
)
@click.option(
    "--slo", default="", metavar="ttft_p99=500ms,...", help="Search for the cheapest that meets it."
)
@click.option("--rate", type=float, help="Requests a second (or of a trace of lengths alone).")
@click.option("--isl", type=float, help="Mean prompt tokens of a request.")
@click.option("--osl", type=float, help="Mean output tokens of a request.")
@click.option("--burstiness", type=float, default=1.0, show_default=True, help="Gaps' cv; 1 is Poisson.")
@click.option("--length-cv", type=float, default=0.5, show_default=True, help="Spread of lengths drawn.")
@workload_options
@click.option("--concurrency", type=float, help="Requests always under way: estimates one engine.")
@click.option(
    "--engine", default="vllm", show_default=True, help="vllm, sglang, trtllm, trtllm-1.0; a list to search."
)
@click.option("--weights", help="Checkpoint: bf16, fp8, fp8_block, fp4, ...; a list to search.")
@click.option("--cache", help="Format of the key-value cache; a list to search (bf16,fp8).")
@click.option(
    "--kind", default="aggregated,disaggregated", show_default=True, help="What the search may choose."
)
@click.option("--sure", is_flag=True, help="Hold the upper ends of intervals against the SLO.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="How many options to name.")
@click.option("--time-limit", type=click.FloatRange(0.0), help="Seconds after which nothing is simulated.")
@click.option("--usd-per-chip-hour", type=float, help="Price of a chip, instead of the catalogue's.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page of the search.")
@click.option("--deployment-out", type=click.Path(path_type=Path), help="Write the deployment file.")
@click.option("--manifest-out", type=click.Path(path_type=Path), help="Write the Kubernetes manifest.")
@click.option(
    "--tp", type=int, help="Tensor parallel degree; without it, the fewest chips that hold the load."
)
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--attention-dp", type=int, default=1, show_default=True, help="Data-parallel attention ranks.")
@click.option("--ep", type=int, help="Expert parallel degree; the rest of the chips split experts.")
@click.option("--drafts", type=float, default=0.0, help="Drafts of speculative decoding, 0 without.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, numbers in base units.")
def serve_command(
    model_name: str, cluster_names: tuple[str, ...], slo: str, rate: float | None, isl: float | None,
    osl: float | None, burstiness: float, length_cv: float, trace: str | None, columns: str,
    requests: int | None, scale_rate: float | None, scale_factor: float | None, scale_how: str,
    seed: int | None, concurrency: float | None, engine: str, weights: str | None, cache: str | None,
    kind: str, sure: bool, top: int, time_limit: float | None, usd_per_chip_hour: float | None,
    html: Path | None, deployment_out: Path | None, manifest_out: Path | None, tp: int | None, pp: int,
    attention_dp: int, ep: int | None, drafts: float, as_json: bool,
) -> None:  # fmt: skip
    """Find the cheapest deployment that meets an SLO (--slo), or predict one engine (--concurrency)."""
    from groundplane.spec.errors import InputError

    if slo or trace is not None or rate is not None:
        from groundplane.cli.plan_serve_search import Asked, drawn_or_read, search_command

        if not slo:
            raise InputError("is required: what must hold, such as ttft_p99=500ms", field="--slo")
        rows = drawn_or_read(
            trace, columns=columns, requests=requests, rate=rate, isl=isl, osl=osl, burstiness=burstiness,
            length_cv=length_cv, scale_rate=scale_rate, scale_factor=scale_factor, scale_how=scale_how,
            seed=seed,
        )  # fmt: skip
        asked = Asked(engine, weights, cache, kind, sure, top, usd_per_chip_hour, time_limit)
        search_command(
            model_name, cluster_names, rows, slo, asked, as_json=as_json, html=html,
            deployment_out=deployment_out, manifest_out=manifest_out,
        )  # fmt: skip
        return
    for name, value in (("--isl", isl), ("--osl", osl), ("--concurrency", concurrency)):
        if value is None:
            raise InputError("is required, or --slo with --trace or --rate for a search", field=name)
    if len(cluster_names) > 1:
        raise InputError("one is estimated; several are for a search (--slo)", field="--cluster")
    estimate_command(
        model_name, cluster_names[0], float(isl or 0), float(osl or 0), float(concurrency or 0), engine,
        weights or "bf16", cache or "bf16", tp, pp, attention_dp, ep, drafts, as_json,
    )  # fmt: skip


def estimate_command(
    model_name: str, cluster_name: str, isl: float, osl: float, concurrency: float, engine: str, weights: str,
    cache: str, tp: int | None, pp: int, attention_dp: int, ep: int | None, drafts: float, as_json: bool,
) -> None:  # fmt: skip
    """Predict one serving engine in steady state: latencies with intervals, throughput, bottleneck."""
    import msgspec

    from groundplane.catalog.resolve import resolve_cluster
    from groundplane.perfmodel.serving_estimate import ServingLoad, serving_estimate, smallest_layout
    from groundplane.perfmodel.serving_layout import ServingLayout
    from groundplane.perfmodel.serving_models import serving_llm

    model = serving_llm(model_name)
    cluster = resolve_cluster(cluster_name)
    load = ServingLoad(isl, osl, concurrency)
    if tp is None and attention_dp == 1 and pp == 1 and ep is None:
        layout = smallest_layout(model, cluster, load, weights, cache)
    else:
        ranks = (tp or 1) * attention_dp
        degree = (ep or (ranks if attention_dp > 1 else 1)) if model.is_moe else 1
        rest = max(ranks // max(degree, 1), 1) if model.is_moe else 1
        layout = ServingLayout(tp or 1, pp, attention_dp, rest, degree)
    estimate = serving_estimate(
        model, cluster, layout, load, engine=engine, weights=weights, cache=cache, drafts=drafts
    )
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(estimate), indent=1))
        return
    for line in lines(estimate, cluster.chip.name):
        click.echo(line)


def lines(estimate: ServingEstimate, chip: str) -> list[str]:
    """The estimate for people."""
    from groundplane.spec import units

    show = units.show_duration
    layout = estimate.layout
    text = [
        f"{estimate.model} by {estimate.engine} on {layout.num_chips} x {chip} "
        f"(tp {layout.tp}, pp {layout.pp}, attention dp {layout.attention_dp}, "
        f"experts tp {layout.expert_tp} x ep {layout.expert_ep})",
        f"first token     {show(estimate.ttft_s)} ({show(estimate.ttft_low_s)} to "
        f"{show(estimate.ttft_high_s)} in 8 of 10 cases)",
        f"each token      {show(estimate.tpot_s)} ({show(estimate.tpot_low_s)} to "
        f"{show(estimate.tpot_high_s)})",
        f"output          {estimate.output_tokens_per_s:,.0f} tokens/s, "
        f"{estimate.output_tokens_per_s_per_chip:,.0f} a chip",
        f"running         {estimate.running:.0f} requests; the cache of a rank holds "
        f"{estimate.capacity.num_tokens:,} tokens in {estimate.capacity.num_blocks:,} blocks",
        f"waits           {show(estimate.queue_s)} behind prompts, "
        f"{show(estimate.capacity_wait_s)} for the cache",
        f"bottleneck      {estimate.bottleneck.replace('_', ' ')}",
        "",
        "one iteration:",
    ]
    whole = sum(estimate.iteration_s.values())
    text += [
        f"  {name.replace('_', ' '):<30}{show(seconds):>9}  {100 * seconds / whole:5.1f} %"
        for name, seconds in estimate.iteration_s.items()
        if seconds > 0
    ]
    text += ["", f"evidence: {estimate.evidence.grade}, {estimate.evidence.num_points} runs; assumed:"]
    return text + [f"  - {assumption}" for assumption in estimate.assumptions]
