"""The compiled simulator's state, and how it is made of requests and a deployment."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from groundplane.control.autoscale import new_memory
from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.price import make_prices
from groundplane.sim.serving.fast.units import make_tables
from groundplane.sim.serving.outcome import MAX_SAMPLES, NUM_GAP_BINS, IntArray
from groundplane.sim.serving.prepare import SGLANG_RATIO_START, Prepared
from groundplane.sim.serving.reference.replica import READY

_KINDS: Final = {
    "vllm-v1": c.VLLM, "sglang": c.SGLANG, "trtllm": c.TRTLLM, "trtllm-max-utilization": c.TRTLLM_MAX
}  # fmt: skip
_ROLES: Final = {"both": c.BOTH, "prefill": c.PREFILL, "decode": c.DECODE}
_ROUTING: Final = {
    "round_robin": c.ROUND_ROBIN, "least_work": c.LEAST_WORK, "prefix": c.PREFIX_AWARE,
    "session": c.SESSION_HOME,
}  # fmt: skip


class State(NamedTuple):
    """Everything, in few arrays: each one more makes compiling and calling slower.

    Columns are named in `columns.py`. `lists[r, l]` is list l of replica r, as long as its count in
    `replicas` says; among them `PHASE`: how many decoding sequences of r need a block at steps that are -k
    modulo the block, and `STACK_STEP` and `STACK_GAP`: falling gaps, so that the longest gap since a step is
    the first after it. `tables` has `LEVELS` rows a replica. `prices` are the pools' iteration tables.
    """

    works: IntArray
    replicas: IntArray
    models: IntArray
    world: IntArray
    lists: IntArray
    tables: IntArray
    places: IntArray
    hashes: IntArray
    prices: IntArray
    log: IntArray
    samples: IntArray


def make_state(prepared: Prepared, *, log: bool) -> State:
    """The state before the first arrival."""
    pools, num_replicas = prepared.deployment.pools, prepared.num_replicas
    most = max(pool.scheduler.max_sequences for pool in pools)
    width = max(most + 1, c.STACK_DEPTH, *(pool.cache.block_tokens for pool in pools))
    # Between two looks at the log's room, each request and sequence has a few events at most.
    margin = 8 * (len(prepared.requests) + most * num_replicas + num_replicas) + 1024
    prices, places_of_prices = make_prices([pool.table for pool in pools])
    tables, places = make_tables(_capacities(prepared))
    models = np.zeros((prepared.num_models, c.GAPS + NUM_GAP_BINS), dtype=np.int64)
    models[:, : c.GAPS] = c.NONE
    models[:, c.LONGEST] = prepared.longest()
    models[:, c.GATE_LENGTH] = models[:, c.DECODE_LENGTH] = 0
    return State(
        works=_works(prepared),
        replicas=_replicas(prepared, places_of_prices),
        models=models,
        world=_world(prepared, log, margin),
        lists=np.zeros((num_replicas, c.NUM_LISTS, width), dtype=np.int64),
        tables=tables,
        places=places,
        hashes=prepared.requests.block_hashes,
        prices=prices,
        log=np.zeros((2 * margin if log else 0, 6), dtype=np.int64),
        samples=np.zeros((MAX_SAMPLES, 1 + 4 * num_replicas), dtype=np.int64),
    )


def _works(prepared: Prepared) -> IntArray:
    requests = prepared.requests
    works = np.zeros((len(requests), c.NUM_WORK), dtype=np.int64)
    works[:, c.ARRIVAL] = requests.arrival_ns
    works[:, c.PROMPT] = requests.prompt_tokens
    works[:, c.OUTPUT] = requests.output_tokens
    works[:, c.MODEL] = requests.model
    works[:, c.PRIORITY] = requests.priority
    works[:, c.SESSION] = prepared.session
    works[:, c.HASH_BEGIN] = requests.block_offsets[:-1]
    works[:, c.NUM_HASHES] = prepared.num_hashes
    for column in (
        c.REMOTE, c.LEFT, c.RIGHT, c.LAST_TOKEN, c.ADMITTED, c.FIRST_TOKEN, c.FINISHED, c.REPLICA,
        c.PREFILL_REPLICA,
    ):  # fmt: skip
        works[:, column] = c.NONE
    return works


def _replicas(prepared: Prepared, places_of_prices: list[dict[int, int]]) -> IntArray:
    replicas = np.zeros((prepared.num_replicas, c.NUM_REPLICA), dtype=np.int64)
    replicas[:, c.POOL] = prepared.pool_of
    for column in (c.CHANGE, c.UP_SINCE, c.READY_SINCE, c.LINE):
        replicas[:, column] = c.NONE
    replicas[:, c.NEXT_END] = c.FOREVER
    replicas[:, c.RATIO] = SGLANG_RATIO_START
    replicas[:, c.KV_SINCE] = prepared.start_ns
    first = 0
    for index, pool in enumerate(prepared.deployment.pools):
        mine = replicas[first : first + pool.max_replicas]
        mine[:, c.FREE] = pool.cache.num_blocks
        for column, value in (_settings(prepared, index) | places_of_prices[index]).items():
            mine[:, column] = value
        up = mine[: pool.count]
        up[:, c.STATUS] = READY
        up[:, c.UP_SINCE] = up[:, c.READY_SINCE] = prepared.start_ns
        up[:, c.STARTS] = 1
        first += pool.max_replicas
    return replicas


def _settings(prepared: Prepared, index: int) -> dict[int, int]:
    pool = prepared.deployment.pools[index]
    unit = int(prepared.unit_blocks[index])
    scale, scheduler, cache = pool.autoscale, pool.scheduler, pool.cache
    settings = {
        c.KIND: _KINDS[scheduler.kind], c.ROLE: _ROLES[pool.role], c.POOL_MODEL: pool.model,
        c.MAX_SEQUENCES: scheduler.max_sequences, c.MAX_BATCHED: scheduler.max_batched_tokens,
        c.RESERVE_PROMPT: int(scheduler.reserve_prompt), c.SWAP: int(scheduler.preemption == "swap"),
        c.NUM_BLOCKS: cache.num_blocks, c.BLOCK_TOKENS: cache.block_tokens, c.UNIT_BLOCKS: unit,
        c.UNIT_TOKENS: unit * cache.block_tokens, c.PREFIX: int(cache.prefix), c.HOST_NS: cache.host_block_ns,
        c.DISK_NS: cache.disk_block_ns, c.SWAP_BLOCKS: cache.swap_blocks, c.SWAP_NS: cache.swap_block_ns,
        c.MAX_QUEUE: pool.max_queue, c.LINK_NS: pool.link.block_ns, c.LINK_LATENCY: pool.link.latency_ns,
        c.START_NS: pool.cold_start.total_ns, c.MOST_TOKENS: int(prepared.most_tokens[index]),
    }  # fmt: skip
    if scale is None:
        return settings
    return settings | {
        c.MIN_REPLICAS: scale.min_replicas, c.MAX_REPLICAS: scale.max_replicas,
        c.TARGET: scale.target_requests, c.INTERVAL: scale.interval_ns,
        c.UP_PATIENCE: scale.up_patience_ns, c.DOWN_PATIENCE: scale.down_patience_ns,
    }  # fmt: skip


def _world(prepared: Prepared, log: bool, margin: int) -> IntArray:
    deployment, failures = prepared.deployment, prepared.failures()
    world = np.zeros(c.NUM_WORLD, dtype=np.int64)
    homes = np.full(prepared.num_sessions, c.NONE, dtype=np.int64)
    looks = [
        [prepared.start_ns + pool.autoscale.interval_ns if pool.autoscale else c.FOREVER, *new_memory()]
        for pool in deployment.pools
    ]
    world[c.NEXT_SAMPLE] = prepared.start_ns + prepared.sample_ns
    world[c.LOGGING] = log
    world[c.NOW] = prepared.start_ns
    world[c.COUPLED] = any(pool.role != "both" for pool in deployment.pools)
    world[c.ROUTING] = _ROUTING[deployment.routing.kind]
    world[c.PROMPT_PERMILLE] = deployment.routing.prompt_permille
    world[c.FAIL_SENT] = deployment.on_failure == "fail"
    world[c.MAX_MOVES] = deployment.max_moves
    world[c.MAX_WAITING] = deployment.max_waiting
    world[c.SAMPLE_NS] = prepared.sample_ns
    world[c.LOG_MARGIN] = margin
    world[c.NUM_FAILURES] = len(failures)
    world[c.NUM_POOLS] = len(deployment.pools)
    world[c.HOMES_AT] = c.NUM_WORLD
    world[c.FAILURES_AT] = world[c.HOMES_AT] + len(homes)
    world[c.POOLS_AT] = world[c.FAILURES_AT] + c.FAILURE_SIZE * len(failures)
    return np.concatenate([world, homes, np.array(failures, dtype=np.int64).ravel(), np.ravel(looks)])


def _capacities(prepared: Prepared) -> IntArray:
    """Units that each replica's chip, host memory and disk hold."""
    hashed = len(prepared.requests.block_hashes) > 0
    by_pool = []
    for pool, unit in zip(prepared.deployment.pools, prepared.unit_blocks, strict=True):
        cache = pool.cache
        blocks = (cache.num_blocks, cache.host_blocks, cache.disk_blocks)
        by_pool.append([size // int(unit) if cache.prefix and hashed else 0 for size in blocks])
    return np.array([by_pool[pool] for pool in prepared.pool_of], dtype=np.int64).ravel()
