"""How fast a service is simulated on one core, beside two peers.

    python benchmarks/serving_sim.py [--json] [--traces FOLDER] [--no-peers] [--no-million]

A 70B model in fp8 on 8 replicas of 4 H100, vLLM-like scheduling with chunked prompts, prefix cache and
prefix-aware routing, under two recorded traces: azure-code (8,819 requests in 57 minutes, no prefixes known)
and mooncake (12,031 requests in 59 minutes, prefix hashes), and under a million requests made of the second
one after the other with new prefixes each time. Rates are requests a second of this process's own CPU time,
from requests and deployment in memory to every request's times; the best of three, and nothing runs beside.
Start-up is a process of its own from nothing to the first simulation, in CPU seconds: first as it comes
(which may compile), then with numba's cache warm.

DynoSim (package ai-dynamo) is installed into an environment of its own under `.benchmarks/`, once, and
replays the same traces with the same number of replicas, blocks and limits, by the same measure. Vidur is not
run here: its figure is the published one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np

from groundplane.sim.serving.deployment import Deployment, PoolSpec
from groundplane.sim.serving.described import build_deployment
from groundplane.sim.serving.outcome import Outcome, State
from groundplane.sim.serving.requests import Requests
from groundplane.sim.serving.simulate import simulate
from groundplane.sim.serving.workload import load_workload, simulated
from groundplane.spec.deployment import DeploymentSpec, ReplicaPool

HERE = Path(__file__).resolve().parent
AZURE = Path("azure-llm-2023") / "AzureLLMInferenceTrace_code.csv"
MOONCAKE = Path("mooncake") / "conversation_trace.jsonl"
MILLION = 1_000_000
REPEATS = 3
REPLICAS = 8
DYNOSIM = ("ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1")
DYNOSIM_NEEDS = ("typing_extensions",)
"""What its replay imports; the rest of what the package requires serves its live platform."""

VIDUR = {
    "requests_per_s": 65.0,
    "note": "published: about 65 requests a CPU second, 4 of 38 public cases supported; not run here",
}
DYNOSIM_PUBLISHED = 3100.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--traces", type=Path, default=default_traces(), help="folder of recorded traces")
    parser.add_argument("--no-peers", action="store_true", help="leave DynoSim out")
    parser.add_argument("--no-million", action="store_true", help="leave the million requests out")
    parser.add_argument(
        "--envs", type=Path, default=HERE.parent / ".benchmarks", help="where peers are installed"
    )
    parser.add_argument("--start-up", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start_up:
        start_up_alone()
        return
    for file in (AZURE, MOONCAKE):
        if not (options.traces / file).is_file():
            parser.error(f"{options.traces / file}: no such file; name the folder of traces with --traces")
    figures = measure(options.traces, million=not options.no_million)
    figures["peers"] = {"vidur": VIDUR}
    if not options.no_peers:
        figures["peers"]["dynosim"] = dynosim(options.envs, options.traces)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for line in lines(figures):
        print(line)


def default_traces() -> Path:
    shared = os.environ.get("GROUNDPLANE_SHARED", "")
    return (Path(shared) if shared else HERE.parent.parent / "shared") / "traces"


def measure(traces: Path, *, million: bool) -> dict[str, Any]:
    """Our own figures."""
    first, warm = start_up(), start_up()
    figures: dict[str, Any] = {
        "start_up_first_s": first["cpu_s"],
        "start_up_s": warm["cpu_s"],
        "start_up_wall_s": warm["wall_s"],
    }
    deployment = eight_replicas()
    azure = simulated(load_workload(traces / AZURE))
    mooncake = simulated(load_workload(traces / MOONCAKE))
    simulate(azure, deployment, simulator="fast")
    for name, requests in (("azure_code", azure), ("mooncake", mooncake)):
        spent_s, outcome = timed(requests, deployment, REPEATS)
        figures[f"{name}_requests_per_s"] = len(requests) / spent_s
        figures[name] = described(requests, outcome)
    if million:
        many = repeated(mooncake, MILLION)
        wall = time.perf_counter()
        spent_s, outcome = timed(many, deployment, 1)
        figures["million_requests_s"] = spent_s
        figures["million_requests_wall_s"] = time.perf_counter() - wall
        figures["million"] = described(many, outcome)
    figures["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return figures


def eight_replicas() -> Deployment:
    """A 70B model in fp8 on 8 replicas of 4 H100."""
    spec = DeploymentSpec(
        name="eight",
        cluster="h100x32",
        model="llama-3.1-70b",
        engine="vllm",
        weights="fp8",
        cache="fp8",
        routing="prefix",
        pools=(ReplicaPool(replicas=REPLICAS, tp=4),),
    )
    return build_deployment(spec, max_context=262_144).simulated


def timed(requests: Requests, deployment: Deployment, repeats: int) -> tuple[float, Outcome]:
    """Least CPU seconds of some simulations, and what came of the last."""
    best_s = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        outcome = simulate(requests, deployment, simulator="fast")
        best_s = min(best_s, time.process_time() - begin)
    return best_s, outcome


def described(requests: Requests, outcome: Outcome) -> dict[str, Any]:
    """What was simulated, so that a rate is not had by simulating nothing."""
    ended = outcome.state == State.ENDED
    first_s = (outcome.first_token_ns - requests.arrival_ns)[ended] * 1e-9
    return {
        "requests": len(requests),
        "ended": int(ended.sum()),
        "iterations": int(outcome.replicas.iterations.sum()),
        "prompt_tokens": int(requests.prompt_tokens.sum()),
        "output_tokens": int(outcome.output_tokens.sum()),
        "prefix_hit_pct": float(100 * outcome.hit_tokens.sum() / requests.prompt_tokens.sum()),
        "busy_pct": float(100 * outcome.replicas.busy_ns.sum() / outcome.replicas.ready_ns.sum()),
        "ttft_p50_s": float(np.percentile(first_s, 50)),
        "ttft_p99_s": float(np.percentile(first_s, 99)),
        "itl_p50_s": outcome.gap_percentile_ns(50) * 1e-9,
        "itl_p99_s": outcome.gap_percentile_ns(99) * 1e-9,
    }


def repeated(requests: Requests, count: int) -> Requests:
    """So many requests: a trace after itself, with prefixes of its own each time."""
    times = -(-count // len(requests))
    span_ns = int(requests.arrival_ns[-1] - requests.arrival_ns[0]) + 1
    which = np.repeat(np.arange(times), len(requests))
    step = int(requests.block_hashes.max(initial=0)) + 1
    blocks = len(requests.block_hashes)
    hashes = np.tile(requests.block_hashes, times) + np.repeat(np.arange(times) * step, blocks)
    offsets = (requests.block_offsets[:-1] + (np.arange(times) * blocks)[:, None]).ravel()[:count]
    end = int(offsets[-1]) + int(np.diff(requests.block_offsets)[(count - 1) % len(requests)])
    return Requests.of(
        (np.tile(requests.arrival_ns, times) + which * span_ns)[:count],
        np.tile(requests.prompt_tokens, times)[:count],
        np.tile(requests.output_tokens, times)[:count],
        block_hashes=hashes[:end],
        block_offsets=np.append(offsets, end),
        hash_block_tokens=requests.hash_block_tokens,
    )


def start_up() -> dict[str, float]:
    """From nothing to the first simulation, in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--start-up"]
    begin = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=900)
    return {"wall_s": time.perf_counter() - begin, "cpu_s": json.loads(done.stdout)["cpu_s"]}


def start_up_alone() -> None:
    """What `start_up` runs."""
    ones = np.ones(4, dtype=np.int64)
    simulate(Requests.of(np.arange(4), ones, ones), eight_replicas(), simulator="fast")
    print(json.dumps({"cpu_s": time.process_time()}))


def dynosim(envs: Path, traces: Path) -> dict[str, Any]:
    """DynoSim on the same traces; where it cannot be had or run, why, and the published figure."""
    figures: dict[str, Any] = {"published_requests_per_s": DYNOSIM_PUBLISHED}
    pool: PoolSpec = eight_replicas().pools[0]
    try:
        python = environment(envs / "dynosim")
        with tempfile.TemporaryDirectory() as folder:
            case = {
                "traces": {
                    "azure_code": str(as_mooncake(traces / AZURE, Path(folder))),
                    "mooncake": str(traces / MOONCAKE),
                },
                "workers": REPLICAS,
                "block_tokens": pool.cache.block_tokens,
                "num_blocks": pool.cache.num_blocks,
                "max_sequences": pool.scheduler.max_sequences,
                "max_batched_tokens": pool.scheduler.max_batched_tokens,
                "hash_tokens": 512,
            }
            done = subprocess.run(
                [python, str(HERE / "peers" / "dynosim_peer.py")],
                input=json.dumps(case),
                capture_output=True,
                text=True,
                check=True,
                timeout=1200,
                env=os.environ | {"DYN_LOG": "error"},
            )
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return figures | {"error": str(said).strip().splitlines()[-1]}
    for name, answer in json.loads(done.stdout).items():
        figures[f"{name}_requests_per_s"] = answer["completed"] / answer["cpu_s"]
        figures[name] = answer
    return figures | {"version": DYNOSIM[0].split("==")[1]}


def as_mooncake(file: Path, folder: Path) -> Path:
    """A trace without prefixes in the form that DynoSim reads: every block is of its own."""
    requests = simulated(load_workload(file))
    path, begin = folder / "trace.jsonl", 0
    with path.open("w") as out:
        for arrival_ns, prompt, output in zip(
            requests.arrival_ns.tolist(),
            requests.prompt_tokens.tolist(),
            requests.output_tokens.tolist(),
            strict=True,
        ):
            blocks = -(-prompt // 512)
            row = {"timestamp": arrival_ns / 1e6, "input_length": prompt, "output_length": output}
            out.write(json.dumps(row | {"hash_ids": list(range(begin, begin + blocks))}) + "\n")
            begin += blocks
    return path


def environment(folder: Path) -> Path:
    """The Python of DynoSim's own environment, made where it is missing."""
    python = folder / "bin" / "python"
    marker = folder / "installed"
    wanted = " ".join((*DYNOSIM, *DYNOSIM_NEEDS))
    if not marker.is_file() or marker.read_text() != wanted:
        print(f"installing {wanted} into {folder} ...", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "--no-deps", *DYNOSIM], check=True, capture_output=True, text=True)
        subprocess.run([*pip, *DYNOSIM_NEEDS], check=True, capture_output=True, text=True)
        marker.write_text(wanted)
    return python


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures for people."""
    text = []
    for name, value in figures.items():
        if isinstance(value, dict):
            text += [f"{name}:"] + [f"  {inner}: {json.dumps(held)}" for inner, held in value.items()]
        else:
            text.append(f"{name}: {value:,.4g}" if isinstance(value, float) else f"{name}: {value}")
    return text


if __name__ == "__main__":
    main()
