"""The order within a queue, and where small gangs go: due times, no backfill, packing by ends."""

from __future__ import annotations

import pytest

from groundplane.control import events as ev
from groundplane.control.actions import StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import Gang, RestartPolicy
from groundplane.control.policy import policy_event
from groundplane.spec.errors import InputError
from groundplane.spec.policy import POLICY_NAMES, PolicySpec, named_policy

S = 10**9
RESTART = RestartPolicy(0, 0, 0)


class Cluster:
    """Nodes of four devices under one policy; jobs start, and end when they are told to."""

    def __init__(self, policy: PolicySpec, num_nodes: int = 1) -> None:
        self.core = ControlCore()
        self.now_ns = 0
        self.started: dict[str, StartWork] = {}
        self.give(policy_event(policy))
        for number in range(num_nodes):
            self.give(ev.NodeJoined(f"n{number}", "gpu", 4, 1 << 40))

    def give(self, event: ev.AnyEvent, at_s: int | None = None) -> None:
        self.now_ns = self.now_ns if at_s is None else at_s * S
        for action in self.core.handle(self.now_ns, event):
            if isinstance(action, StartWork):
                self.started[action.owner_id] = action

    def submit(self, job_id: str, devices: int, run_s: int, at_s: int | None = None) -> None:
        ranks, per_rank = (1, devices) if devices <= 4 else (devices // 4, 4)
        gang = Gang(ranks, per_rank, 0)
        self.give(ev.JobSubmitted(job_id, job_id, "q", 0, gang, RESTART, 0, 0, run_s * S), at_s)

    def end(self, job_id: str, at_s: int | None = None) -> None:
        work = self.started[job_id]
        self.give(ev.WorkStarted(work.work_id, work.fence), at_s)
        self.give(ev.WorkGone(work.work_id, work.fence, "succeeded"))

    def node_of(self, job_id: str) -> str:
        return self.started[job_id].placement[0].node_id


@pytest.mark.parametrize(("patience", "order"), [(0.0, ["long", "short"]), (2.0, ["short", "long"])])
def test_patience_lets_short_jobs_go_first(patience: float, order: list[str]) -> None:
    """Due: long at 10 + 2 x 800 / 4 = 410 s, short at 20 + 2 x 40 / 4 = 40 s."""
    cluster = Cluster(PolicySpec(patience=patience))
    cluster.submit("first", 4, 100)
    cluster.submit("long", 4, 800, 10)
    cluster.submit("short", 4, 40, 20)
    cluster.end("first", 100)
    cluster.end(order[0], 900)
    assert list(cluster.started) == ["first", *order]


def test_patience_is_bounded_by_the_due_time() -> None:
    """Whatever short jobs keep coming, those that come after a job's due time do not pass it."""
    cluster = Cluster(PolicySpec(patience=1.0))
    cluster.submit("first", 4, 1000)
    cluster.submit("long", 4, 400, 1)  # due at 101 s
    cluster.submit("early", 4, 40, 50)  # due at 60 s
    cluster.submit("late", 4, 40, 95)  # due at 105 s
    cluster.end("first", 200)
    cluster.end("early", 300)
    assert list(cluster.started) == ["first", "early", "long"]


def test_larger_gangs_have_less_patience() -> None:
    """At 100 s both are submitted: eight devices are due at 150 s, one device at 500 s."""
    cluster = Cluster(PolicySpec(patience=1.0), num_nodes=2)
    cluster.submit("first", 8, 1000)
    cluster.submit("one", 1, 400, 100)
    cluster.submit("eight", 8, 400, 100)
    cluster.end("first", 200)
    assert list(cluster.started) == ["first", "eight"]


def test_without_backfill_nothing_passes_the_head() -> None:
    for backfill, expected in ((True, ["first", "small"]), (False, ["first"])):
        cluster = Cluster(PolicySpec(backfill=backfill))
        cluster.submit("first", 2, 1000)
        cluster.submit("big", 4, 100)
        cluster.submit("small", 2, 100)
        assert list(cluster.started) == expected


def test_small_gangs_go_where_the_node_stays_busy_anyway() -> None:
    """n0 holds three devices for 100 s, n1 two for 1,000 s: a job of 900 s fits n0 best, but goes to n1."""
    for pack_by_end, node_id in ((False, "n0"), (True, "n1")):
        cluster = Cluster(PolicySpec(pack_by_end=pack_by_end), num_nodes=2)
        cluster.submit("short", 3, 100)
        cluster.submit("long", 2, 1000)
        cluster.submit("job", 1, 900)
        assert (cluster.node_of("short"), cluster.node_of("long")) == ("n0", "n1")
        assert cluster.node_of("job") == node_id


def test_a_new_policy_reorders_what_waits() -> None:
    cluster = Cluster(PolicySpec())
    cluster.submit("first", 4, 100)
    cluster.submit("long", 4, 800, 10)
    cluster.submit("short", 4, 40, 20)
    cluster.give(policy_event(PolicySpec(patience=2.0)), 30)
    restored = ControlCore.restore(cluster.core.snapshot())
    assert restored.digest() == cluster.core.digest()
    cluster.end("first", 100)
    assert list(cluster.started) == ["first", "short"]


def test_named_policies() -> None:
    assert named_policy("fair-share", ["b", "a"]).queues[0].name == "a"
    assert [policy_event(named_policy(name)).order.is_backfilling for name in POLICY_NAMES] == [
        True, False, True, True,
    ]  # fmt: skip
    with pytest.raises(InputError, match="did you mean 'fifo'"):
        named_policy("fifi")
