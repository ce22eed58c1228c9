"""A deployment of models behind one gateway, as written: pools of equal replicas and the rules above them.

What is predicted and simulated (`groundplane simulate serving`), not what runs here: that is a service file.
Knows nothing of how fast anything is.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from groundplane.spec.errors import InputError
from groundplane.spec.quantity import Bytes, BytesPerSecond, Count, Name, PositiveInt, Seconds

Permille = Annotated[int, Meta(ge=0, le=100_000)]


class ColdStartSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How a replica starts: fetch the image, read the weights, warm up, one after the other.

    `weights` is the rate at which one replica's weights are read; without it, the cluster file's storage (at
    most `per_node` of it), else the servers' disks.
    """

    image_s: Seconds = msgspec.field(default=20.0, name="image")
    weights_bytes_per_s: BytesPerSecond | None = msgspec.field(default=None, name="weights")
    warmup_s: Seconds = msgspec.field(default=30.0, name="warmup")


class AutoscaleLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Between how many replicas a pool is kept, and for how many requests on each.

    Every `interval` the pool's requests are divided by `target_requests`; growing waits `up_patience`,
    shrinking `down_patience`.
    """

    max_replicas: PositiveInt
    target_requests: PositiveInt
    min_replicas: Count = 1
    interval_s: Seconds = msgspec.field(default=10.0, name="interval")
    up_patience_s: Seconds = msgspec.field(default=0.0, name="up_patience")
    down_patience_s: Seconds = msgspec.field(default=300.0, name="down_patience")

    def __post_init__(self) -> None:
        if self.min_replicas > self.max_replicas:
            raise InputError(
                f"must be at most max_replicas = {self.max_replicas}",
                field="min_replicas",
                value=self.min_replicas,
            )


class ReplicaPool(Struct, frozen=True, forbid_unknown_fields=True):
    """`replicas` equal engines.

    `tp` x `attention_dp` x `pp` chips each; experts are spread over `ep` ranks and split over the rest of a
    stage. `role` prefill computes prompts and hands their caches to the decode pool of the same model.
    Fields left out are the deployment's.
    """

    name: Name = "serve"
    role: Literal["both", "prefill", "decode"] = "both"
    replicas: PositiveInt = 1
    model: str | None = None
    engine: str | None = None
    weights: str | None = None
    cache: str | None = None
    tp: PositiveInt = 1
    pp: PositiveInt = 1
    attention_dp: PositiveInt = 1
    ep: PositiveInt = 1
    max_sequences: PositiveInt = 256
    max_batched_tokens: PositiveInt = 8192
    preemption: Literal["recompute", "swap"] = "recompute"
    memory_share: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.9
    block_tokens: PositiveInt = 16
    host_cache_bytes: Bytes = msgspec.field(default=0, name="host_cache")
    disk_cache_bytes: Bytes = msgspec.field(default=0, name="disk_cache")
    max_queue: PositiveInt | None = None
    cold_start: ColdStartSpec = ColdStartSpec()
    autoscale: AutoscaleLimits | None = None

    @property
    def num_chips(self) -> int:
        """Chips of one replica."""
        return self.tp * self.attention_dp * self.pp

    @property
    def max_replicas(self) -> int:
        """Most replicas that the pool may have."""
        return self.replicas if self.autoscale is None else max(self.replicas, self.autoscale.max_replicas)

    def __post_init__(self) -> None:
        ranks = self.tp * self.attention_dp
        if ranks % self.ep:
            raise InputError(f"must divide tp x attention_dp = {ranks}", field="ep", value=self.ep)
        if self.max_batched_tokens < self.max_sequences:
            raise InputError(
                f"must be at least max_sequences = {self.max_sequences}",
                field="max_batched_tokens",
                value=self.max_batched_tokens,
            )


class ReplicaLoss(Struct, frozen=True, forbid_unknown_fields=True):
    """Replica `replica` (from 0) of pool `pool` is lost at `at`; it begins to start again `down` later."""

    pool: Name
    at_s: Seconds = msgspec.field(name="at")
    replica: Count = 0
    down_s: Seconds = msgspec.field(default=60.0, name="down")


class DeploymentSpec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="deployment"):
    """All that serves, on one cluster.

    `cluster` and `model` are catalogue names or files (relative to this file). `usd_per_chip_hour` is one
    chip's price; without it, the catalogue's dated one. `prefix_cache` keeps the blocks of prompts after use.
    `weights` is the format of the checkpoint, as published where it is not given.
    """

    name: Name
    cluster: str
    pools: Annotated[tuple[ReplicaPool, ...], Meta(min_length=1, max_length=64)]
    model: str = ""
    engine: str = "vllm"
    weights: str | None = None
    cache: str = "bf16"
    prefix_cache: bool = True
    routing: Literal["round_robin", "least_work", "prefix", "session"] = "least_work"
    prompt_permille: Permille = 1000
    on_failure: Literal["requeue", "fail"] = "requeue"
    max_waiting: PositiveInt | None = None
    usd_per_chip_hour: Annotated[float, Meta(ge=0.0, le=1e6)] | None = None
    losses: tuple[ReplicaLoss, ...] = ()

    def __post_init__(self) -> None:
        names = [pool.name for pool in self.pools]
        for index, pool in enumerate(self.pools):
            if pool.name in names[:index]:
                raise InputError("is given twice", field=f"pools[{index}].name", value=pool.name)
            if not (pool.model or self.model):
                raise InputError(
                    "is required, here or for the whole deployment", field=f"pools[{index}].model"
                )
        for index, loss in enumerate(self.losses):
            if loss.pool not in names:
                raise InputError(
                    f"must be a pool: {', '.join(names)}", field=f"losses[{index}].pool", value=loss.pool
                )

    @property
    def models(self) -> list[str]:
        """Names of the models served, in the order of the pools."""
        return list(dict.fromkeys(pool.model or self.model for pool in self.pools))
