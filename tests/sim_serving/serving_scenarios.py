"""Random scenarios of the serving simulator, and what must hold after any of them."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from groundplane.sim.serving.deployment import (
    AutoscaleSpec,
    CacheSpec,
    ColdStart,
    Deployment,
    LinkSpec,
    PoolSpec,
    ReplicaFailure,
    RoutingSpec,
    SchedulerSpec,
)
from groundplane.sim.serving.iteration import linear_table
from groundplane.sim.serving.outcome import EventKind, Outcome, State
from groundplane.sim.serving.requests import Requests

TABLE = linear_table(
    base_ns=2_000_000, sequence_ns=20_000, context_ps=90_000, prompt_token_ns=9_000,
    max_sequences=64, max_batched_tokens=1024, max_context=4096,
)  # fmt: skip
KINDS = ("vllm-v1", "sglang", "trtllm", "trtllm-max-utilization")
MS = 1_000_000


def random_requests(draw: np.random.Generator, count: int, num_models: int, unit_tokens: int) -> Requests:
    """Bursty arrivals; prompts that share beginnings as turns of conversations do."""
    gaps = draw.gamma(0.4, 1.0, count) * draw.choice([1, 4, 12]) * MS
    arrival = np.cumsum(gaps.astype(np.int64) // MS * MS)  # on whole milliseconds: many at one time
    prompt = np.minimum(draw.lognormal(4.2, 1.0, count).astype(np.int64) + 1, 900)
    output = np.minimum(draw.lognormal(2.8, 1.0, count).astype(np.int64) + 1, 300)
    output[draw.random(count) < 0.1] = 1
    session = draw.integers(-1, max(count // 6, 1), count)
    hashes: list[int] = []
    offsets = [0]
    for index in range(count):
        length = int((prompt[index] + output[index]) // unit_tokens)
        shared = int(draw.integers(0, length + 1))
        root = int(session[index]) if session[index] >= 0 else -index - 10
        hashes += [hash((root, place)) for place in range(shared)]
        hashes += [hash((index, place, "own")) & (2**62 - 1) for place in range(shared, length)]
        offsets.append(len(hashes))
    return Requests.of(
        arrival, prompt, output,
        model=draw.integers(0, num_models, count),
        priority=draw.integers(0, 3, count) if draw.random() < 0.5 else None,
        session=session,
        block_hashes=np.array(hashes, dtype=np.int64),
        block_offsets=np.array(offsets, dtype=np.int64),
        hash_block_tokens=unit_tokens,
    )  # fmt: skip


def random_pool(draw: np.random.Generator, model: int, role: str, block_tokens: int) -> PoolSpec:
    kind = str(draw.choice(KINDS))
    tight = draw.random() < 0.6
    tokens = int(draw.integers(300, 900)) if tight else 20_000
    swap = kind != "sglang" and draw.random() < 0.4
    tiers = draw.random() < 0.4
    count = int(draw.integers(1, 4))
    scale = None
    if draw.random() < 0.3:
        scale = AutoscaleSpec(
            int(draw.integers(0, 2)), count + 2, int(draw.integers(2, 8)), 50 * MS,
            int(draw.integers(0, 100)) * MS, int(draw.integers(0, 300)) * MS,
        )  # fmt: skip
    return PoolSpec(
        name=f"{role}{model}",
        table=TABLE,
        cache=CacheSpec(
            num_blocks=-(-tokens // block_tokens), block_tokens=block_tokens, prefix=draw.random() < 0.8,
            host_blocks=40 if tiers else 0, host_block_ns=30_000, disk_blocks=100 if tiers else 0,
            disk_block_ns=200_000, swap_blocks=60 if swap else 0, swap_block_ns=40_000,
        ),
        scheduler=SchedulerSpec(
            kind=kind, max_sequences=int(draw.choice([4, 16, 64])),
            max_batched_tokens=int(draw.choice([64, 256, 1024])), reserve_prompt=draw.random() < 0.5,
            preemption="swap" if swap else "recompute",
        ),
        count=count, model=model, role=role, max_queue=int(draw.choice([2, 30, 10_000])),
        link=LinkSpec(int(draw.choice([0, 20_000, 300_000])), int(draw.choice([0, MS]))),
        cold_start=ColdStart(int(draw.integers(0, 2)) * MS, 20 * MS, int(draw.integers(0, 30)) * MS),
        autoscale=scale, outside_ns=int(draw.choice([0, MS])), outside_token_ps=1000,
    )  # fmt: skip


def random_scenario(seed: int, count: int = 150) -> tuple[Requests, Deployment]:
    """One scenario of every feature, by its seed."""
    draw = np.random.default_rng(seed)
    block_tokens = int(draw.choice([4, 16]))
    unit_tokens = block_tokens * int(draw.choice([1, 2, 4]))
    num_models = int(draw.integers(1, 3))
    pools: list[PoolSpec] = []
    for model in range(num_models):
        if draw.random() < 0.45:
            pools += [random_pool(draw, model, role, block_tokens) for role in ("prefill", "decode")]
        else:
            pools += [random_pool(draw, model, "both", block_tokens) for _ in range(int(draw.integers(1, 3)))]
    requests = random_requests(draw, count, num_models, unit_tokens)
    end = int(requests.arrival_ns[-1])
    failures = tuple(
        ReplicaFailure(
            pool, int(draw.integers(0, pools[pool].max_replicas)), int(draw.integers(0, end + MS)) // MS * MS,
            int(draw.integers(0, 200)) * MS,
        )
        for pool in draw.integers(0, len(pools), int(draw.integers(0, 5)))
    )  # fmt: skip
    return requests, Deployment(
        pools=tuple(pools),
        routing=RoutingSpec(
            str(draw.choice(["round_robin", "least_work", "prefix", "session"])),
            int(draw.choice([500, 1000, 3000])),
        ),
        failures=failures,
        on_failure=str(draw.choice(["requeue", "fail"])),
        max_moves=int(draw.integers(0, 4)),
        max_waiting=int(draw.choice([3, 10_000])),
    )  # fmt: skip


def check_conservation(requests: Requests, deployment: Deployment, outcome: Outcome) -> None:
    """Every request ends once, tokens out are tokens asked for, time goes forward, capacity is kept."""
    ended = outcome.state == State.ENDED
    assert set(np.unique(outcome.state)) <= {int(state) for state in State}
    assert (outcome.output_tokens[ended] == requests.output_tokens[ended]).all()
    assert (outcome.output_tokens <= requests.output_tokens).all()
    assert (outcome.output_tokens[outcome.state == State.REJECTED_LONG] == 0).all()
    assert (outcome.admitted_ns[ended] >= requests.arrival_ns[ended]).all()
    assert (outcome.first_token_ns[ended] > outcome.admitted_ns[ended]).all()
    assert (outcome.finish_ns[ended] >= outcome.first_token_ns[ended]).all()
    assert (outcome.hit_tokens + outcome.tier_hit_tokens < requests.prompt_tokens).all()
    spread = outcome.finish_ns - outcome.first_token_ns
    gaps = np.maximum(requests.output_tokens - 1, 1)
    assert (outcome.max_gap_ns[ended] <= spread[ended]).all()
    assert (outcome.max_gap_ns[ended] * gaps[ended] >= spread[ended]).all()
    assert outcome.gap_counts.sum() == np.maximum(outcome.output_tokens - 1, 0).sum()
    blocks = np.array([deployment.pools[pool].cache.num_blocks for pool in outcome.replicas.pool])
    assert (outcome.replicas.kv_peak_blocks <= blocks).all()
    held = outcome.samples.used_blocks + outcome.samples.cached_blocks
    assert (outcome.samples.used_blocks >= 0).all()
    assert (held <= blocks).all()
    assert (outcome.replicas.busy_ns <= outcome.replicas.ready_ns).all()
    assert (outcome.replicas.ready_ns <= outcome.replicas.up_ns).all()
    if outcome.log is not None:
        assert (np.diff(outcome.log.time_ns) >= 0).all()
        ends = (EventKind.FINISHED, EventKind.REJECTED, EventKind.FAILED)
        subjects = outcome.log.subject[np.isin(outcome.log.kind, ends)]
        assert sorted(subjects.tolist()) == list(range(len(requests)))


def assert_same(one: object, other: object, where: str = "outcome") -> None:
    """Two outcomes are equal in every number."""
    for field in fields(one):
        first, second = getattr(one, field.name), getattr(other, field.name)
        name = f"{where}.{field.name}"
        if isinstance(first, np.ndarray):
            assert first.shape == second.shape, f"{name}: {first.shape} and {second.shape}"
            different = np.flatnonzero((first != second).ravel())
            assert not len(different), (
                f"{name}: first at {different[0]}: {first.ravel()[different[0]]} "
                f"and {second.ravel()[different[0]]}"
            )
        elif isinstance(first, int) or first is None:
            assert first == second, name
        else:
            assert_same(first, second, name)
