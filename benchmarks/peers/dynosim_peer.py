"""Replays traces with DynoSim (package ai-dynamo), in that package's own environment: JSON in and out.

Reads {"traces": {name: file}, "workers", "block_tokens", "num_blocks", "max_sequences", "max_batched_tokens",
"hash_tokens"} on standard input (see `benchmarks/serving_sim.py`); writes requests and CPU seconds of each.
Files are of the form of the Mooncake trace. Times are DynoSim's own polynomials: only its speed is compared.
"""

from __future__ import annotations

import json
import sys
import time

from dynamo.replay import run_trace_replay


def main() -> None:
    case = json.load(sys.stdin)
    engine = {
        "engine": {
            "backend": "vllm",
            "block_size": case["block_tokens"],
            "num_gpu_blocks": case["num_blocks"],
            "max_num_seqs": case["max_sequences"],
            "max_num_batched_tokens": case["max_batched_tokens"],
            "enable_prefix_caching": True,
            "enable_chunked_prefill": True,
        }
    }
    answer = {}
    for name, file in case["traces"].items():
        begin, wall = time.process_time(), time.perf_counter()
        report = run_trace_replay(
            file,
            extra_engine_args=engine,
            num_workers=case["workers"],
            router_mode="kv_router",
            trace_block_size=case["hash_tokens"],
        )
        cpu_s, wall_s = time.process_time() - begin, time.perf_counter() - wall
        summary = report if isinstance(report, dict) else report.summary
        completed = summary["completed_requests"]
        answer[name] = {"completed": completed, "cpu_s": cpu_s, "wall_s": wall_s}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
