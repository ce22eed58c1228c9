"""`groundplane plan serve`: latencies and throughput of one serving engine under a steady load."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from groundplane.perfmodel.serving_estimate import ServingEstimate


@click.command(
    "serve",
    epilog="Example: groundplane plan serve llama-3.1-70b --cluster h100x8 --isl 1024 --osl 512 "
    "--concurrency 32 --weights fp8",
)
@click.argument("model_name", metavar="MODEL")
@click.option("--cluster", "cluster_name", required=True, help="Cluster file, or a preset such as h100x8.")
@click.option("--isl", type=float, required=True, help="Mean prompt tokens of a request.")
@click.option("--osl", type=float, required=True, help="Mean output tokens of a request.")
@click.option("--concurrency", type=float, required=True, help="Requests always under way.")
@click.option("--engine", default="vllm", show_default=True, help="vllm, sglang, trtllm or trtllm-1.0.")
@click.option("--weights", default="bf16", show_default=True, help="Checkpoint: bf16, fp8, fp4, ...")
@click.option("--cache", default="bf16", show_default=True, help="Format of the key-value cache.")
@click.option(
    "--tp", type=int, help="Tensor parallel degree; without it, the fewest chips that hold the load."
)
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--attention-dp", type=int, default=1, show_default=True, help="Data-parallel attention ranks.")
@click.option("--ep", type=int, help="Expert parallel degree; the rest of the chips split experts.")
@click.option("--drafts", type=float, default=0.0, help="Drafts of speculative decoding, 0 without.")
@click.option("--json", "as_json", is_flag=True, help="Print the estimate as JSON.")
def serve_command(
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
