"""A gang of the whole cluster under a flood of small jobs starts within the bound that the docs state.

Once it is the head it waits for what runs and for what is predicted to end before its planned start, each of
them once: at most the longest predicted and the longest real run time together.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

import pytest

from groundplane.control.actions import AnyAction, StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import (
    Gang,
    JobSubmitted,
    NodeJoined,
    OrderRules,
    PolicySet,
    PreemptionRules,
    QueueRule,
    RestartPolicy,
    WorkGone,
)

S = 1_000_000_000
ONCE = RestartPolicy(0, 0, 0)
NODES, DEVICES = 3, 4
LONGEST_PREDICTED_S, LONGEST_RUN_S = 20, 60
"""Small jobs say up to 20 s, and run for up to three times that."""
GANG_RUN_S = 30
GANG_AT_S = 50
POLICIES = {
    "one order": PolicySet(()),
    "due times": PolicySet((), 0, OrderRules(True, 400, 60 * S, True)),
    "fair shares": PolicySet((QueueRule("flood", weight=3), QueueRule("gangs")), 100 * S),
    "preemption": PolicySet((QueueRule("flood"), QueueRule("gangs")), 0, preemption=PreemptionRules()),
}


def wait_of_the_gang(policy: PolicySet, seed: int, *, predicts: bool) -> float:
    """Seconds from being the head to the start. Before the gang a job comes every 6 s, then two a second."""
    pick, core = random.Random(seed), ControlCore()
    ends: list[tuple[int, str, int]] = []
    first_ns = 0
    core.handle(0, policy)
    for number in range(NODES):
        core.handle(0, NodeJoined(f"n{number}", "gpu", DEVICES, 0))
    for tick in range(1, 1000):
        now_ns = tick * S // 2
        while ends and ends[0][0] <= now_ns:
            end_ns, work_id, fence = heapq.heappop(ends)
            actions = core.handle(end_ns, WorkGone(work_id, fence, "succeeded"))
            note(core, actions, ends, pick)
        gang, predicted_s = Gang(1, pick.choice([1, 1, 2, 4]), 0), pick.randint(1, LONGEST_PREDICTED_S)
        if tick > 2 * GANG_AT_S or tick % 12 == 0:
            job = JobSubmitted(f"s{tick}", "s", "flood", 0, gang, ONCE, 0, 0, predicted_s * S * predicts)
            note(core, core.handle(now_ns, job), ends, pick)
        if tick == 2 * GANG_AT_S:
            whole = Gang(NODES, DEVICES, 0)
            job = JobSubmitted("gang", "g", "gangs", 0, whole, ONCE, 0, 0, GANG_RUN_S * S)
            note(core, core.handle(now_ns, job), ends, pick)
        if tick >= 2 * GANG_AT_S and core.state.jobs["gang"].first_started_ns >= 0:
            return (core.state.jobs["gang"].first_started_ns - first_ns) / S
        if core.state.head_id != "gang":
            first_ns = core.state.now_ns  # none yet, or passed by one that is due before it
    return float("inf")


def note(
    core: ControlCore, actions: Sequence[AnyAction], ends: list[tuple[int, str, int]], pick: random.Random
) -> None:
    for action in actions:
        if isinstance(action, StartWork):
            run_ns = pick.randint(1, LONGEST_RUN_S) * S
            heapq.heappush(ends, (core.state.now_ns + run_ns, action.work_id, action.fence))


@pytest.mark.parametrize("name", list(POLICIES))
@pytest.mark.parametrize("predicts", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_full_cluster_gang_starts_within_the_bound(name: str, predicts: bool, seed: int) -> None:
    bound_s = LONGEST_PREDICTED_S + LONGEST_RUN_S
    assert 0 < wait_of_the_gang(POLICIES[name], seed, predicts=predicts) <= bound_s
