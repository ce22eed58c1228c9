"""How well the default policy places: against FIFO, backfill and fair share, on the Philly arrivals.

    python benchmarks/cluster_quality.py [--json] [--loads 0.7 0.95] [--seeds 5] [--nodes 32]

Arrivals and gang sizes are those of eight virtual clusters of Microsoft's Philly (8,328 jobs, as Gavel has
them), each a queue; run times are drawn anew for each seed from Philly's 83,154 measured ones. The same jobs,
on the same nodes of eight devices, are simulated under each policy with the control core that runs real jobs.
Figures are means over the seeds. `gaps` says by how much the default policy is worse (above 0) or better
(below) than each other one. Needs the folder of reference data (GROUNDPLANE_SHARED, or `../shared` beside the
project).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from groundplane.sim.scenario import Question, ask, place_of
from groundplane.sim.traces import TraceOptions, read_trace
from groundplane.sim.workload import at_load

OTHERS = ("fifo", "backfill", "fair-share")
OURS = "default"
FIGURES = ("mean_wait_s", "p95_wait_s", "fragmentation", "jain", "large_gang_wait_s", "utilisation")
NOT_WORSE = ("mean_wait_s", "p95_wait_s", "fragmentation", "jain")
WORSE_BY = 0.03
BETTER_BY = 0.20


def compare(
    shared: Path, load: float, seeds: range, num_nodes: int, prediction_error: float
) -> dict[str, Any]:
    """Figures of each policy at one load, and the gaps between the default policy and the others."""
    traces = shared / "traces"
    place = place_of(f"{num_nodes}x8")
    rows: dict[str, list[list[float]]] = {name: [] for name in (*OTHERS, OURS)}
    for seed in seeds:
        options = TraceOptions(
            8, seed, traces / "philly-runtimes" / "philly_runtime.csv", prediction_sigma=prediction_error
        )
        jobs = at_load(read_trace(traces / "philly-gavel", options), load, place.num_devices)
        for answer in ask(Question(place, jobs, (*OTHERS, OURS), seed)):
            rows[answer.summary.policy].append([getattr(answer.summary, name) for name in FIGURES])
    means = {
        name: dict(zip(FIGURES, np.mean(values, axis=0).tolist(), strict=True))
        for name, values in rows.items()
    }
    gaps = {other: {name: gap(means, other, name) for name in FIGURES} for other in OTHERS}
    return {"load": load, "policies": means, "gaps": gaps}


def gap(means: dict[str, dict[str, float]], other: str, name: str) -> float:
    """Relative: above 0 where ours is worse. Of Jain's index and utilisation more is better."""
    mine, theirs = means[OURS][name], means[other][name]
    change = (mine - theirs) / theirs if theirs else float(mine > 0)
    return -change if name in ("jain", "utilisation") else change


def main() -> int:
    """Runs all loads and prints figures, gaps and whether the targets are met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.7, 0.8, 0.9, 0.95])
    parser.add_argument("--seeds", type=int, default=5, help="how many draws of run times")
    parser.add_argument("--nodes", type=int, default=32, help="nodes of eight devices")
    parser.add_argument(
        "--prediction-error", type=float, default=0.0, help="log-normal spread of predictions"
    )
    options = parser.parse_args()
    beside = Path(__file__).resolve().parent.parent.parent / "shared"
    shared = Path(os.environ.get("GROUNDPLANE_SHARED", beside))
    if not (shared / "traces").is_dir():
        print(f"no reference data in {shared}", file=sys.stderr)
        return 2
    begin_s = time.process_time()
    results = [
        compare(shared, load, range(options.seeds), options.nodes, options.prediction_error)
        for load in options.loads
    ]
    worst = max(row["gaps"][other][name] for row in results for other in OTHERS for name in NOT_WORSE)
    large = max(row["gaps"]["backfill"]["large_gang_wait_s"] for row in results)
    report = {
        "loads": results,
        "seeds": options.seeds,
        "devices": options.nodes * 8,
        "prediction_error": options.prediction_error,
        "worst_gap": worst,
        "large_gang_gain_over_backfill": -large,
        "is_met": worst <= WORSE_BY and -large >= BETTER_BY,
        "cpu_s": time.process_time() - begin_s,
    }
    if options.json:
        print(json.dumps(report))
    else:
        show(report)
    return 0 if report["is_met"] else 1


def show(report: dict[str, Any]) -> None:
    """The report as a table."""
    for row in report["loads"]:
        print(f"load {row['load']}: mean wait h, p95 h, gangs >= 16 h, fragmentation %, Jain, utilisation %")
        for name, means in row["policies"].items():
            print(
                f"  {name:<11} {means['mean_wait_s'] / 3600:8.2f} {means['p95_wait_s'] / 3600:8.2f} "
                f"{means['large_gang_wait_s'] / 3600:8.2f} {100 * means['fragmentation']:8.2f} "
                f"{means['jain']:8.3f} {100 * means['utilisation']:8.1f}"
            )
    print(f"worst gap of the default policy, on any figure: {100 * report['worst_gap']:+.1f} % (at most +3)")
    gain = 100 * report["large_gang_gain_over_backfill"]
    print(f"shorter wait of gangs >= 16 than backfill, at least: {gain:.1f} % (at least 20)")
    print(f"{report['cpu_s']:.0f} s of CPU time")


if __name__ == "__main__":
    raise SystemExit(main())
