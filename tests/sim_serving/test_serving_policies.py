"""Routing and autoscaling policies: hand-made cases, on lists as the gateway has them."""

from groundplane.control.autoscale import new_memory, replicas_wanted
from groundplane.control.routing import NO_REPLICA, at_home, least_cost, round_robin

YES = [True, True, True]
NONE = [0, 0, 0]


def test_round_robin_goes_on_from_the_last() -> None:
    assert round_robin(YES, NO_REPLICA) == 0
    assert round_robin(YES, 0) == 1
    assert round_robin(YES, 2) == 0
    assert round_robin([True, False, True], 0) == 2
    assert round_robin([False, True, False], 1) == 1
    assert round_robin([False, False, False], 1) == NO_REPLICA


def test_least_work_counts_prompts_and_caches() -> None:
    assert least_cost(YES, 2, [500, 100, 300], NONE, NONE, 10, 1000) == 1
    assert least_cost(YES, 2, [500, 100, 300], [0, 600, 0], NONE, 10, 1000) == 2
    assert least_cost([True, False, False], 2, [500, 100, 300], NONE, NONE, 10, 1000) == 0
    assert least_cost([False, False, False], 2, [500, 100, 300], NONE, NONE, 10, 1000) == NO_REPLICA


def test_equals_take_turns() -> None:
    assert least_cost(YES, 0, NONE, NONE, NONE, 10, 1000) == 1
    assert least_cost(YES, 2, NONE, NONE, NONE, 10, 1000) == 0


def test_a_hit_is_worth_as_much_as_it_saves() -> None:
    # 800 of 1,000 tokens are found at replica 0, where 700 wait: 900 to do, against 1,000 elsewhere.
    assert least_cost(YES, 0, [700, 0, 0], NONE, [800, 0, 0], 1000, 1000) == 0
    assert least_cost(YES, 0, [900, 0, 0], NONE, [800, 0, 0], 1000, 1000) == 1
    # Where prompt tokens weigh little, a full cache repels more than a hit attracts.
    assert least_cost(YES, 0, NONE, [500, 0, 0], [800, 0, 0], 1000, 100) == 1


def test_a_session_stays_at_home_while_that_is_able() -> None:
    assert at_home(YES, 2) == 2
    assert at_home([True, True, False], 2) == NO_REPLICA
    assert at_home(YES, NO_REPLICA) == NO_REPLICA


def wanted(
    memory: list[int], now_s: int, requests: int, replicas: int, up_s: int = 0, down_s: int = 60
) -> int:
    second = 10**9
    return replicas_wanted(
        memory, now_s * second, requests, replicas, 10, 1, 8, up_s * second, down_s * second
    )


def test_the_target_sets_the_number_within_bounds() -> None:
    assert wanted(new_memory(), 0, 35, 2) == 4
    assert wanted(new_memory(), 0, 40, 2) == 4
    assert wanted(new_memory(), 0, 41, 2) == 5
    assert wanted(new_memory(), 0, 500, 2) == 8
    assert wanted(new_memory(), 0, 0, 1) == 1


def test_growing_waits_for_a_load_that_lasts() -> None:
    memory = new_memory()
    assert wanted(memory, 0, 40, 2, up_s=30) == 2
    assert wanted(memory, 20, 40, 2, up_s=30) == 2
    assert wanted(memory, 25, 15, 2, up_s=30) == 2  # it fell in between: the wait begins again
    assert wanted(memory, 30, 40, 2, up_s=30) == 2
    assert wanted(memory, 60, 40, 2, up_s=30) == 4


def test_shrinking_keeps_the_most_that_was_wanted_meanwhile() -> None:
    memory = new_memory()
    assert wanted(memory, 0, 10, 6) == 6
    assert wanted(memory, 30, 35, 6) == 6
    assert wanted(memory, 59, 10, 6) == 6
    assert wanted(memory, 60, 10, 6) == 4
    assert wanted(memory, 70, 10, 4) == 4
    assert wanted(memory, 130, 10, 4) == 1


def test_a_burst_does_not_swing_the_pool() -> None:
    memory, replicas, seen = new_memory(), 4, []
    for step in range(60):
        replicas = wanted(memory, 10 * step, 80 if step % 6 == 0 else 10, replicas, up_s=0, down_s=120)
        seen.append(replicas)
    assert set(seen) == {8}
