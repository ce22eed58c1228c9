"""What a plan emits: launch arguments for engines, and a manifest that Kubernetes' schemas accept."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest
import yaml

from groundplane.catalog.resolve import resolve_cluster
from groundplane.design.deployment_launch import launches
from groundplane.design.deployment_manifest import manifest
from groundplane.spec.deployment import AutoscaleLimits, DeploymentSpec, ReplicaPool

LIMITS = AutoscaleLimits(max_replicas=4, target_requests=30, min_replicas=0)
POOLS = {
    "plain": (ReplicaPool(replicas=3, tp=4),),
    "scaled": (ReplicaPool(replicas=4, tp=2, autoscale=LIMITS),),
    "apart": (
        ReplicaPool(name="prefill", role="prefill", tp=2),
        ReplicaPool(name="decode", role="decode", tp=4),
    ),
    "wide": (ReplicaPool(replicas=2, tp=1, attention_dp=16, ep=16),),
}  # fmt: skip


def spec(pools: str, engine: str = "vllm", **changes: Any) -> DeploymentSpec:
    return DeploymentSpec(
        name="chat_1.2", cluster="h200x64", pools=POOLS[pools], model="deepseek-v3", engine=engine,
        weights="fp8", cache="fp8", **changes,
    )  # fmt: skip


def option(command: tuple[str, ...], name: str) -> str:
    return command[command.index(name) + 1]


def test_vllm_arguments() -> None:
    (launch,) = launches(spec("wide"), "/models/deepseek-v3", 9000, 8)
    assert launch.vllm[:3] == ("vllm", "serve", "/models/deepseek-v3")
    assert option(launch.vllm, "--tensor-parallel-size") == "1"
    assert option(launch.vllm, "--data-parallel-size") == "16"
    assert "--enable-expert-parallel" in launch.vllm
    assert option(launch.vllm, "--max-num-seqs") == "256"
    assert option(launch.vllm, "--max-num-batched-tokens") == "8192"
    assert option(launch.vllm, "--max-model-len") == "9000"
    assert option(launch.vllm, "--kv-cache-dtype") == "fp8"
    assert option(launch.vllm, "--quantization") == "fp8"
    (published,) = launches(spec("wide"), "/models/deepseek-v3", 9000, 8, native="fp8")
    assert "--quantization" not in published.vllm + published.sglang
    assert "--enable-prefix-caching" in launch.vllm
    assert any("spans 2 servers" in note for note in launch.notes)
    prefill, _ = launches(spec("apart", prefix_cache=False), "/m", 9000, 8)
    assert json.loads(option(prefill.vllm, "--kv-transfer-config"))["kv_connector"] == "NixlConnector"
    assert "--no-enable-prefix-caching" in prefill.vllm


def test_sglang_arguments() -> None:
    (launch,) = launches(spec("wide"), "/models/deepseek-v3", 9000, 8)
    assert option(launch.sglang, "--tp-size") == "16"
    assert option(launch.sglang, "--dp-size") == "16"
    assert "--enable-dp-attention" in launch.sglang
    assert option(launch.sglang, "--max-running-requests") == str(256 * 16)
    assert option(launch.sglang, "--kv-cache-dtype") == "fp8_e4m3"
    prefill, decode = launches(spec("apart", prefix_cache=False), "/m", 9000, 8)
    assert option(prefill.sglang, "--disaggregation-mode") == "prefill"
    assert option(decode.sglang, "--disaggregation-mode") == "decode"
    assert "--disable-radix-cache" in prefill.sglang
    assert launch.show("sglang").startswith("python -m sglang.launch_server --model-path /models/deepseek-v3")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("pools", POOLS)
def test_manifests_are_valid(pools: str, engine: str) -> None:
    deployment = spec(pools, engine)
    cluster = resolve_cluster("h200x64")
    text = manifest(deployment, cluster, launches(deployment, "/models/deepseek-v3", 9000, 8))
    documents = list(yaml.safe_load_all(text))
    assert "&id" not in text
    kinds = [document["kind"] for document in documents]
    assert kinds.count("Service") == len(POOLS[pools])
    assert ("HorizontalPodAutoscaler" in kinds) == (pools == "scaled")
    for document in documents:
        if document["kind"] == "LeaderWorkerSet":
            template = document["spec"]["leaderWorkerTemplate"]
            assert template["size"] == 2
            # The operator's own kind has no schema here; the pods within are Kubernetes' own.
            for part in ("leaderTemplate", "workerTemplate"):
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}} | {
                    "spec": template[part]["spec"]
                }
                kubernetes_validate.validate(pod, "1.31", strict=True)
        else:
            kubernetes_validate.validate(document, "1.31", strict=True)
            assert len(document["metadata"]["name"]) <= 63
    first = documents[0]
    if first["kind"] == "Deployment":
        container = first["spec"]["template"]["spec"]["containers"][0]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": str(POOLS[pools][0].num_chips)}
        assert first["spec"]["replicas"] == POOLS[pools][0].replicas
        assert container["command"] + container["args"] == list(
            getattr(launches(deployment, "/models/deepseek-v3", 9000, 8)[0], engine)
        )


def test_other_vendors_have_their_own_resources() -> None:
    deployment = spec("plain")
    text = manifest(deployment, resolve_cluster("mi300xx8"), launches(deployment, "/m", 100, 8))
    limits = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]["containers"][0]["resources"][
        "limits"
    ]
    assert limits == {"amd.com/gpu": "4"}
