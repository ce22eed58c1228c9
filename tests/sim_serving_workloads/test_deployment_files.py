"""Deployment files: what they become, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from groundplane.perfmodel.serving_profiles import serving_calibration
from groundplane.sim.serving.checkpoint_format import native_weights
from groundplane.sim.serving.described import build_deployment, measured_factor, scaled_table
from groundplane.spec.deployment import DeploymentSpec, ReplicaLoss, ReplicaPool
from groundplane.spec.dump import to_yaml
from groundplane.spec.errors import InputError
from groundplane.spec.load import from_data, load

GOOD: dict[str, Any] = {
    "kind": "deployment",
    "name": "chat",
    "cluster": "h200x16",
    "model": "llama-3.1-70b",
    "weights": "fp8",
    "pools": [
        {
            "name": "serve", "replicas": 2, "tp": 4, "max_sequences": 64, "host_cache": "200 GB",
            "cold_start": {"weights": "2 GB/s", "image": "5 s", "warmup": "7 s"},
            "autoscale": {"min_replicas": 1, "max_replicas": 4, "target_requests": 10},
        }
    ],
    "losses": [{"pool": "serve", "replica": 1, "at": "10 s"}],
}  # fmt: skip


def made(**changes: Any) -> DeploymentSpec:
    return from_data(GOOD | changes, DeploymentSpec)


def test_a_file_becomes_what_is_simulated(tmp_path: Path) -> None:
    built = build_deployment(made())
    pool = built.simulated.pools[0]
    # 70.6 G parameters in one byte each, embeddings in two, over 4 chips; 2 GB/s for all of it.
    assert built.pools[0].capacity.weight_bytes == pytest.approx(18.2e9, rel=0.02)
    assert pool.cold_start.weights_ns == pytest.approx(36.3e9, rel=0.03)
    assert (pool.cold_start.image_ns, pool.cold_start.warmup_ns) == (5 * 10**9, 7 * 10**9)
    # 80 layers, 8 key heads over 4 chips, 128 wide, keys and values of two bytes, 16 tokens.
    block_bytes = 80 * 2 * 2 * 128 * 2 * 16
    assert pool.cache.num_blocks == built.pools[0].capacity.num_blocks
    assert pool.cache.host_blocks == int(50e9 // block_bytes)
    assert pool.link.block_ns == pytest.approx(block_bytes / (50e9 * 0.8) * 1e9, rel=0.01)
    assert (pool.count, pool.max_replicas) == (2, 4)
    assert pool.scheduler.kind == "vllm-v1"
    assert built.simulated.failures[0].at_ns == 10 * 10**9
    assert built.num_chips == 16
    path = tmp_path / "again.yaml"
    path.write_text(to_yaml(made()))
    assert load(path, DeploymentSpec) == made()


def test_ranks_of_attention_are_replicas_of_their_own() -> None:
    pools = (ReplicaPool(replicas=2, tp=1, attention_dp=8, ep=8, max_sequences=32, max_batched_tokens=1024),)
    spec = DeploymentSpec(
        name="moe", cluster="h200x16", pools=pools, model="deepseek-v3", weights="fp8",
        losses=(ReplicaLoss("serve", 1.0, replica=1),),
    )  # fmt: skip
    built = build_deployment(spec)
    assert built.simulated.pools[0].count == 16
    assert built.pools[0].rank_chips == 1
    assert [failure.replica for failure in built.simulated.failures] == list(range(8, 16))
    assert any("lock step" in assumption for assumption in built.assumptions)


def test_equal_pools_share_a_table() -> None:
    pools = tuple(
        ReplicaPool(name=name, role=role, max_sequences=32, max_batched_tokens=1024)
        for name, role in (("p", "prefill"), ("d", "decode"))
    )
    built = build_deployment(DeploymentSpec("pd", "h100x8", pools, model="llama-3.1-8b"))
    assert built.simulated.pools[0].table is built.simulated.pools[1].table


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "llama-3.1-70"}, r"did you mean 'llama-3.1-70b'"),
        ({"cluster": "h201x16"}, r"did you mean"),
        ({"engine": "vlm"}, r"unknown serving engine.*did you mean 'vllm'"),
        ({"weights": "fp7"}, r"unknown format of weights"),
        ({"pools": [{"tp": 16, "replicas": 2}]}, r"need 32 chips at most, and h200x16 has 16"),
        ({"pools": [{"tp": 1}], "weights": "bf16"}, r"pools\[0\]\.tp: leaves no memory"),
        ({"pools": [{"role": "prefill", "tp": 4}], "losses": []}, r"of prefill and decode"),
        ({"losses": [{"pool": "serve", "replica": 9, "at": "1s"}]}, r"losses\[0\]\.replica"),
    ],
)
def test_deployments_that_cannot_be(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        build_deployment(made(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pools": []}, "pools"),
        ({"pools": [{"tp": 4, "ep": 3}]}, r"must divide tp x attention_dp = 4"),
        ({"pools": [{"max_sequences": 512, "max_batched_tokens": 256}]}, r"at least max_sequences = 512"),
        ({"pools": [{"name": "a"}, {"name": "a"}], "losses": []}, r"pools\[1\]\.name: is given twice"),
        ({"model": ""}, r"pools\[0\]\.model: is required"),
        ({"losses": [{"pool": "b", "at": "1s"}]}, r"losses\[0\]\.pool: must be a pool: serve"),
        ({"routing": "prefx"}, r"did you mean 'prefix'"),
        ({"replcas": 2}, r"unknown field"),
        (
            {"pools": [{"autoscale": {"min_replicas": 5, "max_replicas": 2, "target_requests": 1}}]},
            r"at most max",
        ),
    ],
)
def test_files_that_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        made(**changes)


def test_a_model_file_beside_the_deployment(tmp_path: Path) -> None:
    from groundplane.catalog.resolve import model_entry

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_bytes(
        msgspec.json.encode(model_entry("llama-3.1-8b")["config"])
    )
    spec = DeploymentSpec(
        "own", "h100x8", (ReplicaPool(max_sequences=32, max_batched_tokens=1024),), model="mine/config.json"
    )
    assert build_deployment(spec, folder=tmp_path).pools[0].model.hidden == 4096


def test_what_was_measured_on_a_chip_corrects_all_formats_of_a_model_there() -> None:
    calibration = serving_calibration()
    engine, name, chip, weights = next(
        key.split("/") for key in calibration.corrections if key.startswith("vllm/llama-3.1-70b/h200")
    )
    pool = {"tp": 4, "max_sequences": 32, "max_batched_tokens": 1024}

    def factor(**changes: Any) -> float:
        return measured_factor(build_deployment(made(pools=[pool], losses=[], **changes)).pools[0])

    model = calibration.corrections[f"{engine}/{name}"].tpot
    assert factor() == pytest.approx(
        model * calibration.corrections[f"{engine}/{name}/{chip}/{weights}"].tpot
    )
    assert factor(weights="int8") == pytest.approx(model)
    assert factor(cluster="mi300xx8") == 1.0
    plain = build_deployment(made(pools=[pool], losses=[], cluster="mi300xx8")).simulated.pools[0].table
    assert np.array_equal(scaled_table(plain, 2.0).decode_ns, 2 * plain.decode_ns)


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("llama-3.1-70b", "bf16"), ("deepseek-v3", "fp8_block"), ("kimi-k2.5", "fp8_block"),
        ("gpt-oss-120b", "mxfp4"), ("glm-5", "bf16"), ("no-such-model", "bf16"),
    ],
)  # fmt: skip
def test_weights_are_those_published_where_none_are_named(model: str, weights: str) -> None:
    assert native_weights(model) == weights
    if model == "deepseek-v3":
        pool = {"tp": 8, "max_sequences": 32, "max_batched_tokens": 1024}
        spec = made(pools=[pool], losses=[], model=model, weights=None)
        assert build_deployment(spec).pools[0].formats.experts == weights
