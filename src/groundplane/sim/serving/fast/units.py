"""Prefix units of one replica and level: a hash table, reference counts, and an order of last use.

Open addressing with linear probing; a removal moves later entries back, so there are no tombstones. Nodes of
idle units are linked from the one used longest ago to the newest.
"""

# mypy: disable-error-code="no-any-return"
# (numpy types an element as Any)

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.compiled import compiled
from groundplane.sim.serving.outcome import IntArray


class Units(NamedTuple):
    """`tables` t x `NUM_TABLE`, `nodes` of all tables x `NUM_NODE`, `slots` of all tables (node or -1)."""

    tables: IntArray
    nodes: IntArray
    slots: IntArray


def make_units(capacities: IntArray) -> Units:
    """Empty tables that hold so many units each."""
    bits = np.array([max(int(2 * capacity).bit_length(), 1) for capacity in capacities])
    sizes = 1 << bits
    tables = np.zeros((len(capacities), c.NUM_TABLE), dtype=np.int64)
    tables[:, c.SLOT_BEGIN] = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    tables[:, c.SLOT_MASK] = sizes - 1
    tables[:, c.CAPACITY] = capacities
    nodes = np.full((int(capacities.sum()) + 1, c.NUM_NODE), c.NONE, dtype=np.int64)
    units = Units(tables, nodes, np.full(int(sizes.sum()), c.NONE, dtype=np.int64))
    begins = np.concatenate([[0], np.cumsum(capacities)])
    for table in range(len(capacities)):
        begin, end = int(begins[table]), int(begins[table + 1])
        # Free nodes are a list through NEWER.
        nodes[begin:end, c.NEWER] = np.arange(begin + 1, end + 1)
        if end > begin:
            nodes[end - 1, c.NEWER] = c.NONE
        tables[table, c.NODE_FREE] = begin if end > begin else c.NONE
        tables[table, c.OLDEST] = tables[table, c.NEWEST] = c.NONE
    return units


@compiled
def place_of(units: Units, table: int, key: int) -> int:
    """Where a key is, or would be."""
    begin = units.tables[table, c.SLOT_BEGIN]
    mask = units.tables[table, c.SLOT_MASK]
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    place = np.int64(mixed >> np.uint64(24)) & mask
    while True:
        node = units.slots[begin + place]
        if node < 0 or units.nodes[node, c.KEY] == key:
            return place
        place = (place + 1) & mask


@compiled
def find(units: Units, table: int, key: int) -> int:
    """The node of a key, or -1."""
    return units.slots[units.tables[table, c.SLOT_BEGIN] + place_of(units, table, key)]


@compiled
def insert(units: Units, table: int, key: int, users: int) -> int:
    """A new unit that is not idle; the table has room and not this key."""
    node = units.tables[table, c.NODE_FREE]
    units.tables[table, c.NODE_FREE] = units.nodes[node, c.NEWER]
    units.nodes[node, c.KEY] = key
    units.nodes[node, c.USERS] = users
    units.slots[units.tables[table, c.SLOT_BEGIN] + place_of(units, table, key)] = node
    units.tables[table, c.COUNT] += 1
    return node


@compiled
def remove(units: Units, table: int, node: int) -> None:
    """Forgets a unit that is not in the idle order."""
    begin = units.tables[table, c.SLOT_BEGIN]
    mask = units.tables[table, c.SLOT_MASK]
    hole = place_of(units, table, units.nodes[node, c.KEY])
    place = hole
    while True:
        place = (place + 1) & mask
        other = units.slots[begin + place]
        if other < 0:
            break
        mixed = np.uint64(units.nodes[other, c.KEY]) * np.uint64(0x9E3779B97F4A7C15)
        home = np.int64(mixed >> np.uint64(24)) & mask
        # It may move back to the hole unless its home lies after the hole.
        if ((place - home) & mask) >= ((place - hole) & mask):
            units.slots[begin + hole] = other
            hole = place
    units.slots[begin + hole] = c.NONE
    units.nodes[node, c.NEWER] = units.tables[table, c.NODE_FREE]
    units.tables[table, c.NODE_FREE] = node
    units.tables[table, c.COUNT] -= 1


@compiled
def make_idle(units: Units, table: int, node: int) -> None:
    """Puts a unit at the new end of the idle order."""
    newest = units.tables[table, c.NEWEST]
    units.nodes[node, c.OLDER] = newest
    units.nodes[node, c.NEWER] = c.NONE
    if newest >= 0:
        units.nodes[newest, c.NEWER] = node
    else:
        units.tables[table, c.OLDEST] = node
    units.tables[table, c.NEWEST] = node
    units.tables[table, c.NUM_IDLE] += 1


@compiled
def take_idle(units: Units, table: int, node: int) -> None:
    """Takes a unit out of the idle order."""
    older = units.nodes[node, c.OLDER]
    newer = units.nodes[node, c.NEWER]
    if older >= 0:
        units.nodes[older, c.NEWER] = newer
    else:
        units.tables[table, c.OLDEST] = newer
    if newer >= 0:
        units.nodes[newer, c.OLDER] = older
    else:
        units.tables[table, c.NEWEST] = older
    units.tables[table, c.NUM_IDLE] -= 1


@compiled
def demote(units: Units, chip_table: int, key: int) -> None:
    """Puts a unit that was evicted from the chip into host memory, and what that pushes out onto disk."""
    for level in range(1, c.LEVELS):
        table = chip_table + level
        if units.tables[table, c.CAPACITY] == 0:
            continue
        node = find(units, table, key)
        if node >= 0:
            take_idle(units, table, node)
            make_idle(units, table, node)
            return
        pushed = False
        carried = key
        if units.tables[table, c.COUNT] == units.tables[table, c.CAPACITY]:
            oldest = units.tables[table, c.OLDEST]
            carried = units.nodes[oldest, c.KEY]
            take_idle(units, table, oldest)
            remove(units, table, oldest)
            pushed = True
        make_idle(units, table, insert(units, table, key, 0))
        if not pushed:
            return
        key = carried


@compiled
def leave_tiers(units: Units, chip_table: int, key: int) -> None:
    """A unit is about to be loaded from a lower tier."""
    for level in range(1, c.LEVELS):
        node = find(units, chip_table + level, key)
        if node >= 0:
            take_idle(units, chip_table + level, node)
            remove(units, chip_table + level, node)


@compiled
def clear(units: Units, chip_table: int) -> None:
    """Forgets all units of a replica."""
    for table in range(chip_table, chip_table + c.LEVELS):
        begin = units.tables[table, c.SLOT_BEGIN]
        for place in range(begin, begin + units.tables[table, c.SLOT_MASK] + 1):
            node = units.slots[place]
            if node >= 0:
                units.slots[place] = c.NONE
                units.nodes[node, c.NEWER] = units.tables[table, c.NODE_FREE]
                units.tables[table, c.NODE_FREE] = node
        units.tables[table, c.COUNT] = 0
        units.tables[table, c.NUM_IDLE] = 0
        units.tables[table, c.OLDEST] = c.NONE
        units.tables[table, c.NEWEST] = c.NONE
