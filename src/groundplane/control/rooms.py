"""Which gangs have room during one pass, found out by as few searches as it takes.

Of gangs that differ in memory alone, whoever needs more than one that has no room has none either, and
whoever needs less than one that has room has some. Made for one pass and thrown away.
"""

from __future__ import annotations

from groundplane.control.events import Gang
from groundplane.control.placement import Pools
from groundplane.control.queue import without_memory

_MORE_THAN_ANY = 1 << 100


class Rooms:
    """Answers for the gangs of one pass, over pools in which devices only get fewer."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._fits: dict[Gang, int] = {}  # the most memory that has room, by the gang without memory
        self._fails: dict[Gang, int] = {}  # the least that has none

    def has(self, gang: Gang) -> bool:
        """Whether the gang has room."""
        memory_bytes = gang.memory_bytes_per_rank
        bare = without_memory(gang) if memory_bytes else gang
        if memory_bytes >= self._fails.get(bare, _MORE_THAN_ANY):
            return False
        if memory_bytes <= self._fits.get(bare, -1):
            return True
        if self._pools.have_room(gang):
            self._fits[bare] = memory_bytes
            return True
        has_slots = memory_bytes and self._pools.have_slots(bare)
        self._fails[bare] = memory_bytes if has_slots else 0
        return False

    def started(self) -> None:
        """Something has taken devices: what had room may have none now."""
        self._fits.clear()
