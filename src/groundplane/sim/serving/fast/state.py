"""The compiled simulator's state, and how it is made of requests and a deployment."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from groundplane.control import autoscale
from groundplane.sim.serving.deployment import PoolSpec
from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.price import Prices, make_prices
from groundplane.sim.serving.fast.units import Units, make_units
from groundplane.sim.serving.outcome import MAX_SAMPLES, NUM_GAP_BINS, IntArray
from groundplane.sim.serving.prepare import SGLANG_RATIO_START, Prepared

_KINDS: Final = {
    "vllm-v1": c.VLLM, "sglang": c.SGLANG, "trtllm": c.TRTLLM, "trtllm-max-utilization": c.TRTLLM_MAX
}  # fmt: skip
_ROLES: Final = {"both": c.BOTH, "prefill": c.PREFILL, "decode": c.DECODE}
_ROUTING: Final = {
    "round_robin": c.ROUND_ROBIN, "least_work": c.LEAST_WORK, "prefix": c.PREFIX_AWARE,
    "session": c.SESSION_HOME,
}  # fmt: skip


class State(NamedTuple):
    """Everything. Columns of two-dimensional arrays are named in `columns.py`.

    `lists[r, l]` is list l of replica r, as long as its count in `replicas` says. `phase[r, k]` counts
    decoding sequences of r that need a block at steps that are -k modulo the block. `stack[r]` holds (step,
    gap) with falling gaps: the longest gap since a step is the first entry after it. `lines` are the
    replicas', then the gateway's, then those for decoding, one a model.
    """

    works: IntArray
    replicas: IntArray
    pools: IntArray
    world: IntArray
    lists: IntArray
    phase: IntArray
    stack: IntArray
    lines: IntArray
    units: Units
    hashes: IntArray
    arrival: IntArray
    gap_counts: IntArray
    log: IntArray
    samples: IntArray
    sample_times: IntArray
    failures: IntArray
    memories: IntArray
    ticks: IntArray
    previous: IntArray
    home: IntArray
    longest: IntArray
    prices: Prices
    able: NDArray[np.bool_]
    scratch: IntArray


def make_state(prepared: Prepared, *, log: bool) -> State:
    """The state before the first arrival."""
    pools, num_replicas, num_models = prepared.deployment.pools, prepared.num_replicas, prepared.num_models
    most = max(pool.scheduler.max_sequences for pool in pools)
    failures = np.array(prepared.failures(), dtype=np.int64).reshape(-1, 3)
    count = len(prepared.requests)
    # Between two looks at the log's room, each request and sequence has a few events at most.
    margin = 8 * (count + most * num_replicas + num_replicas) + 1024
    return State(
        works=_works(prepared),
        replicas=_replicas(prepared),
        pools=np.array([_pool(prepared, index) for index in range(len(pools))], dtype=np.int64),
        world=_world(prepared, log, margin),
        lists=np.zeros((num_replicas, c.NUM_LISTS, most + 1), dtype=np.int64),
        phase=np.zeros((num_replicas, max(pool.cache.block_tokens for pool in pools)), dtype=np.int64),
        stack=np.zeros((num_replicas, c.STACK_DEPTH, 2), dtype=np.int64),
        lines=np.array([[c.NONE, 0]] * (num_replicas + 2 * num_models), dtype=np.int64),
        units=make_units(_capacities(prepared)),
        hashes=prepared.requests.block_hashes,
        arrival=prepared.requests.arrival_ns,
        gap_counts=np.zeros((num_models, NUM_GAP_BINS), dtype=np.int64),
        log=np.zeros((2 * margin if log else 0, 6), dtype=np.int64),
        samples=np.zeros((MAX_SAMPLES, num_replicas, 4), dtype=np.int64),
        sample_times=np.zeros(MAX_SAMPLES, dtype=np.int64),
        failures=failures,
        memories=np.array([autoscale.new_memory() for _ in pools], dtype=np.int64),
        ticks=np.array(
            [
                prepared.start_ns + pool.autoscale.interval_ns if pool.autoscale else c.FOREVER
                for pool in pools
            ],
            dtype=np.int64,
        ),
        previous=np.full((2, num_models), c.NONE, dtype=np.int64),
        home=np.full(max(prepared.num_sessions, 1), c.NONE, dtype=np.int64),
        longest=prepared.longest(),
        prices=make_prices([pool.table for pool in pools]),
        able=np.zeros(num_replicas, dtype=np.bool_),
        scratch=np.zeros((3, num_replicas), dtype=np.int64),
    )


def _works(prepared: Prepared) -> IntArray:
    requests = prepared.requests
    works = np.zeros((len(requests), c.NUM_WORK), dtype=np.int64)
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


def _replicas(prepared: Prepared) -> IntArray:
    replicas = np.zeros((prepared.num_replicas, c.NUM_REPLICA), dtype=np.int64)
    replicas[:, c.POOL] = prepared.pool_of
    for column in (c.CHANGE, c.UP_SINCE, c.READY_SINCE):
        replicas[:, column] = c.NONE
    replicas[:, c.NEXT_END] = c.FOREVER
    replicas[:, c.RATIO] = SGLANG_RATIO_START
    replicas[:, c.KV_SINCE] = prepared.start_ns
    first = 0
    for pool in prepared.deployment.pools:
        mine = replicas[first : first + pool.max_replicas]
        mine[:, c.FREE] = pool.cache.num_blocks
        up = mine[: pool.count]
        up[:, c.STATUS] = 2
        up[:, c.UP_SINCE] = up[:, c.READY_SINCE] = prepared.start_ns
        up[:, c.STARTS] = 1
        first += pool.max_replicas
    return replicas


def _world(prepared: Prepared, log: bool, margin: int) -> IntArray:
    deployment = prepared.deployment
    world = np.zeros(c.NUM_GLOBAL, dtype=np.int64)
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
    world[c.MAX_SAMPLES] = MAX_SAMPLES
    world[c.LOG_MARGIN] = margin
    return world


def _pool(prepared: Prepared, index: int) -> list[int]:
    pool: PoolSpec = prepared.deployment.pools[index]
    unit = int(prepared.unit_blocks[index])
    scale, scheduler, cache = pool.autoscale, pool.scheduler, pool.cache
    values = {
        c.KIND: _KINDS[scheduler.kind], c.ROLE: _ROLES[pool.role], c.POOL_MODEL: pool.model,
        c.MAX_SEQUENCES: scheduler.max_sequences, c.MAX_BATCHED: scheduler.max_batched_tokens,
        c.RESERVE_PROMPT: int(scheduler.reserve_prompt), c.SWAP: int(scheduler.preemption == "swap"),
        c.NUM_BLOCKS: cache.num_blocks, c.BLOCK_TOKENS: cache.block_tokens, c.UNIT_BLOCKS: unit,
        c.UNIT_TOKENS: unit * cache.block_tokens, c.PREFIX: int(cache.prefix), c.HOST_NS: cache.host_block_ns,
        c.DISK_NS: cache.disk_block_ns, c.SWAP_BLOCKS: cache.swap_blocks, c.SWAP_NS: cache.swap_block_ns,
        c.MAX_QUEUE: pool.max_queue, c.LINK_NS: pool.link.block_ns, c.LINK_LATENCY: pool.link.latency_ns,
        c.START_NS: pool.cold_start.total_ns, c.MOST_TOKENS: int(prepared.most_tokens[index]),
    }  # fmt: skip
    if scale is not None:
        values |= {
            c.SCALED: 1, c.MIN_REPLICAS: scale.min_replicas, c.MAX_REPLICAS: scale.max_replicas,
            c.TARGET: scale.target_requests, c.INTERVAL: scale.interval_ns,
            c.UP_PATIENCE: scale.up_patience_ns, c.DOWN_PATIENCE: scale.down_patience_ns,
        }  # fmt: skip
    return [values.get(column, 0) for column in range(c.NUM_POOL)]


def _capacities(prepared: Prepared) -> IntArray:
    """Units that each replica's chip, host memory and disk hold."""
    hashed = len(prepared.requests.block_hashes) > 0
    by_pool = []
    for pool, unit in zip(prepared.deployment.pools, prepared.unit_blocks, strict=True):
        cache = pool.cache
        blocks = (cache.num_blocks, cache.host_blocks, cache.disk_blocks)
        by_pool.append([size // int(unit) if cache.prefix and hashed else 0 for size in blocks])
    return np.array([by_pool[pool] for pool in prepared.pool_of], dtype=np.int64).ravel()
