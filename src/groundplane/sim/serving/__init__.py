"""The event-driven service: what latencies a deployment gives under given requests.

    from groundplane.sim.serving.requests import Requests
    from groundplane.sim.serving.iteration import IterationTable, tabulate, linear_table
    from groundplane.sim.serving.engine_table import engine_table, cache_spec
    from groundplane.sim.serving.deployment import CacheSpec, Deployment, PoolSpec, SchedulerSpec, ...
    from groundplane.sim.serving.simulate import simulate
    from groundplane.sim.serving.outcome import Outcome, State, EventKind, gap_bin_edges_ns

    outcome = simulate(requests, deployment, log=False)

* `Requests` (`requests.py`): int64 arrays sorted by arrival: `arrival_ns`, `prompt_tokens`, `output_tokens`,
  `model`, `priority` (higher first), `session` (-1 none), and chained prefix hashes as `block_hashes` with
  `block_offsets`, one a whole block of `hash_block_tokens` tokens. `Requests.of(...)` fills in and checks.
* `IterationTable` (`iteration.py`): nanoseconds of an iteration, interpolated in integers.
  `engine_table(pricer, profile, ...)` makes one from `perfmodel.serving`; `linear_table` from two numbers.
* `Deployment` (`deployment.py`): pools of equal replicas with scheduler, cache and tiers, links, cold start,
  autoscaling; routing, failures and their rule, limits. Integers only; what people write is elsewhere.
* `Outcome` (`outcome.py`): arrays a request (state, admitted, first token, finish, longest gap, replica, hit
  tokens, preemptions, moves, transfer), a histogram of gaps between tokens a model, totals a replica,
  samples over time, and, with `log=True`, every event.

Two implementations give the same answer, event for event: `reference/` is plain Python and meant to be
read; `fast/` is compiled (numba, imported only when a simulation starts, compiled once an installation).
What happens at one time happens in this order: ends of iterations, ends of transfers, replicas lost,
replicas that begin to start or are up, autoscaling, arrivals, samples; within one of these by replica or
request number. Then every replica that is up and idle begins an iteration, if there is something to
compute: it sees all of that time. Control's policies (`control.routing`, `control.autoscale`) decide in
both.
"""
