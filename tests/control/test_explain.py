from __future__ import annotations

from control_hand import Hand, S

from groundplane.control.events import (
    Gang,
    JobCancelRequested,
    JobSubmitted,
    PolicySet,
    PreemptionRules,
    QueueRule,
    RestartPolicy,
    WindowSet,
)
from groundplane.control.views import explain_job, job_view, job_views, ledger_view, work_view, work_views


def reason(hand: Hand, job_id: str) -> str:
    explanation = explain_job(hand.core, job_id, int(hand.now_s * S))
    assert explanation is not None
    return explanation.reason


def test_why_a_job_waits(hand: Hand) -> None:
    assert explain_job(hand.core, "nobody", 0) is None
    hand.submit("j", ranks=3, devices=2)
    assert reason(hand, "j").startswith("needs 3 x 2 devices, more than jobs could ever give back")
    hand.node("n0", devices=4)
    hand.node("n1", devices=4)
    hand.submit("head", ranks=2, devices=2, predicted_s=50, at_s=10)
    hand.submit("behind", ranks=1, devices=4, at_s=12)
    hand.now_s = 20
    head = explain_job(hand.core, "head", 20 * S)
    assert head is not None
    assert (head.needed_devices, head.num_ahead, head.waited_ns) == (4, 0, 10 * S)
    assert head.reason == (
        "needs 2 x 2 devices; now 2 free, room for 1 ranks; "
        "it is the first in the queue and devices are kept for it"
    )
    behind = explain_job(hand.core, "behind", 20 * S)
    assert behind is not None
    assert behind.state == "queued"
    assert [ahead.waiting_id for ahead in behind.ahead] == ["head"]
    assert behind.reason.endswith("1 ahead, devices are kept for head")


def test_the_expected_start_is_that_of_the_plan(hand: Hand) -> None:
    hand.node("n0", devices=1)
    hand.submit("a", predicted_s=100)
    hand.submit("b", at_s=40)
    explanation = explain_job(hand.core, "b", 40 * S)
    assert explanation is not None
    assert explanation.expected_start_ns == 100 * S


def test_who_is_behind_is_told_when_it_will_start(hand: Hand) -> None:
    """The first runs until 100, the second until 150; the third starts then."""
    hand.node("n0", devices=1)
    hand.submit("a", predicted_s=100)
    hand.submit("b", at_s=40, predicted_s=50)
    hand.submit("c", at_s=40, predicted_s=10)
    told = explain_job(hand.core, "c", 40 * S)
    assert told is not None
    assert (told.expected_start_ns, told.num_ahead) == (150 * S, 1)
    hand.submit("unknown", at_s=41)
    hand.submit("last", at_s=42)
    told = explain_job(hand.core, "last", 42 * S)
    assert told is not None
    assert told.expected_start_ns == -1  # nobody has said how long the one before it runs


def test_what_is_guaranteed_set_aside_or_freed_is_told(hand: Hand) -> None:
    rules = PreemptionRules(True, 1, 100 * S, 0, 5)
    hand.tell(PolicySet((QueueRule("default", guaranteed_devices=3), QueueRule("b")), 0, preemption=rules))
    hand.node("n0", devices=2)
    hand.node("n1", devices=2)
    hand.tell(WindowSet("w", ("n1",), 900 * S, 1000 * S))
    gang, once = Gang(1, 2, 0), RestartPolicy(0, 0, 0)
    hand.tell(JobSubmitted("borrower", "b", "b", 0, gang, once, 0))
    hand.started("borrower.a1")
    hand.submit("mine", devices=2, at_s=10)
    assert reason(hand, "mine").endswith(
        "; borrower.a1 makes room for it; 1 nodes are set aside for maintenance; "
        "queue default holds 0 of 3 guaranteed devices, this would be within them"
    )
    assert reason(hand, "borrower") == "makes room for mine at its next checkpoint"


def test_why_a_job_is_held(hand: Hand) -> None:
    gang, once = Gang(1, 1, 0), RestartPolicy(0, 0, 0)
    hand.tell(JobSubmitted("a", "a", "q", 0, gang, once, 0, group="g", group_limit=1))
    hand.tell(JobSubmitted("b", "b", "q", 0, gang, once, 0, group="g", group_limit=1))
    hand.tell(JobSubmitted("c", "c", "q", 0, gang, once, 0, after=("a", "b")))
    assert reason(hand, "b") == "held: 1 of group g wait for devices or run, as many as may at once"
    assert reason(hand, "c") == "held until a, b has succeeded"


def test_other_states_say_what_they_wait_for(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j", budget=3)
    assert reason(hand, "j") == "starting"
    hand.gone("j.a1", "failed", 1)
    assert reason(hand, "j") == "restart 1 of 3 in 1000 ms: failed"
    hand.submit("k")
    hand.tell(JobCancelRequested("k"))
    assert reason(hand, "k") == "cancelled on request; waits for proof that all of k.a1 is gone"
    hand.gone("k.a1", "stopped")
    assert reason(hand, "k") == "cancelled on request"


def test_views_are_what_the_state_is(hand: Hand) -> None:
    hand.node("n0", devices=2)
    hand.submit("j", budget=3)
    assert [view.job_id for view in job_views(hand.core)] == ["j"]
    view = job_view(hand.core, "j")
    assert view is not None
    assert (view.state, view.work_id, view.restart_budget) == ("starting", "j.a1", 3)
    assert job_view(hand.core, "k") is None
    work = work_view(hand.core, "j.a1")
    assert work_views(hand.core) == [work]
    assert work_view(hand.core, "j.a2") is None
    ledger = ledger_view(hand.core, 3 * S)
    assert (ledger.num_devices, ledger.num_leased, ledger.total_ns) == (2, 1, 6 * S)
    assert (ledger.allocated_idle_ns, ledger.free_ns) == (3 * S, 3 * S)
