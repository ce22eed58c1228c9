"""llama.cpp's own HTTP server, from the `xllamacpp` package: the embedded default."""

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


class LlamaCppAdapter:
    """Starts `llamacpp_server.py`. The server keeps no count by request id."""

    name = "llamacpp"
    can_ask_usage = False
    counts_unasked = True
    metrics_path = "/metrics"

    def launch(self, spec: ServiceSpec, model_path: str, port: int, num_threads: int) -> ReplicaLaunch:
        command = (
            sys.executable, "-m", "groundplane.platform.serving.llamacpp_server",
            "--model", model_path,
            "--name", spec.name,
            "--host", "127.0.0.1",
            "--port", str(port),
            "--context", str(spec.context),
            "--slots", str(spec.slots),
            "--threads", str(num_threads),
        )  # fmt: skip
        root = f"http://127.0.0.1:{port}"
        return ReplicaLaunch(command=command, env={}, ready_url=f"{root}/health", base_url=f"{root}/v1")

    def count_path(self, request_id: str) -> str:  # noqa: ARG002
        raise InvariantError("llama.cpp's server cannot be asked by request id")

    def parse_count(self, body: bytes) -> ServerCount | None:  # noqa: ARG002
        return None

    def parse_metrics(self, text: str) -> ServerLoad:
        names = (
            "llamacpp:requests_processing",
            "llamacpp:requests_deferred",
            "llamacpp:kv_cache_usage_ratio",
        )
        values = metric_values(text, names)
        return ServerLoad(whole(values.get(names[0])), whole(values.get(names[1])), values.get(names[2]))
