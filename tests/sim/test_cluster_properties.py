"""Any cluster, jobs, policy and misfortunes: all ends, all is accounted for, and the journal replays."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.control.journal import decode_record
from groundplane.control.policy import policy_event
from groundplane.control.replay import replay
from groundplane.sim.cluster import World, run_world
from groundplane.sim.faults import FaultRates
from groundplane.sim.physics import PlacedPhysics
from groundplane.sim.site import SiteNode
from groundplane.sim.summary import ACCOUNTS, summarise
from groundplane.sim.workload import SimJob, gang_of
from groundplane.spec.policy import POLICY_NAMES, PolicySpec, PreemptionSpec, QueueSpec, named_policy

S = 10**9


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, list[SimJob]]:
    devices = draw(st.sampled_from([1, 4, 8]))
    num_nodes = draw(st.integers(1, 8))
    leaf = draw(st.integers(1, 4))
    site = [
        SiteNode(f"n{number}", devices, (f"s{number // (2 * leaf)}", f"l{number // leaf}"))
        for number in range(num_nodes)
    ]
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= num_nodes * devices]
    jobs, at_s = [], 0
    for number in range(draw(st.integers(1, 25))):
        at_s += draw(st.integers(0, 600))
        run_s, error = draw(st.integers(1, 5_000)), draw(st.sampled_from([0.0, 0.3, 1.0, 4.0]))
        jobs.append(
            SimJob(
                f"j{number}",
                at_s * S,
                gang_of(draw(st.sampled_from(sizes)), devices),
                run_s * S,
                int(run_s * error) * S,
                draw(st.sampled_from(["a", "b"])),
                draw(st.sampled_from([0, 0, 10])),
            )
        )
    name = draw(st.sampled_from([*POLICY_NAMES, "preempting"]))
    if name == "preempting":
        queues = (QueueSpec("a", guaranteed_devices=4), QueueSpec("b", weight=2))
        spec = PolicySpec(queues, preemption=PreemptionSpec(min_run_s=10.0))
    else:
        spec = named_policy(name, ["a", "b"])
    faults = draw(st.sampled_from([None, FaultRates().scaled(200)]))
    world = World(
        site,
        PlacedPhysics(site, checkpoint_delay_ns=draw(st.sampled_from([0, 20 * S]))),
        policy_event(spec),
        faults,
        checkpoint_every_ns=draw(st.sampled_from([60 * S, 1800 * S])),
        seed=draw(st.integers(0, 9)),
        has_timeline=draw(st.booleans()),
        keeps_journal=True,
    )
    return world, jobs


@settings(max_examples=15, deadline=None)
@given(worlds())
def test_all_ends_and_all_is_accounted_for(case: tuple[World, list[SimJob]]) -> None:
    world, jobs = case
    run = run_world(world, jobs)
    summary = summarise(run)
    assert summary.succeeded == len(jobs)
    ledger = run.final_ledger
    assert sum(getattr(ledger, f"{name}_ns") for name in ACCOUNTS) == ledger.total_ns
    assert ledger.total_ns == ledger.now_ns * run.num_devices
    assert ledger.num_leased == 0
    if world.fault_rates is None:
        # Useful work is in the books at least once: no job is done by less than it takes. With faults a start
        # may be seen late (a dead control plane, a silent node): what ran until then is allocated idle.
        asked_ns = sum(job.run_ns * job.num_devices for job in jobs)
        assert ledger.busy_ns >= asked_ns - len(jobs) * 10**9
    assert all(job.first_started_ns >= job.submitted_ns for job in run.jobs)
    report = replay(decode_record(payload) for payload in run.journal)
    assert (report.divergence, report.digest) == (None, run.core.digest())
    if run.timeline is not None:
        totals = {sample.held + sample.free + sample.closed for sample in run.timeline.samples}
        assert totals == {run.num_devices}
        assert all(bar.end_ns >= bar.start_ns for bar in run.timeline.bars)
