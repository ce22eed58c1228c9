"""The search over deployments: its space, its bound, its answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from groundplane.catalog.resolve import resolve_cluster
from groundplane.design.deployment_plan import ServingPlan, ideal_hit_tokens, load_of
from groundplane.design.deployment_screen import candidates, screen
from groundplane.design.deployment_search import sequences_for
from groundplane.design.deployment_space import engine_choices, layouts
from groundplane.perfmodel.serving_links import serving_links
from groundplane.perfmodel.serving_models import serving_llm
from groundplane.sim.serving.results_run import simulate_serving
from groundplane.sim.serving.workload_rows import RequestRows
from groundplane.spec.deployment import DeploymentSpec, ReplicaPool
from groundplane.spec.errors import InputError
from groundplane.spec.load import from_data
from groundplane.spec.slo import parse_slo

Drawn = Callable[..., RequestRows]
Planned = Callable[..., ServingPlan]
SLO = parse_slo("ttft=1s,tpot=30ms")


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "qwen3-30b-a3b", "llama-3.1-8b"])
def test_layouts_divide_heads_and_experts_and_stay_in_the_cluster(name: str) -> None:
    model, cluster = serving_llm(name), resolve_cluster("h200x64")
    found = layouts(model, cluster)
    assert len(set(found)) == len(found) > 3
    for layout in found:
        assert layout.num_chips <= 64
        assert layout.tp <= 8
        assert all(layer.attention.heads % layout.tp == 0 for layer in model.layers)
        if model.is_moe:
            assert layout.expert_tp * layout.expert_ep == layout.tp * layout.attention_dp
        else:
            assert layout.attention_dp == layout.expert_ep == 1


def test_a_model_that_fits_one_domain_needs_no_pipeline() -> None:
    def pipelines(name: str, weights: str, chips: str = "h200x64") -> set[int]:
        found = engine_choices(
            serving_llm(name),
            resolve_cluster(chips),
            0,
            engines=("vllm",),
            weights=(weights,),
            caches=("bf16",),
            longest=1000,
        )
        return {choice.layout.pp for choice in found}

    assert pipelines("llama-3.1-70b", "bf16") == {1}
    assert pipelines("llama-3.1-405b", "bf16") == {1}
    assert pipelines("llama-3.1-405b", "bf16", "h100x64") >= {2}


def test_steady_state_bounds_what_simulation_finds(drawn: Drawn) -> None:
    rows = drawn(rate=60.0, count=400)
    model, cluster = serving_llm("llama-3.1-8b"), resolve_cluster("h100x8")
    load = load_of(rows)
    choices = engine_choices(
        model, cluster, 0, engines=("vllm",), weights=("bf16",), caches=("bf16",), longest=2000
    )
    screened = [screen(model, cluster, serving_links(cluster), choice, load) for choice in choices]
    for one in screened:
        # More sequences: more each second, and slower each.
        assert np.all(np.diff(one.tpot_s) > 0)
        assert np.all(np.diff(one.decode_rate_per_s) > 0)
        assert np.all(one.decode_tpot_s < one.tpot_s)
    listed = candidates(screened, load, SLO, [2.0], [8], disaggregated=False)
    assert [one.usd_per_hour for one in listed] == sorted(one.usd_per_hour for one in listed)
    for one in listed:
        least = one.counts[0]
        if least == 1:
            continue
        layout = one.engines[0].choice.layout
        pool = ReplicaPool(replicas=least - 1, tp=layout.tp)
        spec = DeploymentSpec("fewer", "h100x8", (pool,), model="llama-3.1-8b")
        run = simulate_serving(spec, rows, slo=SLO, intervals=False, simulator="reference")
        assert not run.result.latency.meets_slo


def test_the_answer_meets_the_objectives_and_explains_itself(drawn: Drawn, planned: Planned) -> None:
    rows = drawn()
    plan = planned("llama-3.1-8b", "h100x8", rows, SLO)
    assert plan.meets_slo
    assert plan.best is not None
    assert plan.result is not None
    assert plan.best.usd_per_hour == pytest.approx(plan.best.chips * 2.95, rel=1e-6)
    assert all(bound.met for bound in plan.result.latency.bounds)
    assert plan.screened > 5
    assert 0 < plan.simulated <= 80
    assert plan.bottleneck
    assert plan.next_constraint
    assert next(iter(plan.growth)) == "1.1"
    # The file it writes gives the same latencies again.
    import yaml

    spec = from_data(yaml.safe_load(plan.deployment), DeploymentSpec)
    again = simulate_serving(spec, rows, slo=SLO, simulator="reference").result
    assert again.latency.ttft.p99.value == plan.result.latency.ttft.p99.value


def test_nothing_on_the_front_is_beaten(drawn: Drawn, planned: Planned) -> None:
    plan = planned("llama-3.1-8b", "h100x8", drawn(rate=60.0), SLO)
    points = [(one.usd_per_hour, one.ttft_p99_s, one.tpot_p99_s) for one in plan.front]
    assert points
    for one in points:
        for other in points:
            beaten = all(a <= b for a, b in zip(other, one, strict=True)) and other != one
            assert not beaten


def test_looser_objectives_never_cost_more(drawn: Drawn, planned: Planned) -> None:
    rows = drawn(rate=40.0)
    costs = []
    for text in ("ttft=150ms,tpot=9ms", "ttft=500ms,tpot=20ms", "ttft=5s,tpot=100ms"):
        plan = planned("llama-3.1-8b", "h100x8", rows, parse_slo(text), weights=("bf16",), caches=("bf16",))
        assert plan.best is not None
        costs.append(plan.best.usd_per_hour if plan.meets_slo else float("inf"))
    assert costs[0] >= costs[1] >= costs[2]


def test_what_cannot_be_is_said(drawn: Drawn, planned: Planned) -> None:
    plan = planned("llama-3.1-8b", "h100x8", drawn(), parse_slo("tpot=1ms"))
    assert not plan.meets_slo
    assert plan.best is None
    assert "no engine of" in plan.notes[-1]
    with pytest.raises(InputError, match=r"does not fit on h100x1 with bf16"):
        planned("llama-3.1-70b", "h100x1", drawn(), SLO, weights=("bf16",))
    with pytest.raises(InputError, match="unknown serving engine"):
        planned("llama-3.1-8b", "h100x8", drawn(), SLO, engines=("vlm",))


def test_the_nearest_is_named_when_nothing_meets(drawn: Drawn, planned: Planned) -> None:
    plan = planned("llama-3.1-8b", "h100x1", drawn(rate=200.0, count=400), parse_slo("ttft=100ms,tpot=12ms"))
    if plan.best is not None:
        assert not plan.meets_slo
        assert "missed" in plan.next_constraint


def test_clusters_are_compared_by_price(drawn: Drawn, planned: Planned) -> None:
    rows = drawn()
    plan = planned("llama-3.1-8b", ["b200x8", "l40sx8"], rows, parse_slo("ttft=3s,tpot=200ms"))
    assert plan.best is not None
    assert plan.best.cluster == "l40sx8"
    with pytest.raises(InputError, match=r"no price is known of mi325x"):
        planned("llama-3.1-8b", ["b200x8", "mi325xx8"], rows, SLO)
    alone = planned("llama-3.1-8b", "mi325xx8", rows, SLO)
    assert alone.best is not None
    assert alone.best.usd_per_hour is None
    assert not alone.priced


def test_sure_answers_hold_at_the_slow_end(drawn: Drawn, planned: Planned) -> None:
    plan = planned("llama-3.1-8b", "h100x8", drawn(), parse_slo("tpot=12ms"), sure=True)
    assert plan.meets_slo
    assert plan.result is not None
    assert plan.result.latency.tpot.p99.value < 0.012


def test_disaggregated_alone(drawn: Drawn, planned: Planned) -> None:
    plan = planned("llama-3.1-8b", "h100x8", drawn(), SLO, kinds=("disaggregated",))
    assert plan.best is not None
    assert [pool.split(" ")[2] for pool in plan.best.pools] == ["prefill", "decode"]
    assert plan.result is not None
    assert plan.result.latency.shares["transfer"].value > 0


def test_no_simulation_begins_after_the_time_limit(drawn: Drawn, planned: Planned) -> None:
    ticks = iter(range(10_000))
    plan = planned("llama-3.1-8b", "h100x8", drawn(), SLO, time_limit_s=5.0, clock=lambda: float(next(ticks)))
    assert plan.simulated <= 5


def test_shared_prefixes_lighten_the_load() -> None:
    # Two requests with the same two whole blocks: one of each is found.
    rows = RequestRows(
        np.array([0, 10**9]), np.array([40, 40]), np.array([5, 5]), block_tokens=16,
        block_start=np.array([0, 2, 4]), block_hash=np.array([7, 8, 7, 8]),
    )  # fmt: skip
    assert ideal_hit_tokens(rows).tolist() == [0, 32]
    assert load_of(rows).cached == 16.0
    assert load_of(rows).prompt == 24.0
    assert load_of(rows).prompt_at["p50"] == 24.0


@pytest.mark.parametrize(("running", "limit"), [(1.0, 64), (42.0, 64), (43.0, 128), (5000.0, 1024)])
def test_sequences_leave_room_for_bursts(running: float, limit: int) -> None:
    assert sequences_for(running) == limit
