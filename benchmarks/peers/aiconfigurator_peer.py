"""Estimates serving runs with AIConfigurator, in that package's own environment: JSON in and out.

Reads {"cases": [...], "seconds": limit} on standard input (see `benchmarks/serving_accuracy.py`); writes for
each case [time to first token, time per token] in seconds, or null where the package gives none. Aggregated
runs only. What it prints itself goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from typing import Any

logging.disable(logging.CRITICAL)

from aiconfigurator.cli.api import cli_estimate  # noqa: E402


def main() -> None:
    given = json.load(sys.stdin)
    begin = time.process_time()
    answer: list[list[float] | None] = []
    reasons: dict[str, int] = {}
    with contextlib.redirect_stdout(sys.stderr):
        for case in given["cases"]:
            late = time.process_time() - begin > given["seconds"]
            answer.append(None if late else estimate(case, reasons))
    used_s = time.process_time() - begin
    json.dump({"times": answer, "cpu_s": used_s, "reasons": reasons}, sys.stdout)


def estimate(case: dict[str, Any], reasons: dict[str, int]) -> list[float] | None:
    """One run, by the database of measurements first, else by the package's own fallback."""
    for database in ("SILICON", "HYBRID"):
        try:
            found = cli_estimate(
                case["model"],
                case["system"],
                backend_name=case["backend"],
                database_mode=database,
                isl=case["isl"],
                osl=case["osl"],
                batch_size=case["batch"],
                tp_size=case["tp"],
                attention_dp_size=case["dp"],
                moe_tp_size=case["moe_tp"],
                moe_ep_size=case["moe_ep"],
                gemm_quant_mode=case["gemm"],
                moe_quant_mode=case["moe"],
            )
        except Exception as error:  # noqa: BLE001  whatever the peer raises: the row has no estimate
            last = f"{type(error).__name__}: {error}"[:80]
            continue
        if found.ttft > 0 and found.tpot > 0:
            return [float(found.ttft) * 1e-3, float(found.tpot) * 1e-3]
        last = "no positive times"
    reasons[last] = reasons.get(last, 0) + 1
    return None


if __name__ == "__main__":
    main()
