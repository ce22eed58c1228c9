"""Any OpenAI-compatible server that somebody else runs; with or without books of its own."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from groundplane.platform.serving.servers.contract import ReplicaLaunch, ServerCount, ServerLoad
from groundplane.spec.errors import InputError, InvariantError
from groundplane.spec.service import ServiceSpec


class OpenAIAdapter:
    """Server "openai": a URL and nothing to start."""

    name = "openai"
    can_ask_usage = False
    counts_unasked = False
    metrics_path = ""

    def launch(self, spec: ServiceSpec, model_path: str, port: int, num_threads: int) -> ReplicaLaunch:  # noqa: ARG002
        raise InputError(
            "is run by somebody else: there is nothing to start", field="server", value=spec.server
        )

    def count_path(self, request_id: str) -> str:  # noqa: ARG002
        raise InvariantError("this server cannot be asked by request id")

    def parse_count(self, body: bytes) -> ServerCount | None:  # noqa: ARG002
        return None

    def parse_metrics(self, text: str) -> ServerLoad:  # noqa: ARG002
        return ServerLoad(None, None, None)


class _Count(Struct):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    state: str = "ended"


class CountedOpenAIAdapter(OpenAIAdapter):
    """Server "openai-counted": one that keeps count by the `x-request-id` it was sent.

    `GET /count/REQUEST_ID` answers `{"prompt_tokens", "completion_tokens", "cached_tokens", "state"}`, state
    "running" or "ended". Cut requests are then metered by the server's own count, exactly.
    """

    name = "openai-counted"
    can_ask_usage = True

    def count_path(self, request_id: str) -> str:
        return f"/count/{request_id}"

    def parse_count(self, body: bytes) -> ServerCount | None:
        try:
            count = msgspec.json.decode(body, type=_Count)
        except msgspec.DecodeError:
            return None
        return ServerCount(
            count.prompt_tokens, count.cached_tokens, count.completion_tokens, count.state == "running"
        )
