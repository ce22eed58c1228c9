"""Results of a simulation: definitions by hand, goodput, intervals, shares, tools, cost, files."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from groundplane.perfmodel.evidence import Evidence
from groundplane.sim.serving.deployment import CacheSpec, Deployment, PoolSpec, SchedulerSpec
from groundplane.sim.serving.iteration import linear_table
from groundplane.sim.serving.outcome import Outcome
from groundplane.sim.serving.requests import Requests
from groundplane.sim.serving.results import Runs, good_requests, latency_result, metric_s
from groundplane.sim.serving.results_evidence import ServingEvidence, pool_evidence
from groundplane.sim.serving.results_files import write_csv, write_parquet, write_trace
from groundplane.sim.serving.results_run import simulate_serving, with_speed
from groundplane.sim.serving.results_tools import TOOLS, tool_report
from groundplane.sim.serving.simulate import simulate
from groundplane.sim.serving.workload_rows import RequestRows
from groundplane.spec.deployment import DeploymentSpec
from groundplane.spec.errors import InputError
from groundplane.spec.slo import parse_slo

MS = 1_000_000
SPREAD = Evidence("measured", 0.5, 1.0, 2.0, 10, "made up")
KNOWN = ServingEvidence("measured", SPREAD, SPREAD, ())


def one_replica(max_sequences: int = 8, max_queue: int = 1 << 30) -> Deployment:
    """10 ms an iteration and 10 us a prompt token."""
    table = linear_table(
        base_ns=10 * MS, prompt_token_ns=10_000, max_sequences=8, max_batched_tokens=512, max_context=4096
    )
    pool = PoolSpec(
        "serve", table, CacheSpec(num_blocks=1000), SchedulerSpec("vllm-v1", max_sequences, 512),
        max_queue=max_queue,
    )  # fmt: skip
    return Deployment((pool,)).checked()


def served(requests: Requests, deployment: Deployment) -> Outcome:
    return simulate(requests, deployment, simulator="reference")


def requests_at(arrival_ms: list[int], prompt: int = 100, output: int = 3) -> Requests:
    count = len(arrival_ms)
    return Requests.of(np.array(arrival_ms) * MS, np.full(count, prompt), np.full(count, output))


def test_definitions_by_hand() -> None:
    # Prompt and first token in 10 + 1 ms, then two tokens at 10 ms each.
    requests = requests_at([0, 1000])
    runs = Runs(requests, served(requests, one_replica()), None, None, KNOWN)
    found = latency_result(runs, parse_slo("ttft_p50=12ms,tpot=9ms"), np.zeros(2, np.int64))
    assert found.ttft.mean.value == pytest.approx(0.011)
    assert found.tpot.p99.value == pytest.approx(0.010)
    assert found.e2e.p50.value == pytest.approx(0.031)
    assert found.itl.mean.value == pytest.approx(0.010, rel=0.01)
    assert found.itl.count == 4
    assert found.queue.p999.value == 0.0
    assert found.duration_s == pytest.approx(1.031)
    assert found.output_tokens_per_s.value == pytest.approx(6 / 1.031)
    assert [(bound.name, bound.met) for bound in found.bounds] == [("ttft_p50", True), ("tpot_p99", False)]
    assert not found.meets_slo
    assert found.goodput is not None
    assert found.goodput.share.value == 0.0
    assert {name: share.value for name, share in found.shares.items()} == pytest.approx(
        {"outside": 0.0, "queue": 0.0, "prefill": 11 / 31, "transfer": 0.0, "decode": 20 / 31}
    )


def test_goodput_counts_requests_within_every_bound() -> None:
    # One at a time: the second waits for the first 31 ms, the third has the replica for itself.
    requests = requests_at([0, 0, 1000])
    outcome = served(requests, one_replica(max_sequences=1))
    slo = parse_slo("ttft=20ms,tpot=15ms")
    assert metric_s(requests, outcome, "ttft") == pytest.approx([0.011, 0.042, 0.011])
    assert good_requests(requests, outcome, slo).tolist() == [True, False, True]
    found = latency_result(Runs(requests, outcome, None, None, KNOWN), slo, np.zeros(3, np.int64))
    assert found.goodput is not None
    assert found.goodput.share.value == pytest.approx(2 / 3)
    assert found.goodput.requests_per_s.value == pytest.approx(2 / 1.031)
    assert found.shares["queue"].value == pytest.approx(31 / (31 + 62 + 31))


def test_refused_requests_are_not_good_and_have_no_latency() -> None:
    requests = requests_at([0, 5, 6])
    outcome = served(requests, one_replica(max_sequences=1, max_queue=1))
    found = latency_result(
        Runs(requests, outcome, None, None, KNOWN), parse_slo("e2e=10s"), np.zeros(3, np.int64)
    )
    assert (found.ended, found.refused_full) == (2, 1)
    assert found.e2e.count == 2
    assert found.bounds[0].met
    assert not found.meets_slo


def test_one_token_has_no_time_per_token() -> None:
    requests = requests_at([0], output=1)
    found = latency_result(
        Runs(requests, served(requests, one_replica()), None, None, KNOWN), parse_slo("tpot=1ms"),
        np.zeros(1, np.int64),
    )  # fmt: skip
    assert found.tpot.count == 0
    assert np.isnan(found.tpot.p99.value)
    assert found.bounds[0].met
    assert found.goodput is not None
    assert found.goodput.share.value == 1.0


def test_intervals_come_from_faster_and_slower_iterations() -> None:
    requests = requests_at([0, 1000])
    deployment = one_replica()
    slow, fast = (served(requests, with_speed(deployment, ratio)) for ratio in (2.0, 0.5))
    found = latency_result(
        Runs(requests, served(requests, deployment), fast, slow, KNOWN), parse_slo("tpot=15ms"),
        np.zeros(2, np.int64),
    )  # fmt: skip
    each = found.tpot.p99
    assert (each.low, each.value, each.high) == pytest.approx((0.005, 0.010, 0.020))
    assert found.bounds[0].met
    assert not found.bounds[0].surely_met
    assert found.requests_per_s.low < found.requests_per_s.value < found.requests_per_s.high


@pytest.mark.usefixtures("plain_simulator")
def test_a_whole_run(small_deployment: Callable[..., DeploymentSpec], few_requests: RequestRows) -> None:
    run = simulate_serving(small_deployment(), few_requests, slo=parse_slo("ttft=1s,tpot_p90=50ms"))
    result = run.result
    latency, cost = result.latency, result.cost
    assert (latency.requests, latency.ended) == (60, 60)
    assert latency.ttft.p99.low < latency.ttft.p99.value < latency.ttft.p99.high
    assert sum(share.value for share in latency.shares.values()) == pytest.approx(1.0)
    assert latency.shares["outside"].value > 0
    assert latency.meets_slo
    assert sum(pool.decode_tokens for pool in result.pools) == 60 * 19
    # Two chips from the first arrival to the end, at the catalogue's dated price.
    hours = run.outcome.end_ns / 3.6e12
    assert cost.chip_hours == pytest.approx(2 * hours)
    assert cost.usd_per_hour == pytest.approx(2 * 2.95)
    assert "2025" in cost.price_source
    assert cost.usd_per_million_output_tokens is not None
    assert cost.usd_per_million_output_tokens.value == pytest.approx(2.95 * 2 * hours / 1200 * 1e6)
    assert cost.energy_j is not None
    assert cost.energy_j.value == pytest.approx(float(run.outcome.replicas.busy_ns.sum()) * 1e-9 * 700.0)
    assert cost.energy_j.low < cost.energy_j.value < cost.energy_j.high
    for pool in result.pools:
        assert 0.0 < pool.busy_share.low < pool.busy_share.value < pool.busy_share.high <= 1.0
        assert 0.0 < pool.kv_mean_share.value < pool.kv_peak_share.value < 1.0
    assert result.workload.notes == ("as made",)
    plain = msgspec.json.decode(msgspec.json.encode(result))
    assert plain["latency"]["ttft"]["p99"]["value"] == latency.ttft.p99.value


@pytest.mark.usefixtures("plain_simulator")
def test_prices_given_come_first(
    small_deployment: Callable[..., DeploymentSpec], few_requests: RequestRows
) -> None:
    spec = msgspec.structs.replace(small_deployment(), usd_per_chip_hour=1.0)
    first = simulate_serving(spec, few_requests, intervals=False).result.cost
    second = simulate_serving(spec, few_requests, intervals=False, usd_per_chip_hour=4.0).result.cost
    assert (first.usd_per_chip_hour, first.price_source) == (1.0, "the deployment file")
    assert second.usd_per_chip_hour == 4.0
    unknown = msgspec.structs.replace(spec, usd_per_chip_hour=None, cluster="mi325xx8")
    third = simulate_serving(unknown, few_requests, intervals=False).result
    assert third.cost.usd is None
    assert "no price known of mi325x" in third.cost.price_source
    assert third.evidence.grade == "data-sheet"


@pytest.mark.usefixtures("plain_simulator")
def test_what_was_not_measured_is_wider(
    small_deployment: Callable[..., DeploymentSpec], few_requests: RequestRows
) -> None:
    large = msgspec.structs.replace(small_deployment(tp=4, replicas=1), model="llama-3.1-70b", weights="fp8")
    specs = {
        "measured": large,
        "family": msgspec.structs.replace(large, weights="bf16", model="llama-3.1-8b"),
        "format": msgspec.structs.replace(large, weights="int8"),
        "data-sheet": msgspec.structs.replace(large, cluster="a100x8"),
    }
    pools = {
        name: simulate_serving(spec, few_requests, intervals=False).built.pools[0]
        for name, spec in specs.items()
    }
    found = {name: pool_evidence(pool) for name, pool in pools.items()}
    widths = {name: one.tpot.ratio_p90 / one.tpot.ratio_p10 for name, one in found.items()}
    assert widths["measured"] < widths["family"] < widths["format"] < widths["data-sheet"]
    grades = [found[name].grade for name in specs]
    assert grades == ["measured", "family", "family", "data-sheet"]
    assert any("a100" in reason for reason in found["data-sheet"].reasons)


@pytest.mark.usefixtures("plain_simulator")
def test_tools_define_the_same_words_differently(
    small_deployment: Callable[..., DeploymentSpec], few_requests: RequestRows
) -> None:
    run = simulate_serving(small_deployment(), few_requests, slo=parse_slo("ttft=1s"), intervals=False)
    vllm, aiperf, llmperf = (tool_report(run, tool) for tool in TOOLS)
    latency = run.result.latency
    assert vllm["mean_ttft_ms"] == pytest.approx(1e3 * latency.ttft.mean.value)
    assert vllm["p99_itl_ms"] == pytest.approx(1e3 * latency.itl.p99.value)
    assert vllm["total_output_tokens"] == 1200
    assert aiperf["inter_token_latency_ms_avg"] == pytest.approx(1e3 * latency.tpot.mean.value)
    assert llmperf["inter_token_latency_s_avg"] == pytest.approx(latency.e2e.mean.value / 20)
    with pytest.raises(InputError, match="unknown benchmark tool"):
        tool_report(run, "wrk")


@pytest.mark.usefixtures("plain_simulator")
def test_files(
    small_deployment: Callable[..., DeploymentSpec], few_requests: RequestRows, tmp_path: Path
) -> None:
    from pyarrow import parquet

    run = simulate_serving(small_deployment(), few_requests, intervals=False, log=True)
    write_csv(run, tmp_path / "r.csv")
    write_parquet(run, tmp_path / "r.parquet")
    with (tmp_path / "r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = parquet.read_table(tmp_path / "r.parquet").to_pylist()
    assert len(rows) == len(table) == 60
    assert list(rows[0]) == list(table[0])
    for row, other in zip(rows, table, strict=True):
        assert float(row["ttft_s"]) == pytest.approx(other["ttft_s"], rel=1e-8)
        assert row["state"] == other["state"] == "ended"
        assert int(row["output_tokens"]) == 20
    count = write_trace(run, tmp_path / "r.json")
    events = json.loads((tmp_path / "r.json").read_text())["traceEvents"]
    assert len(events) == count
    iterations = [event for event in events if event["ph"] == "X"]
    assert len(iterations) == int(run.outcome.replicas.iterations.sum())
    busy_us = sum(event["dur"] for event in iterations)
    assert busy_us == pytest.approx(float(run.outcome.replicas.busy_ns.sum()) / 1e3)
    assert sum(event["ph"] == "b" for event in events) == sum(event["ph"] == "e" for event in events) == 180
    assert not list(tmp_path.glob("*.partial"))
    bare = dataclasses.replace(run, outcome=dataclasses.replace(run.outcome, log=None))
    with pytest.raises(InputError, match="kept its log"):
        write_trace(bare, tmp_path / "r.json")
    with pytest.raises(InputError, match="cannot be written"):
        write_csv(run, tmp_path / "missing" / "r.csv")


@pytest.mark.usefixtures("plain_simulator")
def test_parquet_without_pyarrow_says_what_to_do(
    small_deployment: Callable[..., DeploymentSpec], few_requests: RequestRows, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = simulate_serving(small_deployment(), few_requests, intervals=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="needs pyarrow"):
        write_parquet(run, tmp_path / "r.parquet")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft_p99", "NAME=DURATION"),
        ("ttft_p98=1s", "did you mean 'ttft_p9"),
        ("tptf_p99=1s", "unknown bound"),
        ("ttft=1s,ttft_p99=2s", "is given twice"),
        ("ttft=5", "needs a unit"),
        ("ttft=0s", "more than 0"),
        ("", "must name a bound"),
    ],
)
def test_bad_objectives(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        parse_slo(text)
    assert said in str(error.value)


def test_objectives_as_written() -> None:
    slo = parse_slo("ttft=500ms, tpot_p999=50ms,e2e_mean=10s,tpot_p50=20ms")
    assert [bound.name for bound in slo] == ["ttft_p99", "tpot_p999", "e2e_mean", "tpot_p50"]
    assert slo.request_limit_s("tpot") == 0.02
    assert slo.request_limit_s("itl") is None
    assert slo.show().startswith("ttft_p99 <= 500 ms")
