"""Prices cases with mlsysim's `DistributedModel`, in that package's own environment.

JSON cases in, JSON seconds out, as `llm_analysis_peer.py`. Its compute efficiency is left as shipped (0.5).
"""

from __future__ import annotations

import json
import sys
import time
import warnings

from mlsysim.core.units import Q_
from mlsysim.engine.solvers.distributed import DistributedModel
from mlsysim.hardware.types import ComputeCore, HardwareNode, IOInterconnect, MemoryHierarchy
from mlsysim.models.types import SparseTransformerWorkload, TransformerWorkload
from mlsysim.systems.types import Fleet, NetworkFabric, Node


def price(case: dict) -> float:
    shape = {
        "name": case["model"],
        "architecture": "Transformer",
        "parameters": Q_(case["parameters"], "count"),
        "layers": case["layers"],
        "hidden_dim": case["hidden"],
        "heads": case["heads"],
        "kv_heads": case["kv_heads"],
    }
    if case["experts"] > 1:
        model = SparseTransformerWorkload(
            **shape,
            active_parameters=Q_(case["active_parameters"], "count"),
            experts=case["experts"],
            active_experts_per_token=case["top_k"],
        )
    else:
        model = TransformerWorkload(**shape)
    peak = Q_(case["peak_tflops"] * 1e12, "flop/s")
    chip = HardwareNode(
        name=case["chip"],
        release_year=2022,
        compute=ComputeCore(peak_flops=peak, precision_flops={"fp16": peak}),
        memory=MemoryHierarchy(
            capacity=Q_(case["memory_gb"], "GB"), bandwidth=Q_(case["memory_gb_per_s"], "GB/s")
        ),
        nvlink=IOInterconnect(name="links", bandwidth=Q_(case["scaleup_gb_per_s"], "GB/s")),
    )
    node = Node(
        name="node",
        accelerator=chip,
        accelerators_per_node=case["chips_per_node"],
        intra_node_bw=Q_(case["scaleup_gb_per_s"], "GB/s"),
    )
    fabric = NetworkFabric(
        name="fabric", bandwidth=Q_(case["nic_gb_per_s"], "GB/s"), latency=Q_(5, "microsecond")
    )
    fleet = Fleet(name="fleet", node=node, count=case["nodes"], fabric=fabric)
    result = DistributedModel().solve(
        model,
        fleet,
        batch_size=case["global_batch"],
        precision="fp16",
        tp_size=case["tp"],
        pp_size=case["pp"],
        ep_size=1,
        v_stages=case["vpp"],
        microbatch_count=case["num_micro"],
        zero_stage=case["zero"],
        activation_recomputation=case["recompute"] == "full",
        overlap_comm=True,
        seq_len=case["seq"],
    )
    return float(result.step_latency_total.to("s").magnitude)


def main() -> None:
    warnings.simplefilter("ignore")
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
