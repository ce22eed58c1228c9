"""How fast and how well layouts are priced, beside two peers from the package index.

    python benchmarks/planner.py [--json] [--data training.csv] [--no-peers]

Speed: layouts priced a second on one core (each with its whole time and memory, none pruned), and the search
over all layouts of GPT-3 175B on 1,024 chips and of DeepSeek-V3 (671B) on 2,048, on two cores. Accuracy: step
times of the runs in a table with the columns of a table of training runs, the same rows for everyone. The
peers are installed into environments of their own under `.benchmarks/`, once.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np

from groundplane.catalog import resolve_cluster, resolve_llm
from groundplane.design.layout_space import LayoutSpace
from groundplane.design.parallelism import MAX_BLOCK, search
from groundplane.design.training_search import TrainingPricer
from groundplane.perfmodel.memory_profile import memory_profile
from groundplane.perfmodel.profiles import stack_profile, training_calibration
from groundplane.perfmodel.strategy import RECOMPUTE
from groundplane.perfmodel.training import TrainingJob

HERE = Path(__file__).resolve().parent
PEERS = {"llm-analysis": "llm-analysis==0.2.2", "mlsysim": "mlsysim==0.3.0"}
PRICED = 400_000
COMPARED = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--data", type=Path, help="table of training runs to compare step times on")
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out")
    parser.add_argument(
        "--envs", type=Path, default=HERE.parent / ".benchmarks", help="where peers are installed"
    )
    options = parser.parse_args()
    figures = speed()
    cases, ours = accuracy_cases(options.data)
    if cases:
        figures["accuracy"] = {"groundplane": errors(ours, cases)}
    if not options.no_peers:
        figures["peers"] = peers(options.envs, cases or [probe_case()])
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for line in lines(figures):
        print(line)


def speed() -> dict[str, Any]:
    """Rates and search times of our own."""
    dense, dense_pricer = study("gpt3-175b", "a100x1024", 1024, 1536, 2048)
    mixture, mixture_pricer = study("deepseek-v3", "h100x2048", 2048, 8192, 4096)
    figures: dict[str, Any] = {"layouts_per_s_per_core": rate(dense, dense_pricer)}
    figures["layouts_per_s_per_core_moe"] = rate(mixture, mixture_pricer)
    figures["largest_deviation_alone"] = alone(dense, dense_pricer)
    for name, space, pricer in (
        ("gpt3_175b_1024", dense, dense_pricer),
        ("moe_671b_2048", mixture, mixture_pricer),
    ):
        start = time.perf_counter()
        result = search(space, pricer, workers=2)
        figures[f"{name}_all_layouts_s"] = time.perf_counter() - start
        figures[f"{name}_layouts"] = result.num_layouts
        figures[f"{name}_priced"] = result.num_priced
        figures[f"{name}_best"] = result.best.layouts.describe(0) if len(result.best) else None
    figures["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return figures


def study(model: str, cluster: str, chips: int, batch: int, seq: int) -> tuple[LayoutSpace, TrainingPricer]:
    job = TrainingJob(resolve_llm(model), seq)
    space = LayoutSpace(job, chips, batch, {})
    return space, TrainingPricer(
        job, resolve_cluster(cluster), stack_profile("megatron-core"), memory_profile("megatron-core")
    )


def rate(space: LayoutSpace, pricer: TrainingPricer) -> float:
    """Layouts a second of one core's time: groups from all over the space, none of their layouts left out."""
    groups = space.groups()
    chosen = np.random.default_rng(1).permutation(len(groups))
    members = np.cumsum(space.num_members(groups.take(chosen)))
    some = np.sort(chosen[: int(np.searchsorted(members, PRICED)) + 1])
    layouts, _ = space.expand(groups.take(some))
    count = min(PRICED, len(layouts))
    start = time.process_time()
    for begin in range(0, count, MAX_BLOCK):
        block = layouts.take(np.arange(begin, min(begin + MAX_BLOCK, count)))
        pricer.memory_bytes(block)
        pricer.step_times(block)
    return count / (time.process_time() - start)


def alone(space: LayoutSpace, pricer: TrainingPricer) -> float:
    """Largest relative difference between layouts priced among many and each by itself."""
    random = np.random.default_rng(0)
    groups = space.groups()
    layouts, _ = space.expand(groups.take(random.choice(len(groups), size=COMPARED, replace=False)))
    layouts = layouts.take(random.choice(len(layouts), size=COMPARED, replace=False))
    together = pricer.step_times(layouts).step_s
    single = [
        float(pricer.step_times(layouts.take(np.array([index]))).step_s[0]) for index in range(len(layouts))
    ]
    return float(np.max(np.abs(together / np.array(single) - 1.0)))


def accuracy_cases(data: Path | None) -> tuple[list[dict[str, Any]], list[float]]:
    """Complete runs of a table as plain cases with the measured time, and our own step times for them."""
    if data is None:
        return [], []
    from groundplane.perfmodel.case_prices import CasePricer
    from groundplane.perfmodel.published import COLUMNS, Case, case_of, runs_of
    from groundplane.perfmodel.validation.table import read_table

    runs = runs_of(read_table(data, COLUMNS))
    found = [case for case in (case_of(run) for run in runs) if isinstance(case, Case) and case.complete]
    ours = CasePricer(found).step_s(training_calibration().by_name())
    return [plain_case(case) for case in found], [float(value) for value in ours]


def plain_case(case: Any) -> dict[str, Any]:
    """A published run as the peers take it."""
    layout = case.layouts[0]
    size = {
        name: int(layout.get(name, 1)) for name in ("tp", "pp", "dp", "ep", "vpp", "micro_batch", "num_micro")
    }
    return shaped(case.model, case.cluster, case.seq) | size | {
        "measured_s": case.measured_s,
        "global_batch": int(case.global_batch),
        "zero": int(layout.get("zero", 0)),
        "sequence_parallel": bool(layout.get("sequence_parallel", 0)),
        "recompute": RECOMPUTE[int(layout.get("recompute", 0))],
    }  # fmt: skip


def probe_case() -> dict[str, Any]:
    """One case to time the peers with where there is no table."""
    shape = shaped(resolve_llm("gpt3-175b"), resolve_cluster("a100x512"), 2048)
    return shape | {
        "tp": 8, "pp": 8, "dp": 8, "ep": 1, "vpp": 1, "micro_batch": 1, "num_micro": 64, "global_batch": 512,
        "zero": 0, "sequence_parallel": True, "recompute": "selective", "measured_s": None,
    }  # fmt: skip


def shaped(model: Any, cluster: Any, seq: int) -> dict[str, Any]:
    """What a case is besides its layout: the model's and the chips' sizes."""
    layer = model.layers[-1]
    block = layer.mlp or layer.moe
    chip, server = cluster.chip, cluster.server
    count = model.parameters()
    return {
        "model": model.name,
        "layers": model.num_layers,
        "hidden": model.hidden,
        "heads": layer.attention.heads,
        "kv_heads": layer.attention.kv_heads,
        "ffn": layer.mlp.ffn if layer.mlp else layer.moe.expert_ffn,
        "gated": block.gated,
        "vocab": model.vocab,
        "seq": seq,
        "experts": layer.moe.experts if layer.moe else 1,
        "top_k": layer.moe.top_k if layer.moe else 1,
        "parameters": count.total,
        "active_parameters": count.active,
        "chip": chip.name,
        "memory_gb": chip.memory_bytes / 2**30,
        "memory_gb_per_s": chip.memory_bytes_per_s / 1e9,
        "scaleup_gb_per_s": (chip.scaleup_bytes_per_s or chip.pcie_bytes_per_s or 25e9) / 1e9,
        "peak_tflops": chip.peak("bf16") / 1e12,
        "nic_gb_per_s": max(server.nic_bytes_per_s / server.num_chips, 1e9) / 1e9,
        "chips_per_node": server.num_chips,
        "nodes": cluster.num_nodes,
    }


def peers(folder: Path, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Each peer's rate and, where times were measured, its errors: as shipped, and with one factor fitted."""
    figures = {}
    for name, requirement in PEERS.items():
        python = environment(folder / name, requirement)
        script = HERE / "peers" / f"{name.replace('-', '_')}_peer.py"
        timed = cases * max(1, 50 // len(cases))
        done = subprocess.run(
            [python, str(script)],
            input=json.dumps(timed),
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if done.returncode:
            figures[name] = {"error": done.stderr.strip().splitlines()[-1:]}
            continue
        answer = json.loads(done.stdout)
        figures[name] = {
            "version": requirement.split("==")[1],
            "layouts_per_s_per_core": answer["cases_per_s"],
        }
        if cases[0]["measured_s"] is not None:
            figures[name] |= errors(answer["step_s"][: len(cases)], cases)
    return figures


def environment(folder: Path, requirement: str) -> Path:
    """The Python of a peer's own environment, made where it is missing."""
    python = folder / "bin" / "python"
    marker = folder / "installed"
    if not marker.is_file() or marker.read_text() != requirement:
        print(f"installing {requirement} into {folder} ...", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", requirement], check=True, stdout=sys.stderr)
        marker.write_text(requirement)
    return python


def errors(predicted: list[Any], cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Absolute errors in per cent over the cases that were priced, as shipped and with one factor fitted."""
    pairs = [(value, case["measured_s"]) for value, case in zip(predicted, cases, strict=True) if value]
    if not pairs:
        return {"n": 0}
    ratio = np.array([value / measured for value, measured in pairs])
    fitted = ratio / np.median(ratio)
    return {
        "n": len(pairs),
        "refused": len(cases) - len(pairs),
        "median_abs_pct": float(100 * np.median(np.abs(ratio - 1))),
        "mean_abs_pct": float(100 * np.mean(np.abs(ratio - 1))),
        "median_abs_pct_one_factor": float(100 * np.median(np.abs(fitted - 1))),
        "mean_abs_pct_one_factor": float(100 * np.mean(np.abs(fitted - 1))),
    }


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
