"""Whatever comes, in whatever order: nothing raises, the books balance, a copy from a snapshot goes along."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from groundplane.control import events as ev
from groundplane.control.actions import JobEnded, StartWork
from groundplane.control.core import ControlCore
from groundplane.control.devices import overlaps
from groundplane.control.state import Accounts
from groundplane.control.views import ledger_view

NODES = some.sampled_from(["n0", "n1", "n2"])
JOBS = some.sampled_from(["j0", "j1", "j2"])
SERVICES = some.sampled_from(["s0", "s1"])
WORKS = some.sampled_from(["j0.a1", "j0.a2", "j1.a1", "j1.a2", "s0.r1", "s0.r2"])
FENCES = some.integers(1, 4)
SMALL = some.integers(0, 3)
PROFILES = (ev.PartProfile("1g", 1000, 1, 1, (0, 1, 2)), ev.PartProfile("2g", 3500, 1, 2, (0, 2), 1))
PARTS = some.sampled_from(
    [ev.DevicePart(3500), ev.DevicePart(1000, 1), ev.DevicePart(1000, 0, "1g"), ev.DevicePart(3500, 0, "2g")]
)
GANGS = some.one_of(
    some.builds(ev.Gang, some.integers(1, 4), some.integers(1, 2), some.integers(0, 3)),
    some.builds(ev.Gang, some.just(1), some.just(1), some.integers(0, 3), some.just(()), PARTS),
)
POLICIES = some.builds(ev.RestartPolicy, SMALL, SMALL, SMALL)
TIMERS = some.sampled_from(
    [
        "j0.backoff",
        "j1.limit",
        "s0.r2.backoff",
        "s0.r1.drain",
        "n0.node-drain",
        "n1.node-quarantine",
        "nobody",
    ]
)

EVENTS: some.SearchStrategy[Any] = some.one_of(
    some.builds(ev.NodeJoined, NODES, some.just("gpu"), some.just(3), some.just(6), some.integers(1, 3)),
    some.builds(ev.NodeSilent, NODES),
    some.builds(ev.NodeBack, NODES),
    some.builds(ev.NodeFenced, NODES, some.integers(1, 3)),
    some.builds(ev.NodeCordoned, NODES),
    some.builds(ev.NodeUncordoned, NODES),
    some.builds(
        ev.JobSubmitted, JOBS, some.just("j"), some.just("q"), SMALL, GANGS, POLICIES, SMALL, SMALL, SMALL
    ),
    some.builds(ev.JobCancelRequested, JOBS),
    some.builds(ev.WorkStarted, WORKS, FENCES),
    some.builds(ev.WorkReady, WORKS, FENCES),
    some.builds(ev.WorkUnready, WORKS, FENCES),
    some.builds(ev.WorkDrained, WORKS, FENCES),
    some.builds(ev.CheckpointCommitted, WORKS, FENCES, SMALL),
    some.builds(
        ev.WorkGone, WORKS, FENCES, some.sampled_from(["succeeded", "failed", "stopped", "start_failed"])
    ),
    some.builds(
        ev.ServiceDeployed, SERVICES, some.just("s"), some.just("q"), SMALL, SMALL, GANGS, POLICIES,
        SMALL, SMALL,
    ),
    some.builds(ev.ServiceScaled, SERVICES, SMALL),
    some.builds(ev.ServiceRemoved, SERVICES),
    some.builds(ev.KindDescribed, some.just("gpu"), SMALL, some.sampled_from([(), PROFILES])),
    some.builds(ev.NodeDrainRequested, NODES, some.integers(-1, 3)),
    some.builds(
        ev.HealthSet, SMALL, some.integers(1, 2), SMALL, SMALL, some.just(500), some.booleans(), SMALL,
        some.sampled_from([(), (ev.SpareRule("gpu", 1),)]),
    ),
    some.builds(ev.WorkStalled, WORKS, FENCES),
    some.builds(ev.WorkSlowed, WORKS, FENCES, NODES),
    some.builds(ev.TimerFired, TIMERS),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    steps=some.lists(some.tuples(some.integers(0, 3), EVENTS), max_size=60),
    snapshot_at=some.integers(0, 60),
)
def test_nothing_raises_and_the_books_balance(steps: list[tuple[int, ev.AnyEvent]], snapshot_at: int) -> None:
    core, copy, now_ns = ControlCore(), ControlCore(), 0
    fence, ended = 0, []
    for number, (pause_ns, event) in enumerate(steps):
        now_ns += pause_ns
        if number == snapshot_at:
            copy = ControlCore.restore(core.snapshot())
        actions = core.handle(now_ns, event)
        assert copy.handle(now_ns, event) == actions
        for action in actions:
            if isinstance(action, StartWork):
                assert action.fence > fence
                fence = action.fence
            if isinstance(action, JobEnded):
                ended.append(action.job_id)
        view = ledger_view(core, now_ns)
        assert view.total_ns == sum(getattr(view, name) for name in Accounts.__struct_fields__)
        for node in core.state.nodes.values():
            all_devices = [index for devices in node.leases.values() for index in devices] + [*node.free]
            assert sorted([*all_devices, *(shared.device for shared in node.shared)]) == [0, 1, 2]
            for shared in node.shared:
                assert shared.parts
                assert not overlaps(shared.parts.values(), core.state.kinds[node.device_kind])
        leased = [
            index for node in core.state.nodes.values() for held in node.leases.values() for index in held
        ]
        leased += [0 for node in core.state.nodes.values() for shared in node.shared for _ in shared.parts]
        held = sum(
            len(rank.devices)
            for work in core.state.works.values()
            for rank in work.placement
            if rank.node_id not in work.lost_nodes
        )
        assert len(leased) == held
        assert view.num_leased == sum(3 - len(node.free) for node in core.state.nodes.values())
    assert len(ended) == len(set(ended))
    assert copy.digest() == core.digest()
