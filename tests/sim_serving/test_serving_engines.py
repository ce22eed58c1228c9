"""What engines do, by hand: one thing at a time, in both simulators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from serving_scenarios import assert_same

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
from groundplane.sim.serving.simulate import simulate
from groundplane.spec.errors import InputError

MS = 1_000_000
TABLE = linear_table(base_ns=10 * MS, prompt_token_ns=10_000, max_sequences=8, max_batched_tokens=512)
"""10 ms an iteration, and 1 ms for 100 prompt tokens; the last of each further prompt counts as a sequence's,
which is free here."""
POOL = PoolSpec("pool", TABLE, CacheSpec(num_blocks=1000), SchedulerSpec("vllm-v1", 8, 512))

Run = Callable[..., Outcome]


def run(requests: Requests, *pools: PoolSpec, **rules: object) -> Outcome:
    """Simulates with both, and they agree."""
    deployment = Deployment(pools, **rules)  # type: ignore[arg-type]
    outcome = simulate(requests, deployment, log=True, simulator="fast")
    assert_same(outcome, simulate(requests, deployment, log=True, simulator="reference"))
    return outcome


def asked(arrival_ms: list[int], prompt: list[int], output: list[int], **more: list[int]) -> Requests:
    arrays = {name: np.array(values, dtype=np.int64) for name, values in more.items() if name != "hashes"}
    hashes = more.get("hashes")
    if hashes is not None:
        arrays["block_hashes"] = np.concatenate([np.array(h, dtype=np.int64) for h in hashes])
        arrays["block_offsets"] = np.cumsum([0, *(len(h) for h in hashes)])
    return Requests.of(np.array(arrival_ms) * MS, np.array(prompt), np.array(output), **arrays)


def ms(times_ns: np.ndarray) -> list[float]:
    return [round(float(time) / MS, 3) for time in times_ns]


def count(outcome: Outcome, kind: EventKind) -> int:
    assert outcome.log is not None
    return int((outcome.log.kind == kind).sum())


def test_one_request_takes_its_iterations() -> None:
    outcome = run(asked([5], [300], [4]), POOL)
    assert ms(outcome.admitted_ns) == [5]
    assert ms(outcome.first_token_ns) == [5 + 13]
    assert ms(outcome.finish_ns) == [18 + 30]
    assert ms(outcome.max_gap_ns) == [10]
    assert outcome.replicas.iterations.tolist() == [4]
    assert outcome.replicas.kv_peak_blocks.tolist() == [19]  # 303 tokens in blocks of 16


def test_a_long_prompt_is_cut_beside_a_decoding_sequence() -> None:
    outcome = run(asked([0, 1], [100, 900], [5, 2]), POOL)
    # 11 ms; then 1 + 511 tokens in 15.11; then 1 + 389 in 13.89.
    assert ms(outcome.first_token_ns) == [11, 40]
    # The long one decodes with the other's last two tokens.
    assert ms(outcome.finish_ns) == [60, 50]
    assert ms(outcome.max_gap_ns) == [15.11, 10]


def test_prompts_go_alone_with_sglang() -> None:
    pool = replace(POOL, scheduler=SchedulerSpec("sglang", 8, 512))
    outcome = run(asked([0, 1], [100, 900], [5, 2]), pool)
    # 11 ms; 512 tokens in 15.12; 388 in 13.88; then both decode.
    assert ms(outcome.first_token_ns) == [11, 40]
    assert ms(outcome.finish_ns) == [80, 50]
    assert ms(outcome.max_gap_ns) == [39, 10]


def test_a_prefix_is_found_but_for_the_last_token() -> None:
    same = asked([0, 100], [64, 64], [2, 2], hashes=[[1, 2, 3, 4], [1, 2, 3, 4]])
    outcome = run(same, POOL)
    assert outcome.hit_tokens.tolist() == [0, 48]
    assert ms(outcome.first_token_ns) == [10.64, 100 + 10.16]
    other = asked([0, 100], [64, 64], [2, 2], hashes=[[1, 2, 3, 4], [1, 9, 10, 11]])
    assert run(other, POOL).hit_tokens.tolist() == [0, 16]
    without = replace(POOL, cache=CacheSpec(1000, prefix=False))
    assert run(same, without).hit_tokens.tolist() == [0, 0]


def test_the_next_turn_finds_the_answer_of_the_one_before() -> None:
    turns = asked([0, 1000], [32, 70], [33, 1], hashes=[[1, 2, 3, 4], [1, 2, 3, 4]])
    assert run(turns, POOL).hit_tokens.tolist() == [0, 64]


def test_the_least_recently_used_goes_first() -> None:
    small = replace(POOL, cache=CacheSpec(num_blocks=6))
    requests = asked(
        [0, 100, 200, 300, 400], [33, 33, 33, 33, 33], [1, 1, 1, 1, 1],
        hashes=[[1, 2], [3, 4], [1, 2], [5, 6], [1, 2]],
    )  # fmt: skip
    # The fourth needs three blocks and two are free: of (3, 4), the older pair, the tail goes.
    outcome = run(requests, small)
    assert outcome.hit_tokens.tolist() == [0, 0, 32, 0, 32]
    assert outcome.replicas.evicted_blocks.tolist() == [1]


def test_evicted_blocks_come_back_from_host_memory() -> None:
    tiers = CacheSpec(num_blocks=3, host_blocks=8, host_block_ns=20 * MS)
    requests = asked([0, 100, 200], [33, 33, 33], [1, 1, 1], hashes=[[1, 2], [3, 4], [1, 2]])
    outcome = run(requests, replace(POOL, cache=tiers))
    assert outcome.tier_hit_tokens.tolist() == [0, 0, 32]
    # Two blocks are loaded in 40 ms, longer than the 10.01 of the iteration.
    assert ms(outcome.first_token_ns)[2] == 240


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_the_last_gives_way_when_blocks_run_out(preemption: str) -> None:
    scheduler = SchedulerSpec("vllm-v1", 8, 512, preemption=preemption)  # type: ignore[arg-type]
    cache = CacheSpec(num_blocks=5, prefix=False, swap_blocks=8, swap_block_ns=3 * MS)
    outcome = run(asked([0, 0], [30, 30], [20, 20]), replace(POOL, scheduler=scheduler, cache=cache))
    assert outcome.preemptions.tolist() == [0, 1]
    assert outcome.state.tolist() == [State.ENDED, State.ENDED]
    # Both have 32 tokens after two steps; the first takes the fifth block and goes on alone.
    first_ms = 10.59
    end_ms = first_ms + 19 * 10
    if preemption == "recompute":
        assert ms(outcome.finish_ns) == pytest.approx([end_ms, end_ms + 10.33 + 16 * 10])
    else:
        assert ms(outcome.finish_ns) == pytest.approx([end_ms + 6, end_ms + 6 + 6 + 17 * 10])


def test_trtllm_starts_no_request_that_could_be_evicted() -> None:
    pool = replace(POOL, scheduler=SchedulerSpec("trtllm", 8, 512), cache=CacheSpec(5, prefix=False))
    outcome = run(asked([0, 0], [30, 30], [20, 20]), pool)
    assert outcome.preemptions.tolist() == [0, 0]
    assert outcome.admitted_ns[1] == outcome.finish_ns[0]


def test_higher_priority_goes_first() -> None:
    one = replace(POOL, scheduler=SchedulerSpec("vllm-v1", 1, 512))
    outcome = run(asked([0, 1, 2], [10, 10, 10], [3, 3, 3], priority=[0, 0, 5]), one)
    assert outcome.finish_ns.argsort().tolist() == [0, 2, 1]


def test_a_full_line_and_a_long_request_are_refused() -> None:
    one = replace(POOL, scheduler=SchedulerSpec("vllm-v1", 1, 512), max_queue=1)
    outcome = run(asked([0, 1, 2, 3], [10, 10, 10, 20_000], [9, 9, 9, 9]), one)
    expected = [State.ENDED, State.ENDED, State.REJECTED_FULL, State.REJECTED_LONG]
    assert outcome.state.tolist() == expected


def test_a_cache_goes_over_the_link_once_and_in_order() -> None:
    link = LinkSpec(block_ns=5 * MS, latency_ns=MS)
    prefill = replace(POOL, role="prefill", link=link)
    decode = replace(POOL, role="decode", link=LinkSpec())
    outcome = run(asked([0, 0], [64, 64], [3, 3]), prefill, decode)
    # One iteration of 11.27 ms, then four blocks each: 21 ms, the second behind the first.
    assert ms(outcome.first_token_ns) == [11.27, 11.27]
    assert ms(outcome.transfer_ns) == [21, 42]
    assert ms(outcome.finish_ns) == [52.27, 73.27]
    assert ms(outcome.max_gap_ns) == [31, 52]
    assert outcome.prefill_replica.tolist() == [0, 0]
    assert outcome.replica.tolist() == [1, 1]
    assert outcome.replicas.prompt_tokens.tolist() == [128, 0]


def test_prefix_routing_goes_where_the_blocks_are() -> None:
    two = replace(POOL, count=2)
    requests = asked(
        [0, 1, 300, 400], [64, 64, 80, 80], [2, 2, 2, 2],
        hashes=[[1, 2, 3, 4], [5, 6, 7, 8], [5, 6, 7, 8, 9], [1, 2, 3, 4, 10]],
    )  # fmt: skip
    outcome = run(requests, two, routing=RoutingSpec("prefix"))
    assert outcome.replica.tolist() == [0, 1, 1, 0]
    assert outcome.hit_tokens.tolist() == [0, 0, 64, 64]


def test_sessions_stay_and_others_take_turns() -> None:
    two = replace(POOL, count=2)
    requests = asked([0, 100, 200, 300], [9] * 4, [1] * 4, session=[7, 8, 7, 8])
    assert run(requests, two, routing=RoutingSpec("session")).replica.tolist() == [0, 1, 0, 1]
    turns = asked([0, 100, 200], [9] * 3, [1] * 3)
    assert run(turns, two, routing=RoutingSpec("round_robin")).replica.tolist() == [0, 1, 0]


def test_a_lost_replica_hands_its_requests_on() -> None:
    two = replace(POOL, count=2, cold_start=ColdStart(5 * MS, 10 * MS, 5 * MS))
    lost = (ReplicaFailure(0, 0, 25 * MS, 30 * MS),)
    outcome = run(asked([0], [100], [5]), two, failures=lost)
    # Two tokens were sent; the other replica computes 102 tokens and goes on.
    assert outcome.moves.tolist() == [1]
    assert outcome.replica.tolist() == [1]
    assert ms(outcome.finish_ns) == [round(25 + 11.02 + 20, 3)]
    assert ms(outcome.max_gap_ns) == [round(36.02 - 21, 3)]
    failed = run(asked([0], [100], [5]), two, failures=lost, on_failure="fail")
    assert failed.state.tolist() == [State.FAILED]
    assert failed.output_tokens.tolist() == [2]


def test_requests_wait_for_a_cold_start() -> None:
    one = replace(POOL, cold_start=ColdStart(5 * MS, 10 * MS, 5 * MS))
    lost = (ReplicaFailure(0, 0, 5 * MS, 30 * MS),)
    outcome = run(asked([0, 10], [100, 100], [1, 1]), one, failures=lost)
    # Lost at 5, begins at 35, up at 55: both prompts in one iteration of 11.99 ms.
    assert ms(outcome.finish_ns) == [66.99, 66.99]
    assert ms(outcome.replicas.up_ns) == pytest.approx([5 + 31.99])
    assert ms(outcome.replicas.ready_ns) == pytest.approx([5 + 11.99])
    assert outcome.replicas.starts.tolist() == [2]


def test_a_pool_grows_under_load_and_shrinks_after_it() -> None:
    scale = AutoscaleSpec(1, 3, 4, 50 * MS, 0, 100 * MS)
    pool = replace(POOL, autoscale=scale, cold_start=ColdStart(20 * MS, 0, 0))
    arrival = [*range(0, 400, 10), 2000]
    outcome = run(asked(arrival, [50] * 41, [20] * 41), pool)
    assert outcome.replicas.starts.tolist() == [1, 1, 1]
    assert count(outcome, EventKind.STOPPED) == 2
    assert outcome.replicas.up_ns[0] == outcome.end_ns
    assert (outcome.replicas.up_ns[1:] < outcome.end_ns).all()
    assert (outcome.state == State.ENDED).all()


def test_time_outside_the_engine_comes_before_the_first_token() -> None:
    slow = replace(POOL, outside_ns=7 * MS, outside_token_ps=1_000_000)
    outcome = run(asked([0], [100], [2]), slow)
    assert ms(outcome.first_token_ns) == [11 + 7.1]
    assert ms(outcome.finish_ns) == [21 + 7.1]


def test_nothing_comes_of_nothing() -> None:
    outcome = run(asked([], [], []), POOL)
    assert len(outcome.state) == 0
    assert outcome.end_ns == 0


@pytest.mark.parametrize(
    ("pools", "field"),
    [
        ((), "pools"),
        ((replace(POOL, role="prefill"),), "pools"),
        ((replace(POOL, count=0),), "pools[0].count"),
        ((replace(POOL, cache=CacheSpec(0)),), "pools[0].cache.num_blocks"),
        ((replace(POOL, scheduler=SchedulerSpec("vllm-v1", 9, 512)),), "pools[0].scheduler.max_sequences"),
        ((replace(POOL, cache=CacheSpec(10, block_tokens=12)),), "pools[0].cache.block_tokens"),
        ((replace(POOL, model=1),), "model[0]"),
    ],
)
def test_what_cannot_be_is_refused(pools: tuple[PoolSpec, ...], field: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(asked([0], [32], [1], hashes=[[1, 2]]), Deployment(pools))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("arrival", "prompt", "field"),
    [
        ([3, 2], [1, 1], "arrival_ns[1]"),
        ([-1, 2], [1, 1], "arrival_ns[0]"),
        ([1, 2], [1, 0], "prompt_tokens[1]"),
    ],
)
def test_bad_requests_are_refused(arrival: list[int], prompt: list[int], field: str) -> None:
    with pytest.raises(InputError) as caught:
        asked(arrival, prompt, [1, 1])
    assert caught.value.field == field
