"""The order in which waiting jobs and replicas are served: priority first, then submission. Derived state.

Also remembers what has changed since the last scheduling pass, so that a pass looks at no more than it must.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

from groundplane.control.state import Job, Service, Work
from groundplane.spec.errors import InvariantError


class Entry(NamedTuple):
    """One waiting job, or one waiting replica (`number` > 0). Sorts in the order of service."""

    minus_priority: int
    sequence: int
    number: int
    owner_id: str

    @property
    def waiting_id(self) -> str:
        """Id of the job or of the replica that waits."""
        return self.owner_id if self.number == 0 else f"{self.owner_id}.r{self.number}"


class Queue:
    """Entries in order of service, and what a pass has to look at."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.new_entries: list[Entry] = []
        self.needs_full_pass = False

    def add_job(self, job: Job) -> None:
        """A job waits."""
        self._add(entry_of_job(job))

    def add_replica(self, service: Service, replica: Work) -> None:
        """A replica waits."""
        self._add(entry_of_replica(service, replica))

    def remove(self, entry: Entry) -> None:
        """The entry waits no longer. Whoever stood behind it may have a chance now."""
        index = bisect_left(self.entries, entry)
        if self.entries[index : index + 1] != [entry]:
            raise InvariantError(f"{entry.waiting_id} is not in the queue")
        del self.entries[index]
        if entry in self.new_entries:
            self.new_entries.remove(entry)
        self.needs_full_pass = True

    def capacity_changed(self) -> None:
        """Devices came free, or a node opened or closed: every entry is to be looked at again."""
        self.needs_full_pass = True

    def settled(self) -> None:
        """A pass has looked at everything that changed."""
        self.new_entries.clear()
        self.needs_full_pass = False

    def _add(self, entry: Entry) -> None:
        insort(self.entries, entry)
        self.new_entries.append(entry)


def entry_of_job(job: Job) -> Entry:
    """The place of a job in the queue; the same each time it waits."""
    return Entry(-job.priority, job.sequence, 0, job.job_id)


def entry_of_replica(service: Service, replica: Work) -> Entry:
    """The place of a replica in the queue."""
    return Entry(-service.priority, service.sequence, replica.number, service.service_id)
