"""What must hold after any simulation, whatever the scenario."""

from hypothesis import given, settings
from hypothesis import strategies as st
from serving_scenarios import check_conservation, random_scenario

from groundplane.sim.serving.fast import clock
from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.state import make_state
from groundplane.sim.serving.outcome import State
from groundplane.sim.serving.prepare import prepare
from groundplane.sim.serving.reference.service import Service
from groundplane.sim.serving.simulate import simulate


@given(seed=st.integers(min_value=1000, max_value=10**9), count=st.integers(min_value=1, max_value=400))
@settings(max_examples=60, deadline=None)
def test_every_request_ends_once_and_nothing_is_lost(seed: int, count: int) -> None:
    requests, deployment = random_scenario(seed, count)
    check_conservation(requests, deployment, simulate(requests, deployment, log=True, simulator="fast"))


@given(seed=st.integers(min_value=1000, max_value=10**9))
@settings(max_examples=40, deadline=None)
def test_blocks_return_to_zero(seed: int) -> None:
    prepared = prepare(*random_scenario(seed))
    state = make_state(prepared, log=False)
    assert clock.advance(state) == clock.DONE
    idle = state.tables[:: c.LEVELS, c.NUM_IDLE] * state.replicas[:, c.UNIT_BLOCKS]
    assert (state.replicas[:, c.FREE] + idle == state.replicas[:, c.NUM_BLOCKS]).all()
    assert (state.tables[:, c.COUNT] == state.tables[:, c.NUM_IDLE]).all()
    for column in (c.WAITING_TOKENS, c.EXPECTED_TOKENS, c.CONTEXT, c.REST, c.NUM_HOLDING, c.SWAPPED_BLOCKS):
        assert not state.replicas[:, column].any()
    assert not state.lists[:, c.PHASE].any()


@given(seed=st.integers(min_value=1000, max_value=10**9))
@settings(max_examples=10, deadline=None)
def test_blocks_of_the_plain_simulator_are_never_over_capacity(seed: int) -> None:
    service = Service(prepare(*random_scenario(seed, 60)))
    tick = service._at

    def checked(now_ns: int) -> None:
        assert now_ns >= service.start_ns
        tick(now_ns)
        for replica in service.replicas:
            cache = replica.cache
            batch = (*replica.prefilling, *replica.decoding, *replica.transferring, *replica.arrived)
            private = sum(work.private_blocks for work in batch)
            private += sum(work.remote_blocks for work in replica.holding.values())
            units = len(cache.users) * cache.unit_blocks
            assert cache.free_blocks >= 0
            assert cache.free_blocks + private + units == cache.num_blocks
            users = sum(cache.users.values())
            held = sum(work.held for work in batch)
            assert users == held + sum(work.remote_held for work in replica.holding.values())

    service._at = checked  # type: ignore[method-assign]
    service.run()
    assert all(work.state in list(State) for work in service.works)
    assert all(replica.cache.used_blocks == 0 for replica in service.replicas)
