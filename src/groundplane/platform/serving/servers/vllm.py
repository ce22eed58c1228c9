"""vLLM's OpenAI-compatible server."""

from __future__ import annotations

import sys

from groundplane.platform.serving.servers.contract import (
    ReplicaLaunch,
    ServerCount,
    ServerLoad,
    metric_values,
    whole,
)
from groundplane.spec.errors import InvariantError
from groundplane.spec.service import ServiceSpec


class VllmAdapter:
    """Starts `vllm.entrypoints.openai.api_server` as a module: the CPU build's command finds no metadata."""

    name = "vllm"
    can_ask_usage = False
    counts_unasked = False
    metrics_path = "/metrics"

    def launch(self, spec: ServiceSpec, model_path: str, port: int, num_threads: int) -> ReplicaLaunch:
        command = (
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--model", model_path,
            "--served-model-name", spec.name,
            "--host", "127.0.0.1",
            "--port", str(port),
            "--max-model-len", str(spec.context),
            "--max-num-seqs", str(spec.slots),
            "--enable-prompt-tokens-details",
        )  # fmt: skip
        root = f"http://127.0.0.1:{port}"
        env = {"OMP_NUM_THREADS": str(num_threads)}
        return ReplicaLaunch(command=command, env=env, ready_url=f"{root}/health", base_url=f"{root}/v1")

    def count_path(self, request_id: str) -> str:  # noqa: ARG002
        raise InvariantError("vLLM's server cannot be asked by request id")

    def parse_count(self, body: bytes) -> ServerCount | None:  # noqa: ARG002
        return None

    def parse_metrics(self, text: str) -> ServerLoad:
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        values = metric_values(text, names)
        return ServerLoad(whole(values.get(names[0])), whole(values.get(names[1])), values.get(names[2]))
