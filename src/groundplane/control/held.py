"""Jobs that may not wait for devices yet: others must succeed first, or too many of their group are ahead.

A job of a group with a limit is let into its queue when fewer than that many of its group are queued, running
or between two attempts; held ones follow in the order of submission. Derived state.
"""

from __future__ import annotations

from groundplane.control.lifecycle.job import JOB
from groundplane.control.sorted_list import SortedList
from groundplane.control.state import CoreState, Job

HELD = "held"


class Held:
    """Who waits for whom, over the jobs of `state`."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._followers: dict[str, dict[str, None]] = {}
        self._num_active: dict[str, int] = {}
        self._held_of: dict[str, SortedList[tuple[int, str]]] = {}
        for job in state.jobs.values():
            if job.state == HELD:
                self.hold(job)
            elif job.group and job.state not in JOB.final:
                self.activated(job)

    def refusal(self, job: Job) -> str:
        """Why a job can never start, "" if it can: one that it needs has not succeeded, or is not known."""
        for needed_id in job.after:
            needed = self._state.jobs.get(needed_id)
            if needed is None:
                return f"needs {needed_id}, which is not known"
            if needed.state in JOB.final and needed.state != "succeeded":
                return f"needs {needed_id}, which has {_PAST[needed.state]}"
        return ""

    def has_to_wait(self, job: Job) -> bool:
        """Whether the job is to be held still; forgets those before it that have succeeded."""
        jobs = self._state.jobs
        job.after = tuple(needed_id for needed_id in job.after if jobs[needed_id].state != "succeeded")
        is_full = 0 < job.group_limit <= self._num_active.get(job.group, 0)
        return bool(job.after) or is_full

    def hold(self, job: Job) -> None:
        """The job is held: for those that it needs first, then for its group."""
        for needed_id in job.after:
            self._followers.setdefault(needed_id, {})[job.job_id] = None
        if not job.after and job.group:
            self._held_of.setdefault(job.group, SortedList()).add((job.sequence, job.job_id))

    def activated(self, job: Job) -> None:
        """The job is in its queue."""
        if job.group:
            self._num_active[job.group] = self._num_active.get(job.group, 0) + 1

    def ended(self, job: Job, *, was_held: bool) -> list[str]:
        """The job has ended; the answer is who may go on now, or has to end too."""
        if not self._followers and not job.group:
            return []
        following = list(self._followers.pop(job.job_id, {}))
        for needed_id in job.after:
            self._followers.get(needed_id, {}).pop(job.job_id, None)
        held = self._held_of.get(job.group)
        if was_held:
            self.released(job)
        elif job.group:
            self._num_active[job.group] -= 1
            if held:
                following.append(held.first()[1])
        return following

    def released(self, job: Job) -> None:
        """The job is held no longer."""
        place = (job.sequence, job.job_id)
        held = self._held_of.get(job.group)
        if held is not None and place in held:
            held.remove(place)


_PAST = {"failed": "failed", "cancelled": "been cancelled"}
