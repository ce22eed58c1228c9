"""Steady state, planning and validation of serving."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from groundplane.catalog.resolve import resolve_cluster, resolve_llm
from groundplane.cli.plan import plan_command
from groundplane.cli.validate import validate_command
from groundplane.perfmodel.serving_estimate import (
    ServingEstimate,
    ServingLoad,
    serving_estimate,
    smallest_layout,
)
from groundplane.perfmodel.serving_layout import ServingLayout
from groundplane.perfmodel.validation.serving import validate_serving
from groundplane.perfmodel.validation.serving_rows import plain_layout
from groundplane.spec.errors import InputError


def estimate(concurrency: float, prompt: float = 1024, **more: float) -> ServingEstimate:
    model, cluster = resolve_llm("llama-3.1-8b"), resolve_cluster("h100x8")
    load = ServingLoad(prompt, 256, concurrency)
    return serving_estimate(model, cluster, ServingLayout(), load, weights="fp8", cache="fp8", **more)


def test_more_requests_mean_more_tokens_and_longer_times() -> None:
    few, many = estimate(4), estimate(64)
    assert many.output_tokens_per_s > few.output_tokens_per_s
    assert many.tpot_s > few.tpot_s
    assert many.ttft_s > few.ttft_s


def test_throughput_is_concurrency_over_time_in_the_engine() -> None:
    one = estimate(16)
    assert one.output_tokens_per_s == pytest.approx(16 * 256 / (one.ttft_s + 256 * one.tpot_s))


def test_requests_beyond_the_cache_wait() -> None:
    one = estimate(2000, prompt=30000)
    assert one.running < 40
    assert one.capacity_wait_s > 0.9 * one.ttft_s
    assert one.bottleneck == "cache_capacity"


def test_intervals_hold_the_estimate() -> None:
    one = estimate(16)
    assert one.ttft_low_s < one.ttft_s < one.ttft_high_s
    assert one.tpot_low_s < one.tpot_s < one.tpot_high_s


def test_drafts_shorten_the_time_of_a_token_at_few_requests() -> None:
    assert estimate(1, drafts=3.0).tpot_s < 0.75 * estimate(1).tpot_s


def test_smallest_layout_is_the_first_that_holds_the_load() -> None:
    cluster, load = resolve_cluster("h100x8"), ServingLoad(1024, 256, 16)
    assert smallest_layout(resolve_llm("llama-3.1-8b"), cluster, load, "bf16", "bf16").tp == 1
    assert (
        smallest_layout(resolve_llm("llama-3.1-70b"), cluster, ServingLoad(1024, 256, 64), "bf16", "bf16").tp
        == 4
    )


def test_a_model_too_large_for_a_domain_is_refused() -> None:
    with pytest.raises(InputError, match="does not fit"):
        smallest_layout(
            resolve_llm("deepseek-v3"), resolve_cluster("h100x8"), ServingLoad(1024, 256, 1), "bf16", "bf16"
        )


def test_squared_degrees_are_undone() -> None:
    model = resolve_llm("deepseek-v3")
    assert plain_layout(model, 1, 64, 8, 8) == ServingLayout(tp=1, attention_dp=8, expert_ep=8)
    assert plain_layout(model, 4, 4, 1, 16) == ServingLayout(tp=4, expert_ep=4)
    assert plain_layout(model, 8, 1, 1, 8) == ServingLayout(tp=8, expert_ep=8)


def test_shipped_points_are_predicted() -> None:
    report = validate_serving()
    assert report.pooled.n > 30
    assert report.pooled.predicted_pct is not None
    assert report.pooled.predicted_pct >= 95
    assert report.pooled.tpot_median_abs_pct is not None
    assert report.pooled.tpot_median_abs_pct < 20


def test_a_table_with_a_wrong_number_names_line_and_column(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "src/groundplane/catalog/calibration/points_serving.csv"
    with source.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))[:2]
    rows[1]["silicon_ttft_ms"] = "-3"
    table = tmp_path / "runs.csv"
    with table.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    with pytest.raises(InputError) as caught:
        validate_serving(table)
    assert (caught.value.line, caught.value.field) == (3, "silicon_ttft_ms")


def test_plan_serve_prints_json() -> None:
    arguments = ["serve", "llama-3.1-8b", "--cluster", "h100x8", "--isl", "512", "--osl", "128"]
    result = CliRunner().invoke(plan_command, [*arguments, "--concurrency", "8", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["tpot_s"] > 0
    shown = CliRunner().invoke(plan_command, [*arguments, "--concurrency", "8"])
    assert "first token" in shown.output


def test_validate_serving_keeps_its_contract() -> None:
    result = CliRunner().invoke(validate_command, ["serving", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert {"sources", "pooled", "by_chip", "by_engine", "by_model", "by_precision"} <= set(found)
    wanted = ("n", "predicted_pct", "ttft_median_abs_pct", "ttft_mean_abs_pct", "tpot_median_abs_pct",
              "tpot_mean_abs_pct", "throughput_median_abs_pct", "coverage_pct")  # fmt: skip
    assert set(wanted) <= set(found["pooled"])


@pytest.mark.shared
def test_published_runs_stay_near() -> None:
    shared = Path(os.environ.get("GROUNDPLANE_SHARED", Path(__file__).parents[3] / "shared"))
    table = shared / "measured" / "serving_silicon.csv"
    if not table.exists():
        pytest.skip("no shared measurements")
    pooled = validate_serving(table).pooled
    assert pooled.predicted_pct is not None
    assert pooled.predicted_pct >= 95
    assert pooled.tpot_median_abs_pct is not None
    assert pooled.tpot_median_abs_pct <= 10
    assert pooled.ttft_mean_abs_pct is not None
    assert pooled.ttft_mean_abs_pct <= 32
