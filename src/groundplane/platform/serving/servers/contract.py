"""What the platform must know of a kind of model server: to start it, see its load, ask what it counted."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from groundplane.spec.service import ServiceSpec


class ReplicaLaunch(Struct, frozen=True):
    """How to start one replica. `base_url` is what OpenAI clients call their base URL, with `/v1`."""

    command: tuple[str, ...]
    env: dict[str, str]
    ready_url: str
    base_url: str


class ServerCount(Struct, frozen=True):
    """What a model server says it counted for one request. `running`: not final yet, ask again."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    running: bool


class ServerLoad(Struct, frozen=True):
    """Load as the server's own metrics give it; None where it says nothing."""

    num_running: int | None
    num_waiting: int | None
    kv_used: float | None
    """Fraction of the KV cache in use, 0 to 1."""


class Adapter(Protocol):
    """One kind of model server."""

    name: str
    can_ask_usage: bool
    """The server can be asked, by request id, how many tokens it counted."""
    counts_unasked: bool
    """Its streams carry token counts without `stream_options.include_usage`, which is then not injected."""
    metrics_path: str
    """Path of its Prometheus metrics, from the server's root; empty where it has none."""

    def launch(self, spec: ServiceSpec, model_path: str, port: int, num_threads: int) -> ReplicaLaunch:
        """How to start a replica. Raises InputError where the platform cannot start this kind."""

    def count_path(self, request_id: str) -> str:
        """Path, from the server's root, of its count for a request; only where `can_ask_usage`."""

    def parse_count(self, body: bytes) -> ServerCount | None:
        """Reads the answer to `count_path`; None when it cannot be read."""

    def parse_metrics(self, text: str) -> ServerLoad:
        """Reads the server's Prometheus text."""


def metric_values(text: str, names: tuple[str, ...]) -> dict[str, float]:
    """Sums samples by metric name over all labels, for the names wanted that occur."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in names:
            try:
                values[name] = values.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
            except (ValueError, IndexError):
                continue
    return values


def whole(value: float | None) -> int | None:
    """A count as a metric gives it, as an integer."""
    return None if value is None else int(value)
