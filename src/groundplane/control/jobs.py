"""Jobs and their attempts: submission, start, recovery with budget and back-off, time limit, one end.

Knows jobs only; what a replica does is `services.py`.
"""

from __future__ import annotations

from typing import Literal

from groundplane.control.actions import PREEMPTED, JobEnded, RankPlacement, StartWork
from groundplane.control.context import Context
from groundplane.control.elastic import gang_with
from groundplane.control.events import JobCancelRequested, JobSubmitted, RestartPolicy, WorkGone
from groundplane.control.held import HELD, Held
from groundplane.control.lifecycle.job import JOB
from groundplane.control.state import Job, Timer, Work

ENDED_JOBS_KEPT = 10_000
"""How many ended jobs stay in the state. An id may not be submitted again, even when its job is forgotten."""

EVICTED = "evicted"
"""Why an attempt is stopped that has to go to other nodes: its job is queued again, at no cost of its own."""
STALLED = "stalled"
"""Why a work is stopped that hangs: it has failed."""

Outcome = Literal["succeeded", "failed", "cancelled"]


class Jobs:
    """Decides about jobs; called by the core for each event that concerns one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._held = Held(context.state)
        self._to_look_at: list[str] | None = None

    def submitted(self, event: JobSubmitted) -> None:
        """Takes a job into the queue, once."""
        state = self._context.state
        if event.job_id in state.jobs:
            self._context.ignore("job submitted twice")
            return
        job = Job(
            job_id=event.job_id,
            name=event.name,
            queue=event.queue,
            priority=event.priority,
            sequence=state.next_sequence,
            gang=event.gang,
            restart=event.restart,
            stop_grace_ns=event.stop_grace_ns,
            time_limit_ns=event.time_limit_ns,
            predicted_run_ns=event.predicted_run_ns or event.time_limit_ns,
            submitted_ns=state.now_ns,
            is_preemptible=event.is_preemptible,
            larger_ranks=event.larger_ranks,
            after=tuple(dict.fromkeys(event.after)),
            group=event.group,
            group_limit=event.group_limit,
            deadline_ns=event.deadline_ns,
            state=HELD,
            stops_at_checkpoint=event.stops_at_checkpoint,
        )
        state.next_sequence += 1
        state.jobs[job.job_id] = job
        self._context.mix.note(event.gang)
        self._set_deadline(job)
        if job.after or job.group:
            self._look_at([job.job_id])
        else:
            job.state = JOB.after(job.state, "released")
            self._context.add_job(job)

    def cancel_requested(self, event: JobCancelRequested) -> None:
        """Ends a job that holds nothing at once, and any other when its attempt is gone."""
        job = self._context.state.jobs.get(event.job_id)
        if job is None or job.state in JOB.final:
            self._context.ignore("cancel of a job that is not there or over")
        else:
            self._stop(job, intent="cancel", trigger="cancelled", reason="cancelled on request")

    def start(self, job: Job, placement: tuple[RankPlacement, ...]) -> None:
        """The next attempt of a queued job, on leased devices."""
        context = self._context
        job.num_attempts += 1
        work = Work(
            work_id=f"{job.job_id}.a{job.num_attempts}",
            kind="attempt",
            owner_id=job.job_id,
            number=job.num_attempts,
            state="starting",
            gang=gang_with(job.gang, len(placement)),
            queue=job.queue,
        )
        context.remove_job(job)
        context.lease(work, placement)
        job.state = JOB.after(job.state, "placed")
        job.work_id = work.work_id
        context.actions.append(StartWork(work.work_id, "attempt", job.job_id, work.fence, placement))
        if job.first_started_ns < 0:
            job.first_started_ns = context.now_ns
            if job.time_limit_ns:
                at_ns = context.now_ns + job.time_limit_ns
                context.set_timer(_limit_timer(job), Timer(at_ns, "job_limit", job.job_id))

    def attempt_started(self, work: Work) -> None:
        """Every rank runs; from now on the devices are busy."""
        job = self._context.state.jobs[work.owner_id]
        job.state = JOB.after(job.state, "started")
        self._context.ledger.set_busy(work, True, self._context.now_ns)
        self._context.victims.work_changed(work)

    def checkpoint_committed(self, work: Work, step: int) -> None:
        """Progress that cannot be lost: the next failure counts as the first in a row again."""
        job = self._context.state.jobs[work.owner_id]
        job.checkpoint_step = step
        job.restarts_in_row = 0

    def attempt_lost_node(self, work: Work, node_id: str) -> None:
        """A part of the gang is gone with its node: the rest must end, and prove it, before a restart."""
        self._interrupt(work, "node_lost", f"node {node_id} was lost")

    def evict(self, work: Work, reason: str) -> None:
        """Stops an attempt that has to go to other nodes, through no fault of its job."""
        self._interrupt(work, EVICTED, reason)

    def give_up(self, work: Work, reason: str) -> None:
        """Stops an attempt that hangs: a failure of the job."""
        self._interrupt(work, STALLED, reason)

    def _interrupt(self, work: Work, intent: str, reason: str) -> None:
        if work.stop_intent:
            return
        job = self._context.state.jobs[work.owner_id]
        job.state = JOB.after(job.state, "stop")
        self._context.request_stop(work, intent=intent, reason=reason, grace_ns=job.stop_grace_ns)

    def attempt_gone(self, work: Work, fence: int, outcome: str, detail: str) -> None:
        """No process of the attempt is left: the job has ended, or goes on with the next attempt."""
        job = self._context.state.jobs[work.owner_id]
        intent, has_run = work.stop_intent, work.state != "starting"
        is_success = outcome == "succeeded" or intent == "finished"
        is_failure = not is_success and intent not in {"cancel", "time_limit"}
        self._context.remove_work(work, fence=fence, is_failure=is_failure)
        if is_success:
            self._end(job, "succeeded", "succeeded", "")
        elif intent == "cancel":
            self._end(job, "cancelled", "cancelled", work.stop_reason)
        elif intent == "time_limit":
            self._end(job, "failed", "failed", work.stop_reason)
        elif not intent and outcome == "stopped" and has_run:
            self._requeue(job, detail or "stopped by an operator")
        elif intent in {PREEMPTED, EVICTED}:
            job.lost_work_id, job.lost_fence = work.work_id, work.fence
            self._requeue(job, work.stop_reason)
        else:
            job.lost_work_id, job.lost_fence = work.work_id, work.fence
            self._recover(job, work.stop_reason or detail or outcome)

    def late_report(self, event: WorkGone) -> None:
        """News of an attempt that was given up with its node. That it had succeeded is still true."""
        job = self._context.state.jobs.get(event.work_id.rpartition(".a")[0])
        if (
            job is None
            or job.state in JOB.final
            or (job.lost_work_id, job.lost_fence) != (event.work_id, event.fence)
            or event.outcome != "succeeded"
        ):
            self._context.ignore("report on a work that is gone")
        else:
            self._stop(
                job, intent="finished", trigger="late_success", reason="an earlier attempt had succeeded"
            )

    def backed_off(self, job: Job) -> None:
        """The wait after a failure is over."""
        job.state = JOB.after(job.state, "backed_off")
        self._context.add_job(job)

    def urgent(self, job: Job) -> None:
        """The deadline is near: what is left is twice what the job is predicted to run."""
        is_queued = job.state == "queued"
        if is_queued:
            self._context.remove_job(job)
        job.is_urgent = True
        if is_queued:
            self._context.add_job(job)

    def deadline_reached(self, job: Job) -> None:
        """The job has not ended by its deadline."""
        self._stop(job, intent="time_limit", trigger="time_over", reason="deadline reached")

    def time_over(self, job: Job) -> None:
        """The time since the job's first start, restarts included, has reached its limit."""
        self._stop(job, intent="time_limit", trigger="time_over", reason="time limit reached")

    def _stop(self, job: Job, *, intent: str, trigger: str, reason: str) -> None:
        """Brings a job to its end: at once if it holds nothing, else by stopping its attempt."""
        if job.state == "queued":
            self._context.remove_job(job)
        if JOB.allows(job.state, trigger) and job.state != "stopping":
            outcome: Outcome = "cancelled" if intent == "cancel" else "succeeded"
            self._end(job, trigger, "failed" if intent == "time_limit" else outcome, reason)
            return
        work = self._context.state.works[job.work_id]
        if not work.stop_intent:
            job.state = JOB.after(job.state, "stop")
            self._context.request_stop(work, intent=intent, reason=reason, grace_ns=job.stop_grace_ns)
        elif work.stop_intent in {"node_lost", STALLED, EVICTED, PREEMPTED}:
            work.stop_intent, work.stop_reason = intent, reason

    def _requeue(self, job: Job, reason: str) -> None:
        """An operator or the policy ended the attempt: it costs the job neither a restart nor a wait."""
        job.state = JOB.after(job.state, "requeued")
        job.reason = reason
        self._context.add_job(job)

    def _recover(self, job: Job, detail: str) -> None:
        if job.restarts_used >= job.restart.budget:
            self._end(job, "failed", "failed", f"failed after {job.restarts_used} restarts: {detail}")
            return
        job.restarts_used += 1
        job.restarts_in_row += 1
        job.state = JOB.after(job.state, "retry")
        job.reason = detail
        at_ns = self._context.now_ns + backoff_ns(job.restart, job.restarts_in_row)
        self._context.set_timer(_backoff_timer(job), Timer(at_ns, "job_backoff", job.job_id))

    def _end(self, job: Job, trigger: str, outcome: Outcome, reason: str) -> None:
        was_held = job.state == HELD
        job.state = JOB.after(job.state, trigger)
        job.ended_ns = self._context.now_ns
        job.reason = reason
        self._context.drop_timer(_limit_timer(job))
        self._context.drop_timer(_backoff_timer(job))
        if job.deadline_ns:
            self._context.drop_timer(_urgent_timer(job))
            self._context.drop_timer(_deadline_timer(job))
        self._context.release_kept(job.job_id)
        self._context.actions.append(JobEnded(job.job_id, outcome, reason))
        following = self._held.ended(job, was_held=was_held)
        if following:
            self._look_at(following)
        self._forget_the_oldest(job)

    def _set_deadline(self, job: Job) -> None:
        if not job.deadline_ns:
            return
        deadline_ns, now_ns = max(job.deadline_ns, self._context.now_ns), self._context.now_ns
        self._context.set_timer(_deadline_timer(job), Timer(deadline_ns, "job_deadline", job.job_id))
        if job.predicted_run_ns:
            urgent_ns = max(now_ns, deadline_ns - 2 * job.predicted_run_ns)
            self._context.set_timer(_urgent_timer(job), Timer(urgent_ns, "job_urgent", job.job_id))

    def _look_at(self, job_ids: list[str]) -> None:
        """Lets held jobs into their queues, or ends those that can never start with all that needs them."""
        if self._to_look_at is not None:
            self._to_look_at += job_ids
            return
        self._to_look_at = list(job_ids)
        for job_id in self._to_look_at:
            job = self._context.state.jobs.get(job_id)
            if job is None or job.state != HELD:
                continue
            refusal = self._held.refusal(job)
            if refusal:
                self._end(job, "refused", "failed", refusal)
            else:
                self._release(job)
        self._to_look_at = None

    def _release(self, job: Job) -> None:
        self._held.released(job)
        if self._held.has_to_wait(job):
            self._held.hold(job)
            return
        job.state = JOB.after(job.state, "released")
        self._held.activated(job)
        self._context.add_job(job)

    def _forget_the_oldest(self, ended: Job) -> None:
        """Keeps the newest ended jobs only; of the others the counts by outcome remain."""
        state = self._context.state
        state.num_ended[ended.state] = state.num_ended.get(ended.state, 0) + 1
        state.ended_jobs.append(ended.job_id)
        if len(state.ended_jobs) > ENDED_JOBS_KEPT:
            del state.jobs[state.ended_jobs.pop(0)]


def backoff_ns(policy: RestartPolicy, num_in_row: int) -> int:
    """Wait before the n-th restart in a row: min(backoff * 2**(n-1), limit)."""
    doublings = min(num_in_row - 1, 62)  # beyond this any wait has passed any limit
    return min(policy.backoff_ns << doublings, policy.backoff_limit_ns)


def _limit_timer(job: Job) -> str:
    return f"{job.job_id}.limit"


def _urgent_timer(job: Job) -> str:
    return f"{job.job_id}.urgent"


def _deadline_timer(job: Job) -> str:
    return f"{job.job_id}.deadline"


def _backoff_timer(job: Job) -> str:
    return f"{job.job_id}.backoff"
