"""Model servers: one contract (`contract.py`), one adapter a file, one registry."""

from __future__ import annotations

from typing import Final

from groundplane.platform.serving.servers.contract import Adapter, ReplicaLaunch
from groundplane.platform.serving.servers.llamacpp import LlamaCppAdapter
from groundplane.platform.serving.servers.openai import CountedOpenAIAdapter, OpenAIAdapter
from groundplane.platform.serving.servers.vllm import VllmAdapter
from groundplane.spec.errors import unknown_name
from groundplane.spec.service import ServiceSpec

ADAPTERS: Final[dict[str, Adapter]] = {
    adapter.name: adapter
    for adapter in (LlamaCppAdapter(), VllmAdapter(), OpenAIAdapter(), CountedOpenAIAdapter())
}


def adapter_of(server: str) -> Adapter:
    """The adapter of a model server.

    Raises:
        InputError: unknown name; lists the known ones.
    """
    if server not in ADAPTERS:
        raise unknown_name("model server", server, ADAPTERS, field="server")
    return ADAPTERS[server]


def replica_launch(spec: ServiceSpec, model_path: str, port: int, num_threads: int) -> ReplicaLaunch:
    """How to start one replica of a service: command, environment, URL of readiness, base URL.

    Args:
        spec: the service; `spec.server` picks the adapter.
        model_path: what the server loads: a GGUF file (llamacpp) or a model folder (vllm).
        port: TCP port on 127.0.0.1 that the replica may listen on.
        num_threads: cores that the replica has.

    Raises:
        InputError: the server is one that somebody else runs (`openai`).
    """
    return adapter_of(spec.server).launch(spec, model_path, port, num_threads)
