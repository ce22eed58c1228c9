"""Prices cases with llm-analysis, in that package's own environment: JSON cases in, JSON seconds out.

Reads a list of cases on standard input (see `benchmarks/planner.py`), writes step times in their order (null
where the package refuses a case) and how many it priced a second.
"""

from __future__ import annotations

import json
import logging
import sys
import time

from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import DtypeConfig, GPUConfig, ModelConfig, ParallelismConfig

RECOMPUTE = {
    "none": ActivationRecomputation.NONE,
    "selective": ActivationRecomputation.SELECTIVE,
    "full": ActivationRecomputation.FULL,
    "block": ActivationRecomputation.FULL,
}


def price(case: dict) -> float:
    model = ModelConfig(
        name=case["model"],
        num_layers=case["layers"],
        n_head=case["heads"],
        hidden_dim=case["hidden"],
        vocab_size=case["vocab"],
        max_seq_len=case["seq"],
        num_key_value_heads=case["kv_heads"],
        ffn_embed_dim=case["ffn"],
        expansion_ratio=case["ffn"] / case["hidden"],
        moe_num_experts=case["experts"],
        moe_top_k=case["top_k"],
    )
    chip = GPUConfig(
        name=case["chip"],
        mem_per_GPU_in_GB=case["memory_gb"],
        hbm_bandwidth_in_GB_per_sec=case["memory_gb_per_s"],
        intra_node_bandwidth_in_GB_per_sec=case["scaleup_gb_per_s"],
        intra_node_min_message_latency=8e-6,
        peak_fp16_TFLOPS=case["peak_tflops"],
        inter_node_bandwidth_in_GB_per_sec=case["nic_gb_per_s"],
    )
    layout = ParallelismConfig(
        tp_size=case["tp"], pp_size=case["pp"], dp_size=case["dp"], ep_size=case["ep"],
        sp_size=case["tp"] if case["sequence_parallel"] else 1,
    )  # fmt: skip
    analysis = LLMAnalysis(model, chip, DtypeConfig(), layout)
    result = analysis.training(
        batch_size_per_gpu=case["micro_batch"],
        gradient_accumulation_steps=case["num_micro"],
        seq_len=case["seq"],
        activation_recomputation=RECOMPUTE[case["recompute"]],
        ds_zero=DSZeRO(case["zero"]),
        flash_attn=True,
        mlp_gated_linear_units=case["gated"],
    )
    return float(result["latency_per_iter"])


def main() -> None:
    logging.disable(logging.CRITICAL)
    cases = json.load(sys.stdin)
    seconds: list[float | None] = []
    start = time.process_time()
    for case in cases:
        try:
            seconds.append(price(case))
        except Exception as error:  # noqa: BLE001  a peer's refusals come in every shape
            print(f"{case['model']}: {type(error).__name__}: {error}", file=sys.stderr)
            seconds.append(None)
    spent = time.process_time() - start
    json.dump({"step_s": seconds, "cases_per_s": len(cases) / spent}, sys.stdout)


if __name__ == "__main__":
    main()
