"""Preemption and reclaim: the head of the queue takes the place of works that have less right to it.

Only the head ever does, with the replicas of its service that wait behind it, once it cannot be placed and
its plan does not begin soon anyway; and only where what is freed places it for certain (`victims.py`). The
nodes of the victims become its plan, so that nobody else gets what they free. A victim goes on to its next
checkpoint and stops right after it, or when its wait for one is over, with the grace that its job asks for;
one that has nothing to lose stops at once. It is queued again in its old place, at the cost of no restart.
When the head starts elsewhere or goes, those that still wait for their checkpoint are spared.

Who was taken from has no right to take back: a lower priority never does, and a queue loses only what it has
beyond its guarantee. With the shortest run and the number of times that the rules grant each job, nothing
swings to and fro.
"""

from __future__ import annotations

from dataclasses import replace

from groundplane.control.actions import PREEMPTED
from groundplane.control.context import Context, yield_timer
from groundplane.control.elastic import gang_with, is_enlarged
from groundplane.control.events import Gang, PreemptionRules
from groundplane.control.lifecycle.job import JOB
from groundplane.control.queue import Entry
from groundplane.control.state import HeadPlan, Timer, Work
from groundplane.control.victim_search import Claim

RETRY_NS = 30_000_000_000
"""After this time a head that found no victims looks again: runs have grown older, checkpoints were made."""
RETRY_TIMER = "preemption"


class Preemption:
    """Decides after each pass whether the head takes devices from works that run."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def review(self, head: tuple[str, Entry, Gang] | None) -> None:
        """Looks for victims for the head, and spares those whose place is not wanted any more.

        Args:
            head: its queue, its entry, and what it needs; None if nothing is blocked.
        """
        state = self._context.state
        head_id = "" if head is None else head[1].waiting_id
        plan = state.head_plan
        victims: tuple[str, ...] = ()
        if plan is not None and plan.owner_id == head_id:
            victims = plan.victims
        for work_id in list(state.yielding):
            if work_id not in victims:
                self._context.end_yield(state.works[work_id])
        is_under_way = any(work_id in state.works for work_id in victims)
        if state.preemption is None or head is None:
            self._rest()
        elif not is_under_way and (
            state.refused_id != head_id or state.now_ns >= state.refused_ns + RETRY_NS
        ):
            self._look(state.preemption, *head)

    def stop(self, work: Work) -> None:
        """The work has made its checkpoint, or has waited for it long enough."""
        state = self._context.state
        job = state.jobs[work.owner_id]
        for_id = state.head_id or state.yielding.get(work.work_id, "")
        job.state = JOB.after(job.state, "stop")
        if not is_enlarged(job, work):
            job.num_preemptions += 1
        self._context.request_stop(
            work, intent=PREEMPTED, reason=f"{PREEMPTED} for {for_id}", grace_ns=job.stop_grace_ns
        )

    def retry(self) -> None:
        """Time to look again: the next pass does."""
        self._context.state.refused_id = ""
        self._context.queue.capacity_changed()

    def _rest(self) -> None:
        state = self._context.state
        if state.refused_id:
            state.refused_id = ""
            self._context.drop_timer(RETRY_TIMER)
        if state.preemption is None:
            self._context.victims.forget()

    def _look(self, rules: PreemptionRules, leaf: str, entry: Entry, gang: Gang) -> None:
        context, state = self._context, self._context.state
        claim = Claim(leaf, -entry.minus_priority, gang, rules)
        if not context.victims.may_find(claim):
            return
        service_id, found = "", None
        if not self._begins_soon(rules, entry, gang):
            together = self._claim_of_all(claim, entry)
            if together is not None:
                found = context.victims.search(together)
                service_id = "" if found is None else entry.owner_id
            if found is None:
                found = context.victims.search(claim)
        if found is None or not found.victims:
            state.refused_id, state.refused_ns = entry.waiting_id, state.now_ns
            context.set_timer(RETRY_TIMER, Timer(state.now_ns + RETRY_NS, "preemption", ""))
            return
        if state.refused_id:
            state.refused_id = ""
            context.drop_timer(RETRY_TIMER)
        victims = tuple(work.work_id for work in found.victims)
        at_ns = state.now_ns + rules.checkpoint_wait_ns
        context.set_plan(HeadPlan(entry.waiting_id, at_ns, found.holds, victims, service_id))
        for work in found.victims:
            if rules.checkpoint_wait_ns == 0 or context.ledger.at_risk_ns(work, state.now_ns) == 0:
                self.stop(work)
            else:
                state.yielding[work.work_id] = entry.waiting_id
                context.set_timer(yield_timer(work), Timer(at_ns, "yield", work.work_id))

    def _claim_of_all(self, claim: Claim, entry: Entry) -> Claim | None:
        """The claim of all replicas of a service that wait, if several do: a burst is one."""
        state = self._context.state
        if not entry.number or claim.gang.part is not None:
            return None
        replicas = [state.works[work_id] for work_id in state.services[entry.owner_id].replicas]
        num_waiting = sum(replica.state == "queued" and replica.gang == claim.gang for replica in replicas)
        gang = gang_with(claim.gang, num_waiting * claim.gang.num_ranks)
        if num_waiting < 2 or self._context.shares.limit_reached(claim.leaf, gang) is not None:
            return None
        return replace(claim, gang=gang)

    def _begins_soon(self, rules: PreemptionRules, entry: Entry, gang: Gang) -> bool:
        """Whether the head will have its devices without it before a victim would have to stop."""
        context = self._context
        plan = context.state.head_plan or context.planner.plan(entry.waiting_id, gang)
        if plan is None or plan.start_ns < 0:
            return False
        return plan.start_ns <= context.now_ns + rules.checkpoint_wait_ns
