"""Launch arguments of a planned deployment for vLLM and SGLang: text for a person to run, tried on neither.

Names of options are those of `vllm serve` (0.10 and later) and `sglang.launch_server` (0.5). What an engine
has no option for is said beside.
"""

from __future__ import annotations

import json
import shlex
from typing import Final

import msgspec

from groundplane.spec.deployment import DeploymentSpec, ReplicaPool

PORT: Final = 8000

_VLLM_WEIGHTS: Final = {"fp8": "fp8", "int8": "compressed-tensors", "fp4": "modelopt_fp4"}
_VLLM_CACHE: Final = {"fp8": "fp8", "int8": "int8"}
_SGLANG_WEIGHTS: Final = {"fp8": "fp8", "int8": "w8a8_int8", "fp4": "modelopt_fp4"}
_SGLANG_CACHE: Final = {"fp8": "fp8_e4m3"}


class Launch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one replica of a pool is started; `notes` say what has to be seen to by hand."""

    pool: str
    replicas: int
    chips: int
    vllm: tuple[str, ...]
    sglang: tuple[str, ...]
    notes: tuple[str, ...]

    def show(self, engine: str) -> str:
        """The command as a shell takes it."""
        return shlex.join(self.sglang if engine == "sglang" else self.vllm)


def launches(
    spec: DeploymentSpec, model_path: str, longest: int, chips_per_server: int, native: str = "bf16"
) -> tuple[Launch, ...]:
    """One launch a pool.

    Args:
        spec: the deployment.
        model_path: what the engine loads: a folder or a name of a model hub.
        longest: tokens of the longest request.
        chips_per_server: beyond them a replica spans servers.
        native: format of the published checkpoint, which needs no option.
    """
    return tuple(_launch(spec, pool, model_path, longest, chips_per_server, native) for pool in spec.pools)


def _launch(
    spec: DeploymentSpec, pool: ReplicaPool, model_path: str, longest: int, chips_per_server: int, native: str
) -> Launch:
    notes = []
    weights, cache = pool.weights or spec.weights or native, pool.cache or spec.cache
    if pool.num_chips > chips_per_server:
        nodes = -(-pool.num_chips // chips_per_server)
        notes.append(f"one replica spans {nodes} servers: start the command on each, with the first as head")
    if weights == native:
        weights = ""
    elif weights not in ("bf16", "fp16", "fp8"):
        notes.append(f"{weights} weights come with a checkpoint of that kind: point the model there")
    if pool.attention_dp > 1 and pool.ep not in (1, pool.tp * pool.attention_dp):
        ranks = pool.tp * pool.attention_dp
        notes.append(f"experts over {pool.ep} of {ranks} ranks: engines take all or none")
    if pool.role != "both":
        notes.append("prefill and decode find each other through a router or proxy that the engines bring")
    return Launch(
        pool.name,
        pool.replicas,
        pool.num_chips,
        tuple(_vllm(spec, pool, model_path, longest, weights, cache)),
        tuple(_sglang(spec, pool, model_path, longest, weights, cache)),
        tuple(notes),
    )


def _vllm(
    spec: DeploymentSpec, pool: ReplicaPool, model_path: str, longest: int, weights: str, cache: str
) -> list[str]:
    arguments = ["vllm", "serve", model_path, "--port", str(PORT)]
    arguments += ["--tensor-parallel-size", str(pool.tp)]
    if pool.pp > 1:
        arguments += ["--pipeline-parallel-size", str(pool.pp)]
    if pool.attention_dp > 1:
        arguments += ["--data-parallel-size", str(pool.attention_dp)]
    if pool.ep > 1:
        arguments += ["--enable-expert-parallel"]
    arguments += ["--max-num-seqs", str(pool.max_sequences)]
    arguments += ["--max-num-batched-tokens", str(pool.max_batched_tokens)]
    arguments += ["--max-model-len", str(longest)]
    arguments += ["--block-size", str(pool.block_tokens)]
    arguments += ["--gpu-memory-utilization", f"{pool.memory_share:g}"]
    if weights in _VLLM_WEIGHTS:
        arguments += ["--quantization", _VLLM_WEIGHTS[weights]]
    if cache in _VLLM_CACHE:
        arguments += ["--kv-cache-dtype", _VLLM_CACHE[cache]]
    arguments += ["--enable-prefix-caching" if spec.prefix_cache else "--no-enable-prefix-caching"]
    if pool.role != "both":
        transfer = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"}, separators=(",", ":"))
        arguments += ["--kv-transfer-config", transfer]
    return arguments


def _sglang(
    spec: DeploymentSpec, pool: ReplicaPool, model_path: str, longest: int, weights: str, cache: str
) -> list[str]:
    arguments = ["python", "-m", "sglang.launch_server", "--model-path", model_path]
    arguments += ["--host", "0.0.0.0", "--port", str(PORT)]
    # SGLang counts all ranks of a stage as tensor ranks, those of data-parallel attention among them.
    arguments += ["--tp-size", str(pool.tp * pool.attention_dp)]
    if pool.pp > 1:
        arguments += ["--pp-size", str(pool.pp)]
    if pool.attention_dp > 1:
        arguments += ["--dp-size", str(pool.attention_dp), "--enable-dp-attention"]
    if pool.ep > 1:
        arguments += ["--ep-size", str(pool.ep)]
    arguments += ["--max-running-requests", str(pool.max_sequences * pool.attention_dp)]
    arguments += ["--chunked-prefill-size", str(pool.max_batched_tokens * pool.attention_dp)]
    arguments += ["--context-length", str(longest)]
    arguments += ["--page-size", str(pool.block_tokens)]
    arguments += ["--mem-fraction-static", f"{max(pool.memory_share - 0.05, 0.1):g}"]
    if weights in _SGLANG_WEIGHTS:
        arguments += ["--quantization", _SGLANG_WEIGHTS[weights]]
    if cache in _SGLANG_CACHE:
        arguments += ["--kv-cache-dtype", _SGLANG_CACHE[cache]]
    if not spec.prefix_cache:
        arguments += ["--disable-radix-cache"]
    if pool.role != "both":
        arguments += ["--disaggregation-mode", pool.role]
    return arguments
