"""The order in which the entries of one queue are served: priority, then due time or submission. Derived.

Entries of a queue that ask for the same gang stand in one line: when the first of them cannot be placed, none
of them can, so that a pass costs as much as there are lines and starts, not as there are entries. Also
remembers what has changed since the last pass, so that a pass looks at no more than it must.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from groundplane.control.events import Gang, OrderRules
from groundplane.control.sorted_list import SortedList
from groundplane.control.state import Job, Service, Work
from groundplane.spec.errors import InvariantError

SEQUENCE_BITS = 40
"""Room for the number of a submission below a due time."""
SHORT_ENTRIES = 100
"""How many of the shortest entries of a line are looked at for one that fits into a gap of time."""


class Entry(NamedTuple):
    """One waiting job, or one waiting replica (`number` > 0). Sorts in the order of service.

    `place` is the due time, if the rules have one, and within it the order of submission; replicas are due
    at once. `predicted_run_ns` is 0 where nothing is predicted, as for every replica.
    """

    minus_priority: int
    place: int
    number: int
    owner_id: str
    predicted_run_ns: int

    @property
    def waiting_id(self) -> str:
        """Id of the job or of the replica that waits."""
        return self.owner_id if self.number == 0 else f"{self.owner_id}.r{self.number}"


class Line:
    """Entries that ask for the same gang, in the order of service; `first` is the next, if there is one."""

    __slots__ = ("_by_length", "_entries", "first")

    def __init__(self) -> None:
        self.first: Entry | None = None
        self._entries: SortedList[Entry] = SortedList()
        self._by_length: SortedList[tuple[int, Entry]] = SortedList()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def add(self, entry: Entry) -> None:
        """Puts an entry in its place."""
        self._entries.add(entry)
        if self.first is None or entry < self.first:
            self.first = entry
        if entry.predicted_run_ns > 0:
            self._by_length.add((entry.predicted_run_ns, entry))

    def remove(self, entry: Entry) -> None:
        """Takes an entry out.

        Raises:
            InvariantError: it is not there.
        """
        self._entries.remove(entry)
        if entry == self.first:
            self.first = self._entries.first() if self._entries else None
        if entry.predicted_run_ns > 0:
            self._by_length.remove((entry.predicted_run_ns, entry))

    def first_within(self, longest_ns: int) -> Entry | None:
        """The entry that is served next of those predicted to run no longer than this.

        Of more than `SHORT_ENTRIES` only so many are looked at, the shortest.
        """
        if not self._by_length or self._by_length.first()[0] > longest_ns:
            return None
        shortest = islice(self._by_length, SHORT_ENTRIES)
        return min(entry for predicted_ns, entry in shortest if predicted_ns <= longest_ns)


class Shelf:
    """Lines of one queue whose gangs differ in memory alone: without free devices none of them has room."""

    __slots__ = ("_lengths", "lines")

    def __init__(self) -> None:
        self.lines: dict[Gang, Line] = {}
        self._lengths: SortedList[int] = SortedList()

    def add(self, gang: Gang, entry: Entry) -> Line:
        """Puts an entry into its line; the answer is the line."""
        line = self.lines.get(gang)
        if line is None:
            line = self.lines[gang] = Line()
        line.add(entry)
        if gang.memory_bytes_per_rank and entry.predicted_run_ns > 0:
            self._lengths.add(entry.predicted_run_ns)
        return line

    def remove(self, gang: Gang, entry: Entry) -> None:
        """Takes an entry out.

        Raises:
            InvariantError: it is not there.
        """
        line = self.lines.get(gang)
        if line is None:
            raise InvariantError(f"{entry.waiting_id} is not in the queue")
        line.remove(entry)
        if gang.memory_bytes_per_rank and entry.predicted_run_ns > 0:
            self._lengths.remove(entry.predicted_run_ns)
        if not line:
            del self.lines[gang]

    def has_within(self, longest_ns: int) -> bool:
        """Whether an entry is predicted to run no longer than this."""
        if self._lengths:
            return self._lengths.first() <= longest_ns
        return any(line.first_within(longest_ns) is not None for line in self.lines.values())


Shelves = dict[str, dict[Gang, Shelf]]
"""Shelves by queue and by the gang without its memory."""


class Queue:
    """Entries in lines of one queue and gang each, and what a pass has to look at."""

    def __init__(self) -> None:
        self.lines: dict[str, dict[Gang, Line]] = {}
        self.shelves: Shelves = {}
        self.new_entries: list[tuple[str, Entry, Gang]] = []
        self.needs_full_pass = False
        self._num_entries = 0
        self._num_of_priority: dict[int, int] = {}

    def __len__(self) -> int:
        return self._num_entries

    @property
    def entries(self) -> list[Entry]:
        """All entries in the order of service; made anew each time."""
        return list(heapq.merge(*(line for lines in self.lines.values() for line in lines.values())))

    def add(self, leaf: str, entry: Entry, gang: Gang) -> None:
        """A job or a replica waits in the order of the queue `leaf`."""
        line = put(self.shelves, leaf, gang, entry)
        self.lines.setdefault(leaf, {})[gang] = line
        self._num_entries += 1
        minus_priority = entry.minus_priority
        self._num_of_priority[minus_priority] = self._num_of_priority.get(minus_priority, 0) + 1
        self.new_entries.append((leaf, entry, gang))

    def remove(self, leaf: str, entry: Entry, gang: Gang) -> None:
        """The entry waits no longer. Whoever stood behind it may have a chance now."""
        bare = without_memory(gang)
        shelf = self.shelves.get(leaf, {}).get(bare)
        if shelf is None:
            raise InvariantError(f"{entry.waiting_id} is not in the queue")
        shelf.remove(gang, entry)
        self._num_entries -= 1
        self._num_of_priority[entry.minus_priority] -= 1
        if not self._num_of_priority[entry.minus_priority]:
            del self._num_of_priority[entry.minus_priority]
        if gang not in shelf.lines:
            del self.lines[leaf][gang]
            if not shelf.lines:
                del self.shelves[leaf][bare]
            if not self.lines[leaf]:
                del self.lines[leaf], self.shelves[leaf]
        if (leaf, entry, gang) in self.new_entries:
            self.new_entries.remove((leaf, entry, gang))
        self.needs_full_pass = True

    def outranks(self, entry: Entry) -> bool:
        """Whether anything that waits has a higher priority than `entry`."""
        return any(minus_priority < entry.minus_priority for minus_priority in self._num_of_priority)

    def clear(self) -> None:
        """Nothing waits."""
        self.lines.clear()
        self.shelves.clear()
        self.new_entries.clear()
        self._num_entries = 0
        self._num_of_priority.clear()
        self.needs_full_pass = True

    def capacity_changed(self) -> None:
        """Devices came free, or a node opened or closed: every entry is to be looked at again."""
        self.needs_full_pass = True

    def settled(self) -> None:
        """A pass has looked at everything that changed."""
        self.new_entries.clear()
        self.needs_full_pass = False


def put(shelves: Shelves, leaf: str, gang: Gang, entry: Entry) -> Line:
    """Puts an entry where it belongs; the answer is its line."""
    bare = without_memory(gang)
    of_leaf = shelves.setdefault(leaf, {})
    shelf = of_leaf.get(bare)
    if shelf is None:
        shelf = of_leaf[bare] = Shelf()
    return shelf.add(gang, entry)


def without_memory(gang: Gang) -> Gang:
    """The gang as far as it needs devices."""
    if gang.memory_bytes_per_rank == 0 or gang.part is not None:
        return gang
    return Gang(gang.num_ranks, gang.devices_per_rank, 0, gang.kinds)


def entry_of_job(job: Job, order: OrderRules) -> Entry:
    """The place of a job in the queue; the same each time it waits under the same rules."""
    place = (due_ns(job, order) << SEQUENCE_BITS) + job.sequence
    return Entry(-job.priority, place, 0, job.job_id, job.predicted_run_ns)


def due_ns(job: Job, order: OrderRules) -> int:
    """When the job should have started; 0 for all where the order is that of submission."""
    if job.is_urgent:
        return -1
    if not order.patience_percent:
        return 0
    num_devices = job.gang.num_ranks * job.gang.devices_per_rank
    patience_ns = (job.predicted_run_ns or order.unpredicted_run_ns) * order.patience_percent // 100
    return job.submitted_ns + patience_ns // num_devices


def entry_of_replica(service: Service, replica: Work) -> Entry:
    """The place of a replica in the queue."""
    return Entry(-service.priority, service.sequence, replica.number, service.service_id, 0)
