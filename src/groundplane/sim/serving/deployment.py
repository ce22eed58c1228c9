"""What serves: pools of equal replicas, their engines, caches and links, and the rules above them.

This is the simulator's own description, in integers and with an iteration table a pool; what people write is
turned into it elsewhere. Knows nothing of requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from groundplane.sim.serving.iteration import IterationTable
from groundplane.spec.errors import InputError, unknown_name

SchedulerKind = Literal["vllm-v1", "sglang", "trtllm", "trtllm-max-utilization"]
Role = Literal["both", "prefill", "decode"]
RoutingKind = Literal["round_robin", "least_work", "prefix", "session"]
Preemption = Literal["recompute", "swap"]
FailureRule = Literal["requeue", "fail"]

MAX_REPLICAS: Final = 4096
"""Replicas of all pools together, those that autoscaling may add included."""


@dataclass(frozen=True)
class SchedulerSpec:
    """How an engine fills an iteration.

    * `vllm-v1`: tokens of all decoding sequences first, then prompts under way, then waiting ones, up to
      `max_batched_tokens` in all; a prompt is cut where they end. A request starts when the blocks of its
      whole prompt are to be had (`reserve_prompt`; else those of its first part). Without blocks, the one of
      lowest priority that came last is preempted.
    * `sglang`: prompts alone while any can start (up to `max_batched_tokens`), decoding otherwise. A request
      starts when its prompt and the expected rest of all outputs fit; without blocks, those with the fewest
      tokens so far are retracted.
    * `trtllm`: fills as vllm-v1, but a request starts only when its whole prompt and output fit beside what
      all others may still need (guaranteed no evict); `trtllm-max-utilization` as vllm-v1 without
      `reserve_prompt`.

    `preemption` "swap" keeps a preempted cache in host memory (`CacheSpec.swap_blocks`) where there is room.
    """

    kind: SchedulerKind = "vllm-v1"
    max_sequences: int = 256
    max_batched_tokens: int = 8192
    reserve_prompt: bool = True
    preemption: Preemption = "recompute"


@dataclass(frozen=True)
class CacheSpec:
    """The key-value cache of one replica: `num_blocks` blocks of `block_tokens` tokens.

    With `prefix` whole hash blocks stay after use and are found by later prompts, until the least recently
    used are evicted. Evicted ones go to host memory (`host_blocks`), from there to disk (`disk_blocks`), and
    are loaded back in `host_block_ns` and `disk_block_ns` a block; an iteration takes as long as its loads.
    Swapping a block out or in takes `swap_block_ns` of the iteration.
    """

    num_blocks: int
    block_tokens: int = 16
    prefix: bool = True
    host_blocks: int = 0
    host_block_ns: int = 0
    disk_blocks: int = 0
    disk_block_ns: int = 0
    swap_blocks: int = 0
    swap_block_ns: int = 0


@dataclass(frozen=True)
class LinkSpec:
    """What a replica moves caches over: one transfer at a time in each direction, in order.

    A transfer takes `latency_ns` and `block_ns` a block (of the slower side), and holds both sides.
    """

    block_ns: int = 0
    latency_ns: int = 0


@dataclass(frozen=True)
class ColdStart:
    """Parts of a replica's start, which follow each other."""

    image_ns: int = 0
    weights_ns: int = 0
    warmup_ns: int = 0

    @property
    def total_ns(self) -> int:
        """All of it."""
        return self.image_ns + self.weights_ns + self.warmup_ns


@dataclass(frozen=True)
class AutoscaleSpec:
    """Targets of a pool; see `control.autoscale`. Every `interval_ns` the pool's load is looked at."""

    min_replicas: int
    max_replicas: int
    target_requests: int
    interval_ns: int = 10_000_000_000
    up_patience_ns: int = 0
    down_patience_ns: int = 300_000_000_000


@dataclass(frozen=True)
class PoolSpec:
    """Equal replicas: `count` of them run at the start (autoscaling changes that).

    A replica is one engine with one scheduler; ranks of data-parallel attention are replicas of their own.
    `role` "prefill" computes prompts and hands caches to replicas of role "decode" of the same model.
    A replica refuses a request when `max_queue` wait for it. A request spends `outside_ns` and
    `outside_token_ps` a prompt token outside the engine (HTTP, tokenizer), on top of what is simulated.
    """

    name: str
    table: IterationTable
    cache: CacheSpec
    scheduler: SchedulerSpec = SchedulerSpec()
    count: int = 1
    model: int = 0
    role: Role = "both"
    max_queue: int = 1 << 30
    link: LinkSpec = LinkSpec()
    cold_start: ColdStart = ColdStart()
    autoscale: AutoscaleSpec | None = None
    outside_ns: int = 0
    outside_token_ps: int = 0

    @property
    def max_replicas(self) -> int:
        """Replicas that can ever be."""
        return max(self.count, self.autoscale.max_replicas) if self.autoscale else self.count


@dataclass(frozen=True)
class RoutingSpec:
    """How the gateway picks a replica; see `control.routing`.

    `prompt_permille` weighs prompt tokens still to be computed against tokens held in the cache.
    """

    kind: RoutingKind = "least_work"
    prompt_permille: int = 1000


@dataclass(frozen=True)
class ReplicaFailure:
    """Replica number `replica` of pool `pool` is lost at `at_ns`; its cold start begins `down_ns` later."""

    pool: int
    replica: int
    at_ns: int
    down_ns: int


@dataclass(frozen=True)
class Deployment:
    """All that serves.

    Requests find the gateway's own line (at most `max_waiting`) while no replica of their model is up.
    `on_failure` "requeue" sends what a lost replica held to others, with the tokens that were already sent
    kept; "fail" ends those that had sent a token. A request is moved at most `max_moves` times.
    """

    pools: tuple[PoolSpec, ...]
    routing: RoutingSpec = RoutingSpec()
    failures: tuple[ReplicaFailure, ...] = ()
    on_failure: FailureRule = "requeue"
    max_moves: int = 3
    max_waiting: int = 1 << 30

    def checked(self) -> Deployment:
        """The deployment, if it is sound.

        Raises:
            InputError: names the field.
        """
        if not self.pools:
            raise InputError("needs at least one pool", field="pools")
        for index, pool in enumerate(self.pools):
            _check_pool(pool, f"pools[{index}]")
        if sum(pool.max_replicas for pool in self.pools) > MAX_REPLICAS:
            raise InputError(f"must have at most {MAX_REPLICAS} replicas in all", field="pools")
        _choose(self.routing.kind, RoutingKind, "routing", "routing.kind")
        _choose(self.on_failure, FailureRule, "rule", "on_failure")
        _least(self.max_moves, 0, "max_moves")
        _least(self.max_waiting, 0, "max_waiting")
        _least(self.routing.prompt_permille, 0, "routing.prompt_permille")
        for index, failure in enumerate(self.failures):
            where = f"failures[{index}]"
            if not 0 <= failure.pool < len(self.pools):
                raise InputError("must be the index of a pool", field=f"{where}.pool", value=failure.pool)
            if not 0 <= failure.replica < self.pools[failure.pool].max_replicas:
                raise InputError(
                    "must be a replica of its pool", field=f"{where}.replica", value=failure.replica
                )
            _least(failure.at_ns, 0, f"{where}.at_ns")
            _least(failure.down_ns, 0, f"{where}.down_ns")
        for model in {pool.model for pool in self.pools}:
            roles = {pool.role for pool in self.pools if pool.model == model}
            if roles not in ({"both"}, {"prefill", "decode"}):
                raise InputError(
                    f"model {model} needs replicas of role both, or of prefill and decode",
                    field="pools",
                    value=sorted(roles),
                )
        return self


def _check_pool(pool: PoolSpec, where: str) -> None:
    _choose(pool.role, Role, "role", f"{where}.role")
    _choose(pool.scheduler.kind, SchedulerKind, "scheduler", f"{where}.scheduler.kind")
    _choose(pool.scheduler.preemption, Preemption, "preemption", f"{where}.scheduler.preemption")
    _least(pool.count, 0, f"{where}.count")
    _least(pool.model, 0, f"{where}.model")
    _least(pool.max_queue, 1, f"{where}.max_queue")
    _least(pool.outside_ns, 0, f"{where}.outside_ns")
    _least(pool.outside_token_ps, 0, f"{where}.outside_token_ps")
    for name in ("num_blocks", "block_tokens"):
        _least(getattr(pool.cache, name), 1, f"{where}.cache.{name}")
    for name in (
        "host_blocks",
        "host_block_ns",
        "disk_blocks",
        "disk_block_ns",
        "swap_blocks",
        "swap_block_ns",
    ):
        _least(getattr(pool.cache, name), 0, f"{where}.cache.{name}")
    for name in ("block_ns", "latency_ns"):
        _least(getattr(pool.link, name), 0, f"{where}.link.{name}")
    for name in ("image_ns", "weights_ns", "warmup_ns"):
        _least(getattr(pool.cold_start, name), 0, f"{where}.cold_start.{name}")
    _least(pool.scheduler.max_sequences, 1, f"{where}.scheduler.max_sequences")
    if pool.scheduler.max_batched_tokens < pool.scheduler.max_sequences:
        raise InputError(
            f"must be at least max_sequences = {pool.scheduler.max_sequences}",
            field=f"{where}.scheduler.max_batched_tokens",
            value=pool.scheduler.max_batched_tokens,
        )
    for name in ("max_sequences", "max_batched_tokens"):
        if getattr(pool.scheduler, name) > getattr(pool.table, name):
            raise InputError(
                f"must be at most the {getattr(pool.table, name)} of the pool's iteration table",
                field=f"{where}.scheduler.{name}",
                value=getattr(pool.scheduler, name),
            )
    if pool.scheduler.kind == "sglang" and pool.scheduler.preemption == "swap":
        raise InputError("must be recompute with sglang", field=f"{where}.scheduler.preemption", value="swap")
    scale = pool.autoscale
    if scale is None:
        _least(pool.count, 1, f"{where}.count")
        return
    _least(scale.min_replicas, 0, f"{where}.autoscale.min_replicas")
    _least(scale.max_replicas, max(scale.min_replicas, 1), f"{where}.autoscale.max_replicas")
    for name in ("target_requests", "interval_ns"):
        _least(getattr(scale, name), 1, f"{where}.autoscale.{name}")
    for name in ("up_patience_ns", "down_patience_ns"):
        _least(getattr(scale, name), 0, f"{where}.autoscale.{name}")


def _least(value: int, least: int, field: str) -> None:
    if value < least:
        raise InputError(f"must be at least {least}", field=field, value=value)


def _choose(value: str, choices: object, kind: str, field: str) -> None:
    if value not in get_args(choices):
        raise unknown_name(kind, value, get_args(choices), field=field)
