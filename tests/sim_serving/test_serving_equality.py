"""The compiled simulator against the plain one: every event, every number."""

import numpy as np
import pytest
from serving_scenarios import assert_same, check_conservation, random_scenario

from groundplane.sim.serving.outcome import EventKind, State
from groundplane.sim.serving.simulate import simulate


@pytest.mark.parametrize("seeds", [range(0, 10), range(10, 20), range(20, 30), range(30, 40), range(40, 50)])
def test_both_simulators_agree_on_every_event(seeds: range) -> None:
    for seed in seeds:
        requests, deployment = random_scenario(seed)
        plain = simulate(requests, deployment, log=True, simulator="reference")
        compiled = simulate(requests, deployment, log=True, simulator="fast")
        check_conservation(requests, deployment, plain)
        assert plain.log is not None
        assert compiled.log is not None
        assert_same(compiled.log, plain.log, f"seed {seed}: log")
        assert_same(compiled, plain, f"seed {seed}")


def test_the_scenarios_hold_what_they_are_for() -> None:
    kinds = dict.fromkeys(EventKind, 0)
    states = dict.fromkeys(State, 0)
    swapped = tiers = moved = 0
    for seed in range(50):
        requests, deployment = random_scenario(seed)
        outcome = simulate(requests, deployment, log=True, simulator="fast")
        assert outcome.log is not None
        for kind in EventKind:
            kinds[kind] += int((outcome.log.kind == kind).sum())
        for state in State:
            states[state] += int((outcome.state == state).sum())
        swapped += any(pool.cache.swap_blocks for pool in deployment.pools) and int(outcome.preemptions.sum())
        tiers += int((outcome.tier_hit_tokens > 0).sum())
        moved += int((outcome.moves > 0).sum())
    assert min(kinds.values()) >= 20, kinds
    assert min(states.values()) >= 20, states
    assert min(swapped, tiers, moved) >= 20


def test_a_log_larger_than_its_buffer_is_whole() -> None:
    requests, deployment = random_scenario(3, count=40)
    requests.output_tokens[:] = np.minimum(requests.output_tokens * 20, 2000)
    plain = simulate(requests, deployment, log=True, simulator="reference")
    assert_same(simulate(requests, deployment, log=True, simulator="fast"), plain)


def test_the_log_changes_nothing_else() -> None:
    requests, deployment = random_scenario(7)
    with_log = simulate(requests, deployment, log=True, simulator="fast")
    without = simulate(requests, deployment, simulator="fast")
    assert without.log is None
    assert (with_log.finish_ns == without.finish_ns).all()
    assert with_log.end_ns == without.end_ns
