"""How long the search for a deployment takes: a 70B model and a 671B mixture on 64 H200 under an SLO.

Each search runs in a process of its own, start and imports counted, caches of compiled code warm (the first
run fills them). `--json` prints one object.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

SEARCHES = {
    "llama-3.1-70b": ("--rate 50 --isl 1000 --osl 200", "ttft_p99=800ms,tpot_p99=50ms"),
    "deepseek-v3": ("--rate 20 --isl 2000 --osl 400", "ttft_p99=2s,tpot_p99=60ms"),
}


def searched(model: str) -> dict[str, Any]:
    """Seconds of wall and CPU time of one search, and what it found."""
    load, slo = SEARCHES[model]
    command = [
        sys.executable, "-m", "groundplane", "plan", "serve", model, "--cluster", "h200x64", *load.split(),
        "--slo", slo, "--json",
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    plan = json.loads(done.stdout)
    return {
        "wall_s": wall_s,
        "cpu_s": after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime,
        "meets_slo": plan["meets_slo"],
        "chips": plan["best"]["chips"] if plan["best"] else None,
        "pools": plan["best"]["pools"] if plan["best"] else None,
        "screened": plan["screened"],
        "candidates": plan["candidates"],
        "simulated": plan["simulated"],
    }


def main() -> None:
    """Runs each search twice and prints the second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {}
    for model in SEARCHES:
        searched(model)
        found[model] = searched(model)
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    for model, one in found.items():
        print(
            f"{model}: {one['wall_s']:.1f} s ({one['cpu_s']:.1f} s of CPU), {one['screened']} engines "
            f"screened, {one['simulated']} deployments simulated; {one['chips']} chips: {one['pools']}"
        )


if __name__ == "__main__":
    main()
