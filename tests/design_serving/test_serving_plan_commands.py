"""`simulate serving`, `plan serve --slo` and `validate serving` over recorded runs, as commands."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from groundplane.cli.plan import plan_command
from groundplane.cli.simulate import simulate_command
from groundplane.cli.validate import validate_command
from groundplane.sim.serving import measured_runs as runs_module
from groundplane.sim.serving import results_run
from groundplane.sim.serving.described import build_deployment
from groundplane.sim.serving.measured_runs import measured_runs
from groundplane.sim.serving.requests import Requests
from groundplane.sim.serving.simulate import simulate
from groundplane.spec.deployment import DeploymentSpec, ReplicaPool
from groundplane.spec.errors import InputError

DEPLOYMENT = """
kind: deployment
name: chat
cluster: h100x8
model: llama-3.1-8b
pools: [{name: serve, replicas: 2, max_sequences: 32, max_batched_tokens: 2048}]
"""


@pytest.fixture(autouse=True)
def plain_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain simulator, which needs no compiling."""

    def run(requests: object, deployment: object, *, log: bool = False, simulator: str = "") -> object:
        return simulate(requests, deployment, log=log, simulator="reference")  # type: ignore[arg-type]

    monkeypatch.setattr(results_run, "simulate", run)
    monkeypatch.setattr(runs_module, "simulate", functools.partial(run))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "chat.yaml").write_text(DEPLOYMENT)
    lines = "".join(f"{i * 0.1:.1f},{200 + i},20\n" for i in range(50))
    (tmp_path / "trace.csv").write_text("arrival,isl,osl\n" + lines)
    return str(tmp_path / "chat.yaml"), str(tmp_path / "trace.csv")


def test_simulate_serving_in_json_and_files(files: tuple[str, str], tmp_path: Path) -> None:
    chat, trace = files
    outputs = {name: tmp_path / f"out.{name}" for name in ("html", "csv", "parquet")}
    arguments = ["serving", chat, "--trace", trace, "--slo", "ttft=1s,tpot=50ms", "--json"]
    for name, path in outputs.items():
        arguments += [f"--{name}", str(path)]
    result = CliRunner().invoke(simulate_command, [*arguments, "--trace-out", str(tmp_path / "out.json")])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["latency"]["ended"] == 50
    assert set(found["latency"]["ttft"]["p99"]) == {"value", "low", "high"}
    assert found["latency"]["goodput"]["share"]["value"] == 1.0
    page = outputs["html"].read_text()
    assert "Latencies" in page
    assert "plotly" in page
    assert len(outputs["csv"].read_text().splitlines()) == 51
    assert outputs["parquet"].stat().st_size > 1000
    assert json.loads((tmp_path / "out.json").read_text())["traceEvents"]


def test_simulate_serving_for_people(files: tuple[str, str]) -> None:
    chat, trace = files
    shown = CliRunner().invoke(
        simulate_command, ["serving", chat, "--trace", trace, "--slo", "ttft=1s", "--scale-factor", "2"]
    )
    assert shown.exit_code == 0, shown.output
    for word in ("first token", "between tokens", "goodput", "USD/h", "energy", "gaps' cv", "8 of 10 cases"):
        assert word in shown.output
    tool = CliRunner().invoke(
        simulate_command, ["serving", chat, "--trace", trace, "--tool", "vllm", "--no-intervals"]
    )
    assert "mean_ttft_ms" in tool.output


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ([], "--trace"),
        (["--trace", "TRACE", "--slo", "ttfft=1s"], "unknown bound"),
        (["--trace", "TRACE", "--tool", "vlm"], "unknown benchmark tool"),
        (["--trace", "TRACE", "--columns", "prompt=nothing"], "unknown column"),
        (["--trace", "TRACE", "--scale-rate", "1", "--scale-factor", "2"], "give one of"),
        (["--trace", "TRACE", "--csv", "/nowhere/x.csv"], "no such folder"),
        (["--trace", "TRACE", "--scale-rate", "-1"], "must be more than 0"),
    ],
)
def test_simulate_serving_refuses_in_one_line(files: tuple[str, str], extra: list[str], said: str) -> None:
    chat, trace = files
    arguments = [trace if part == "TRACE" else part for part in extra]
    result = CliRunner().invoke(simulate_command, ["serving", chat, *arguments])
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)


def test_plan_serve_searches(files: tuple[str, str], tmp_path: Path) -> None:
    arguments = [
        "serve",
        "llama-3.1-8b",
        "--cluster",
        "h100x8",
        "--rate",
        "10",
        "--isl",
        "300",
        "--osl",
        "20",
    ]
    arguments += ["--requests", "100", "--slo", "ttft=1s,tpot=50ms"]
    outputs = [tmp_path / "plan.html", tmp_path / "plan.yaml", tmp_path / "k8s.yaml"]
    options = zip(("--html", "--deployment-out", "--manifest-out"), map(str, outputs), strict=True)
    result = CliRunner().invoke(plan_command, [*arguments, *(part for pair in options for part in pair)])
    assert result.exit_code == 0, result.output
    for word in (
        "meets it",
        "bottleneck",
        "next constraint",
        "vllm serve",
        "sglang.launch_server",
        "front of",
    ):
        assert word in result.output
    assert yaml.safe_load(outputs[1].read_text())["kind"] == "deployment"
    assert len(list(yaml.safe_load_all(outputs[2].read_text()))) >= 2
    assert "Kubernetes" in outputs[0].read_text()
    as_json = CliRunner().invoke(plan_command, [*arguments, "--json"])
    found = json.loads(as_json.output)
    assert found["meets_slo"]
    assert {"best", "front", "bottleneck", "next_constraint", "launch", "manifest", "result"} <= set(found)
    hopeless = CliRunner().invoke(plan_command, [*arguments[:-1], "tpot=1ms"])
    assert hopeless.exit_code == 1
    assert "no deployment found" in hopeless.output


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--rate", "5"], "--slo: is required"),
        (["--slo", "ttft=1s"], "--rate: is required, or --trace"),
        (["--slo", "ttft=1s", "--rate", "5", "--isl", "0", "--osl", "5"], "must be more than 0"),
        (["--slo", "ttft=1s", "--trace", "TRACE", "--isl", "5"], "a trace has its own lengths"),
        (["--slo", "ttft=1s", "--trace", "TRACE", "--kind", "both"], "unknown kind of deployment"),
        (["--isl", "5"], "--osl: is required, or --slo"),
    ],
)
def test_plan_serve_refuses_in_one_line(files: tuple[str, str], extra: list[str], said: str) -> None:
    arguments = [files[1] if part == "TRACE" else part for part in extra]
    result = CliRunner().invoke(plan_command, ["serve", "llama-3.1-8b", "--cluster", "h100x8", *arguments])
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)


def recorded(folder: Path) -> None:
    """A run as an engine would record it, made by the simulator itself."""
    folder.mkdir(parents=True)
    meta = {
        "model": "meta-llama/Llama-3.1-8B-Instruct", "vllm_version": "0.19.0",
        "engine_kwargs": {
            "tensor_parallel_size": 2, "max_num_seqs": 32, "max_num_batched_tokens": 2048,
            "dtype": "bfloat16",
        },
    }  # fmt: skip
    (folder / "meta.json").write_text(json.dumps(meta))
    pool = ReplicaPool(tp=2, max_sequences=32, max_batched_tokens=2048)
    built = build_deployment(DeploymentSpec("run", "h100x2", (pool,), model="llama-3.1-8b"), max_context=600)
    requests = Requests.of(np.arange(40) * 50_000_000, np.full(40, 300), np.full(40, 30))
    outcome = simulate(requests, runs_module._at_the_engine(built.simulated), simulator="reference")
    lines = [
        json.dumps(
            {
                "request_id": f"r{i}", "input_toks": 300, "output_toks": 30,
                "queued_ts": 1000.0 + float(requests.arrival_ns[i]) * 1e-9,
                "first_token_ts": 1000.0 + float(outcome.first_token_ns[i]) * 1e-9,
                "last_token_ts": 1000.0 + float(outcome.finish_ns[i]) * 1e-9,
            }
        )
        for i in range(40)
    ]  # fmt: skip
    (folder / "requests.jsonl").write_text("\n".join(lines) + "\n")


def test_a_run_that_the_simulator_made_has_no_error(tmp_path: Path) -> None:
    recorded(tmp_path / "H100-80GB-SXM" / "llama" / "vllm")
    result = CliRunner().invoke(validate_command, ["serving", "--data", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.output)["runs"]
    for name in ("tpot_mean_err_pct", "ttft_mean_err_pct", "e2e_p50_err_pct", "e2e_p99_err_pct"):
        assert run[name] == pytest.approx(0.0, abs=1e-3)
    assert run["kv_blocks"] > 1000
    assert run["chip"] == "h100-80gb-sxm"
    shown = CliRunner().invoke(validate_command, ["serving", "--data", str(tmp_path)])
    assert "KV blocks" in shown.output


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("meta.json", "{}", "names no chip"),
        ("meta.json", "[]", "must be a JSON object"),
        ("meta.json", '{"chip": "h100x", "model": "llama-3.1-8b"}', "unknown chip"),
        ("meta.json", '{"chip": "h100", "model": "llama-9"}', "did you mean"),
        ("meta.json", '{"chip": "h100", "model": "llama-3.1-8b", "engine_kwargs": {"max_num_seqs": 0}}',
         "max_num_seqs: must be a whole number"),
        ("requests.jsonl", "", "holds no requests"),
        ("requests.jsonl", '{"input_toks": 5}', "requests.jsonl:1: is no recorded request"),
        ("requests.jsonl", '{"input_toks": 5, "output_toks": 5, "queued_ts": 3, "first_token_ts": 2, '
         '"last_token_ts": 4}', "times out of order"),
    ],
)  # fmt: skip
def test_runs_of_another_form(tmp_path: Path, name: str, text: str, said: str) -> None:
    recorded(tmp_path / "run")
    (tmp_path / "run" / name).write_text(text)
    if name != "meta.json":
        meta = json.loads((tmp_path / "run" / "meta.json").read_text()) | {"chip": "h100"}
        (tmp_path / "run" / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(InputError) as error:
        measured_runs(tmp_path)
    assert said in str(error.value)
    with pytest.raises(InputError, match="holds no run"):
        measured_runs(
            tmp_path / "run" / "..", simulator="reference"
        ) if not tmp_path.exists() else measured_runs(_empty(tmp_path))


def _empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@pytest.mark.shared
def test_recorded_runs_stay_near(shared: Path) -> None:
    """A guard, not a claim: docs/serving-simulation.md has the errors as produced."""
    for run in measured_runs(shared / "traces" / "llmservingsim-measured"):
        assert abs(run.tpot_mean_err_pct) < 30.0
        assert abs(run.e2e_p50_err_pct) < 40.0
