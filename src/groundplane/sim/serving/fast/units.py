"""Prefix units of one replica and level: a hash table, reference counts, and an order of last use.

Open addressing with linear probing; a removal moves later entries back, so there are no tombstones, and links
of the idle order are mended as entries move. Idle units are linked from the one used longest ago to the
newest.
"""

# mypy: disable-error-code="no-any-return,return-value"
# (numpy types an element as Any, and a compiled np.int64 is an int)

from __future__ import annotations

import numpy as np

from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.compiled import compiled
from groundplane.sim.serving.outcome import IntArray


def make_tables(capacities: IntArray) -> tuple[IntArray, IntArray]:
    """Empty tables that hold so many units each, and the places of all: t x NUM_TABLE, p x NUM_PLACE."""
    sizes = np.array([1 << max(int(2 * capacity).bit_length(), 1) for capacity in capacities])
    tables = np.zeros((len(capacities), c.NUM_TABLE), dtype=np.int64)
    tables[:, c.FIRST_PLACE] = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    tables[:, c.PLACE_MASK] = sizes - 1
    tables[:, c.CAPACITY] = capacities
    tables[:, c.OLDEST] = tables[:, c.NEWEST] = c.NONE
    return tables, np.full((int(sizes.sum()), c.NUM_PLACE), c.NONE, dtype=np.int64)


@compiled
def _home(key: int) -> int:
    """Where a key would like to be, before the mask."""
    return np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(24))


@compiled
def _place_of(tables: IntArray, places: IntArray, table: int, key: int) -> int:
    """Where a key is, or would be."""
    begin = tables[table, c.FIRST_PLACE]
    mask = tables[table, c.PLACE_MASK]
    place = _home(key) & mask
    while places[begin + place, c.USERS] >= 0 and places[begin + place, c.KEY] != key:
        place = (place + 1) & mask
    return begin + place


@compiled
def find(tables: IntArray, places: IntArray, table: int, key: int) -> int:
    """The place of a key, or -1. Places change when others are removed."""
    place = _place_of(tables, places, table, key)
    return place if places[place, c.USERS] >= 0 else -1


@compiled
def insert(tables: IntArray, places: IntArray, table: int, key: int, users: int) -> int:
    """A new unit that is not in the idle order; the table has room and not this key."""
    place = _place_of(tables, places, table, key)
    places[place, c.KEY] = key
    places[place, c.USERS] = users
    tables[table, c.COUNT] += 1
    return place


@compiled
def remove(tables: IntArray, places: IntArray, table: int, place: int) -> None:
    """Forgets a unit that is not in the idle order."""
    begin = tables[table, c.FIRST_PLACE]
    mask = tables[table, c.PLACE_MASK]
    hole = place - begin
    later = hole
    while True:
        later = (later + 1) & mask
        if places[begin + later, c.USERS] < 0:
            break
        # An entry may move back to the hole unless its home lies after the hole.
        home = _home(places[begin + later, c.KEY]) & mask
        if ((later - home) & mask) >= ((later - hole) & mask):
            _move(tables, places, table, begin + later, begin + hole)
            hole = later
    places[begin + hole, c.USERS] = c.NONE
    tables[table, c.COUNT] -= 1


@compiled
def _move(tables: IntArray, places: IntArray, table: int, source: int, goal: int) -> None:
    for column in range(c.NUM_PLACE):
        places[goal, column] = places[source, column]
    if places[goal, c.USERS] == 0:
        older, newer = places[goal, c.OLDER], places[goal, c.NEWER]
        if older >= 0:
            places[older, c.NEWER] = goal
        else:
            tables[table, c.OLDEST] = goal
        if newer >= 0:
            places[newer, c.OLDER] = goal
        else:
            tables[table, c.NEWEST] = goal


@compiled
def make_idle(tables: IntArray, places: IntArray, table: int, place: int) -> None:
    """Puts a unit without users at the new end of the idle order."""
    newest = tables[table, c.NEWEST]
    places[place, c.OLDER] = newest
    places[place, c.NEWER] = c.NONE
    if newest >= 0:
        places[newest, c.NEWER] = place
    else:
        tables[table, c.OLDEST] = place
    tables[table, c.NEWEST] = place
    tables[table, c.NUM_IDLE] += 1


@compiled
def take_idle(tables: IntArray, places: IntArray, table: int, place: int) -> None:
    """Takes a unit out of the idle order; it has a user, or goes, before another is removed."""
    older = places[place, c.OLDER]
    newer = places[place, c.NEWER]
    if older >= 0:
        places[older, c.NEWER] = newer
    else:
        tables[table, c.OLDEST] = newer
    if newer >= 0:
        places[newer, c.OLDER] = older
    else:
        tables[table, c.NEWEST] = older
    tables[table, c.NUM_IDLE] -= 1


@compiled
def demote(tables: IntArray, places: IntArray, chip_table: int, key: int) -> None:
    """Puts a unit that was evicted from the chip into host memory, and what that pushes out onto disk."""
    for table in range(chip_table + 1, chip_table + c.LEVELS):
        if tables[table, c.CAPACITY] == 0:
            continue
        place = find(tables, places, table, key)
        if place >= 0:
            take_idle(tables, places, table, place)
            make_idle(tables, places, table, place)
            return
        full = tables[table, c.COUNT] == tables[table, c.CAPACITY]
        carried = key
        if full:
            oldest = tables[table, c.OLDEST]
            carried = places[oldest, c.KEY]
            take_idle(tables, places, table, oldest)
            remove(tables, places, table, oldest)
        make_idle(tables, places, table, insert(tables, places, table, key, 0))
        if not full:
            return
        key = carried


@compiled
def leave_tiers(tables: IntArray, places: IntArray, chip_table: int, key: int) -> None:
    """A unit is about to be loaded from a lower tier."""
    for table in range(chip_table + 1, chip_table + c.LEVELS):
        place = find(tables, places, table, key)
        if place >= 0:
            take_idle(tables, places, table, place)
            remove(tables, places, table, place)


@compiled
def clear(tables: IntArray, places: IntArray, chip_table: int) -> None:
    """Forgets all units of a replica."""
    for table in range(chip_table, chip_table + c.LEVELS):
        begin = tables[table, c.FIRST_PLACE]
        places[begin : begin + tables[table, c.PLACE_MASK] + 1, c.USERS] = c.NONE
        tables[table, c.COUNT] = 0
        tables[table, c.NUM_IDLE] = 0
        tables[table, c.OLDEST] = c.NONE
        tables[table, c.NEWEST] = c.NONE
