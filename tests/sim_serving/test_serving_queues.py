"""Queues with a known answer, by the same simulator with a constant iteration."""

from math import factorial

import numpy as np

from groundplane.sim.serving.deployment import CacheSpec, Deployment, PoolSpec, SchedulerSpec
from groundplane.sim.serving.iteration import linear_table
from groundplane.sim.serving.requests import Requests
from groundplane.sim.serving.simulate import simulate


def one_engine(servers: int, iteration_ns: int) -> Deployment:
    table = linear_table(
        base_ns=iteration_ns, max_sequences=servers, max_batched_tokens=64, max_context=1 << 16
    )
    cache = CacheSpec(num_blocks=servers << 12, prefix=False)
    return Deployment((PoolSpec("queue", table, cache, SchedulerSpec("vllm-v1", servers, 64)),))


def test_md1_waits_as_pollaczek_and_khinchine_say() -> None:
    service_ns, load, count = 1_000_000, 0.6, 400_000
    gaps = np.random.default_rng(1).exponential(service_ns / load, count)
    ones = np.ones(count, dtype=np.int64)
    requests = Requests.of(np.cumsum(gaps).astype(np.int64), ones, ones)
    outcome = simulate(requests, one_engine(1, service_ns))
    waited_ns = np.mean(outcome.admitted_ns - requests.arrival_ns)
    expected_ns = load * service_ns / (2 * (1 - load))
    assert abs(waited_ns / expected_ns - 1) < 0.02
    assert (outcome.finish_ns - outcome.admitted_ns == service_ns).all()
    busy = outcome.replicas.busy_ns[0] / outcome.end_ns
    assert abs(busy / load - 1) < 0.02


def test_mmc_waits_as_erlang_says() -> None:
    servers, load, count, step_ns, mean_steps = 4, 0.7, 400_000, 100_000, 120
    draw = np.random.default_rng(5)
    rate = load * servers / (mean_steps * step_ns)
    arrival = np.cumsum(draw.exponential(1 / rate, count)).astype(np.int64)
    steps = draw.geometric(1 / mean_steps, count)
    requests = Requests.of(arrival, np.ones(count, dtype=np.int64), steps)
    outcome = simulate(requests, one_engine(servers, step_ns))
    offered = load * servers
    top = offered**servers / factorial(servers) / (1 - load)
    waits = top / (sum(offered**k / factorial(k) for k in range(servers)) + top)
    expected_ns = waits * mean_steps * step_ns / (servers * (1 - load))
    # A free server is taken at the next step only: half a step more for those that find others at work.
    waited_ns = np.mean(outcome.admitted_ns - requests.arrival_ns) - step_ns / 2
    assert abs(waited_ns / expected_ns - 1) < 0.02
