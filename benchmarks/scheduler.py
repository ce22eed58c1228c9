"""How fast the control core decides: placements a second, gangs, latency, whole replays, and how it grows.

    python benchmarks/scheduler.py [--json] [--quick] [--only NAME ...]

One core of this machine. All times are CPU time, so that neighbours do not count; the latency of one decision
is that of one call of `handle`, all calls counted. The replay of the Philly arrivals needs
the folder of reference data (GROUNDPLANE_SHARED, or `../shared` beside the project) and is null without it.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import os
import random
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from groundplane.control import events as ev
from groundplane.control.actions import StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import Gang, PolicySet, PreemptionRules, QueueRule, RestartPolicy
from groundplane.control.policy import policy_event
from groundplane.sim.cluster import run_cluster
from groundplane.sim.traces import read_gavel
from groundplane.sim.workload import gang_of, generate
from groundplane.spec.policy import named_policy

S = 1_000_000_000
HERE = Path(__file__).resolve().parent
NUM_NODES = 10_000
DEVICES = 8
RESTART = RestartPolicy(3, S, S)
QUEUES = tuple(f"q{number}" for number in range(8))
SMALL = (1, 1, 1, 2, 2, 4, 8)
MIXED = (*SMALL, *SMALL, 16, 16, 32, 64, 128, 256)
GROWTH = (100, 300, 1_000, 3_000, 10_000)


class Load:
    """A full cluster with a backlog: works end as predicted, and others take their place.

    The order is that of the default policy, over queues with weights, guarantees and limits, and preemption.
    """

    def __init__(self, num_nodes: int, sizes: tuple[int, ...], seed: int = 0) -> None:
        self.core = ControlCore()
        self.latencies_s: list[float] = []
        self.num_placed = 0
        self._now_ns = 0
        self._pick = random.Random(seed)
        self._sizes = [size for size in sizes if size <= num_nodes * DEVICES // 4]
        self._gangs = {size: gang_of(size, DEVICES) for size in self._sizes}
        self._ends: list[tuple[int, str, int]] = []
        self._num_jobs = 0
        for number in range(num_nodes):
            topology = (f"spine{number // 512}", f"rack{number // 32}")
            self._give(ev.NodeJoined(f"n{number}", "gpu", DEVICES, 1 << 40, 1, topology))
        quota = num_nodes * DEVICES // 16
        rules = [QueueRule("left"), QueueRule("right", weight=2)]
        for number, queue in enumerate(QUEUES):
            parent = "left" if number % 2 else "right"
            rules.append(QueueRule(queue, parent, 1 + number % 3, quota, 8 * quota))
        order = policy_event(named_policy("default")).order
        self._give(PolicySet(tuple(rules), 86_400 * S, order, PreemptionRules()))

    def fill(self, num_devices: int) -> None:
        """Submits until so many devices are held."""
        while self.core.pools.num_free() > NUM_NODES * DEVICES - num_devices:
            self._submit()

    def keep_waiting(self, backlog: int) -> None:
        """Submits until so many wait."""
        while len(self.core.queue) < backlog:
            self._submit()

    def run(self, num_placements: int, backlog: int) -> float:
        """Ends works one by one with the backlog kept; the answer is CPU time."""
        self.keep_waiting(backlog)
        self.latencies_s.clear()
        self.num_placed = 0
        begin_s = time.process_time()
        while self.num_placed < num_placements:
            self._now_ns, work_id, fence = heapq.heappop(self._ends)
            self._give(ev.WorkStarted(work_id, fence))
            self._give(ev.WorkGone(work_id, fence, "succeeded"))
            self.keep_waiting(backlog)
        return time.process_time() - begin_s

    def place(self, size: int) -> float:
        """CPU time of placing one more gang, which must have room."""
        self._num_jobs += 1
        before = self.num_placed
        self._give(self._job(size))
        if self.num_placed == before:
            raise SystemExit(f"a gang of {size} found no room")
        return self.latencies_s[-1]

    def _submit(self) -> None:
        self._num_jobs += 1
        self._give(self._job(self._pick.choice(self._sizes)))

    def _job(self, size: int) -> ev.JobSubmitted:
        gang = self._gangs.get(size) or Gang(size // DEVICES, DEVICES, 0)
        queue = self._pick.choice(QUEUES)
        predicted_ns = int(self._pick.expovariate(1 / 3600) * S) + S
        name = f"j{self._num_jobs}"
        return ev.JobSubmitted(name, "job", queue, 0, gang, RESTART, S, 0, predicted_ns)

    def _give(self, event: ev.AnyEvent) -> None:
        begin_s = time.process_time()
        actions = self.core.handle(self._now_ns, event)
        self.latencies_s.append(time.process_time() - begin_s)
        for action in actions:
            if isinstance(action, StartWork):
                self.num_placed += 1
                end_ns = self._now_ns + self.core.state.jobs[action.owner_id].predicted_run_ns
                heapq.heappush(self._ends, (end_ns, action.work_id, action.fence))


def placements(quick: bool) -> dict[str, Any]:
    """Single-node jobs on a full cluster with queues and quotas."""
    num = 1_000 if quick else 10_000
    return {"placements_per_s": num / Load(NUM_NODES, SMALL).run(num, 1_000)}


def gang(quick: bool) -> dict[str, Any]:
    """A gang of 2,048 on a cluster that small jobs fill by a half."""
    load = Load(NUM_NODES, SMALL)
    load.fill(NUM_NODES * DEVICES // 2)
    times_s = [load.place(2048) for _ in range(3 if quick else 7)]
    return {"gang_2048_place_ms": statistics.median(times_s) * 1e3}


def latency(quick: bool) -> dict[str, Any]:
    """Every decision with 10,000 jobs waiting, gangs of up to 256 among them."""
    load = Load(NUM_NODES, MIXED)
    load.run(500 if quick else 5_000, 10_000)
    ordered = sorted(load.latencies_s)
    return {
        "decision_p50_ms": ordered[len(ordered) // 2] * 1e3,
        "decision_p99_ms": ordered[len(ordered) * 99 // 100] * 1e3,
        "decision_max_ms": ordered[-1] * 1e3,
        "decisions": len(ordered),
    }


def philly(quick: bool) -> dict[str, Any]:  # noqa: ARG001 - one size
    """The Philly arrivals on 256 nodes, arriving as fast as makes the load 0.9."""
    shared = Path(os.environ.get("GROUNDPLANE_SHARED", HERE.parent.parent / "shared")) / "traces"
    traces = sorted((shared / "philly-gavel").glob("*.trace"))
    if not traces:
        return {"philly_replay_s": None}
    num_nodes, run_times = 256, shared / "philly-runtimes" / "philly_runtime.csv"
    jobs = read_gavel(traces, run_times=run_times, devices_per_node=DEVICES, seed=0)
    asked_ns = sum(job.gang.num_ranks * job.gang.devices_per_rank * job.run_ns for job in jobs)
    load = asked_ns / (jobs[-1].submit_ns * num_nodes * DEVICES)
    jobs = read_gavel(
        traces, run_times=run_times, devices_per_node=DEVICES, seed=0, speed=max(1.0, 0.9 / load)
    )
    begin_s = time.process_time()
    run_cluster(num_nodes=num_nodes, devices_per_node=DEVICES, jobs=jobs)
    return {"philly_replay_s": time.process_time() - begin_s, "philly_jobs": len(jobs)}


def million(quick: bool) -> dict[str, Any]:
    """Generated jobs on 80,000 devices at a load of 0.9, simulated to their end."""
    num_jobs = 10_000 if quick else 1_000_000
    begin_s = time.process_time()
    jobs = generate(num_jobs=num_jobs, load=0.9, num_nodes=NUM_NODES, devices_per_node=DEVICES, seed=0)
    run_cluster(num_nodes=NUM_NODES, devices_per_node=DEVICES, jobs=jobs)
    cpu_s = time.process_time() - begin_s
    return {"million_jobs_s": cpu_s} if not quick else {"million_jobs_s": None, "ten_thousand_jobs_s": cpu_s}


def growth(quick: bool) -> dict[str, Any]:
    """CPU time of one placement, its reports and submission, by the number of nodes."""
    num = 500 if quick else 2_000
    rows = []
    for num_nodes in GROWTH:
        rows.append({"nodes": num_nodes, "us": Load(num_nodes, SMALL).run(num, 500) / num * 1e6})
    return {"growth": rows}


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "placements": placements,
    "gang": gang,
    "latency": latency,
    "philly": philly,
    "million": million,
    "growth": growth,
}


def main() -> None:
    """Runs the parts asked for and prints their figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, ten thousand jobs")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to run")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in options.only:
        figures |= PARTS[name](options.quick)
        gc.collect()
    figures["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if name == "growth":
            longest = max(row["us"] for row in value)
            for row in value:
                bar = "#" * round(40 * row["us"] / longest)
                print(f"  {row['nodes']:>6} nodes  {row['us']:>7.0f} us a placement  {bar}")
        else:
            print(f"{name:<20} {value if value is None or isinstance(value, int) else round(value, 3)}")


if __name__ == "__main__":
    main()
