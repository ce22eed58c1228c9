"""The gateway's Prometheus metrics. No label carries a key, a prompt or anything else a client wrote."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from groundplane.platform.serving.metering import Settlement

TIME_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class GatewayMetrics:
    """Counters of one gateway process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "groundplane_gateway_requests", "Requests ended.", ("model", "outcome"), registry=self.registry
        )
        self._tokens = Counter(
            "groundplane_gateway_tokens", "Tokens metered.", ("model", "kind"), registry=self.registry
        )
        self._total = Histogram(
            "groundplane_gateway_request_seconds",
            "Time from arrival to the end.",
            ("model",),
            buckets=TIME_BUCKETS_S,
            registry=self.registry,
        )
        self._first = Histogram(
            "groundplane_gateway_first_token_seconds",
            "Time from arrival to the first token.",
            ("model",),
            buckets=TIME_BUCKETS_S,
            registry=self.registry,
        )
        self.refused = Counter(
            "groundplane_gateway_refused",
            "Requests refused by the gateway itself.",
            ("code",),
            registry=self.registry,
        )
        self.retries = Counter(
            "groundplane_gateway_retries",
            "Attempts that failed before the first byte.",
            registry=self.registry,
        )
        self.in_flight = Gauge("groundplane_gateway_in_flight", "Requests in flight.", registry=self.registry)
        self.directory_age = Gauge(
            "groundplane_gateway_directory_age_seconds",
            "Age of what is known of keys and replicas.",
            registry=self.registry,
        )
        self.settlement_behind = Gauge(
            "groundplane_gateway_settlement_behind",
            "1 while settlements wait for SQL.",
            registry=self.registry,
        )
        self._children: dict[str, tuple[Counter, Counter, Counter, Histogram, Histogram]] = {}

    def ended(self, settlement: Settlement) -> None:
        """Counts one settlement."""
        model = settlement.model
        children = self._children.get(model)
        if children is None:
            # Models are those that are served, so their number is bounded.
            children = self._children[model] = (
                self._requests.labels(model, "completed"),
                self._tokens.labels(model, "in"),
                self._tokens.labels(model, "out"),
                self._total.labels(model),
                self._first.labels(model),
            )
        completed, tokens_in, tokens_out, total, first = children
        if settlement.outcome == "completed":
            completed.inc()
        else:
            self._requests.labels(model, settlement.outcome).inc()
        tokens_in.inc(settlement.tokens_in)
        tokens_out.inc(settlement.tokens_out)
        total.observe(settlement.total_ns / 1e9)
        if settlement.first_token_ns:
            first.observe(settlement.first_token_ns / 1e9)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)
