"""Blocks of one replica's cache, compiled: `reference.cache.Cache` and what a replica does with it."""

# mypy: disable-error-code="no-any-return"
# (numpy types an element as Any)

from __future__ import annotations

from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.compiled import compiled
from groundplane.sim.serving.fast.state import State
from groundplane.sim.serving.fast.units import demote, find, insert, make_idle, remove, take_idle
from groundplane.sim.serving.outcome import EventKind, IntArray

_EVICTED = int(EventKind.EVICTED)


@compiled
def write(s: State, now_ns: int, kind: int, replica: int, subject: int, value: int, start_ns: int) -> None:
    """Writes an event down, if there is a log; its room was looked at before."""
    if s.world[c.LOGGING]:
        place = s.world[c.NUM_LOGGED]
        s.world[c.NUM_LOGGED] = place + 1
        s.log[place, 0] = now_ns
        s.log[place, 1] = kind
        s.log[place, 2] = replica
        s.log[place, 3] = subject
        s.log[place, 4] = value
        s.log[place, 5] = start_ns


@compiled
def idle_blocks(s: State, r: int) -> int:
    """Blocks of units that no sequence uses."""
    return s.tables[c.LEVELS * r, c.NUM_IDLE] * s.replicas[r, c.UNIT_BLOCKS]


@compiled
def available(s: State, r: int) -> int:
    """Blocks to be had, if need be by eviction."""
    return s.replicas[r, c.FREE] + idle_blocks(s, r)


@compiled
def used_blocks(s: State, r: int) -> int:
    """Blocks that sequences hold."""
    return s.replicas[r, c.NUM_BLOCKS] - available(s, r)


@compiled
def blocks(s: State, r: int, tokens: int) -> int:
    """Blocks that so many tokens take."""
    size = s.replicas[r, c.BLOCK_TOKENS]
    return (tokens + size - 1) // size


@compiled
def count_blocks(replica: IntArray, used: int, now_ns: int) -> None:
    """Adds so many blocks in use up to now to a replica's row."""
    replica[c.KV_BLOCK_NS] += used * (now_ns - replica[c.KV_SINCE])
    replica[c.KV_SINCE] = now_ns
    if replica[c.KV_BLOCK_NS] >= c.KV_CARRY:
        replica[c.KV_CARRIED] += replica[c.KV_BLOCK_NS] // c.KV_CARRY
        replica[c.KV_BLOCK_NS] %= c.KV_CARRY


@compiled
def touch(s: State, r: int, now_ns: int) -> None:
    """Counts blocks in use up to now."""
    count_blocks(s.replicas[r], used_blocks(s, r), now_ns)


@compiled
def hit_limit(s: State, r: int, work: int, tokens: int) -> int:
    """Whole hash blocks of a request's first tokens."""
    if not s.replicas[r, c.PREFIX]:
        return 0
    return min(s.works[work, c.NUM_HASHES], tokens // s.replicas[r, c.UNIT_TOKENS])


@compiled
def count_hits(s: State, r: int, work: int, limit: int) -> int:
    """Units at the beginning of a request that the chip holds."""
    begin = s.works[work, c.HASH_BEGIN]
    found = 0
    while found < limit and find(s.tables, s.places, c.LEVELS * r, s.hashes[begin + found]) >= 0:
        found += 1
    return found


@compiled
def count_idle(s: State, r: int, work: int, count: int) -> int:
    """How many of the first units, all of which are here, none uses now."""
    begin = s.works[work, c.HASH_BEGIN]
    idle = 0
    for place in range(begin, begin + count):
        node = find(s.tables, s.places, c.LEVELS * r, s.hashes[place])
        if s.places[node, c.USERS] == 0:
            idle += 1
    return idle


@compiled
def use_units(s: State, r: int, work: int, count: int) -> None:
    """One more sequence uses the first units of a request, all of which are here."""
    table = c.LEVELS * r
    begin = s.works[work, c.HASH_BEGIN]
    for place in range(begin, begin + count):
        node = find(s.tables, s.places, table, s.hashes[place])
        if s.places[node, c.USERS] == 0:
            take_idle(s.tables, s.places, table, node)
        s.places[node, c.USERS] += 1
    s.works[work, c.HELD] = count


@compiled
def allocate(s: State, r: int, now_ns: int, count: int) -> None:
    """Takes blocks that are to be had, after evicting what must go."""
    evicted = 0
    table = c.LEVELS * r
    unit = s.replicas[r, c.UNIT_BLOCKS]
    while s.replicas[r, c.FREE] < count:
        node = s.tables[table, c.OLDEST]
        key = s.places[node, c.KEY]
        take_idle(s.tables, s.places, table, node)
        remove(s.tables, s.places, table, node)
        demote(s.tables, s.places, table, key)
        s.replicas[r, c.FREE] += unit
        evicted += 1
    s.replicas[r, c.FREE] -= count
    if evicted:
        s.replicas[r, c.EVICTED_BLOCKS] += evicted * unit
        write(s, now_ns, _EVICTED, r, evicted, 0, now_ns)


@compiled
def enter_units(s: State, r: int, work: int, tokens: int) -> None:
    """Makes units of a request's private blocks that are whole hash blocks of its first tokens."""
    limit = hit_limit(s, r, work, tokens)
    held = s.works[work, c.HELD]
    if held >= limit:
        return
    table = c.LEVELS * r
    begin = s.works[work, c.HASH_BEGIN]
    unit = s.replicas[r, c.UNIT_BLOCKS]
    for place in range(begin + held, begin + limit):
        key = s.hashes[place]
        node = find(s.tables, s.places, table, key)
        if node >= 0:
            if s.places[node, c.USERS] == 0:
                take_idle(s.tables, s.places, table, node)
            s.places[node, c.USERS] += 1
            s.replicas[r, c.FREE] += unit
        else:
            insert(s.tables, s.places, table, key, 1)
    s.works[work, c.HELD] = limit
    s.works[work, c.PRIVATE] -= (limit - held) * unit


@compiled
def leave(s: State, r: int, work: int, held: int, private: int) -> None:
    """Gives back a request's first units, the last first, and private blocks."""
    table = c.LEVELS * r
    begin = s.works[work, c.HASH_BEGIN]
    for place in range(begin + held - 1, begin - 1, -1):
        node = find(s.tables, s.places, table, s.hashes[place])
        s.places[node, c.USERS] -= 1
        if s.places[node, c.USERS] == 0:
            make_idle(s.tables, s.places, table, node)
    s.replicas[r, c.FREE] += private


@compiled
def release(s: State, r: int, work: int) -> None:
    """Gives back all blocks; whole hash blocks that were computed stay to be found."""
    enter_units(s, r, work, s.works[work, c.COMPUTED])
    leave(s, r, work, s.works[work, c.HELD], s.works[work, c.PRIVATE])
    s.works[work, c.HELD] = 0
    s.works[work, c.PRIVATE] = 0
    s.replicas[r, c.WAITING_TOKENS] -= s.works[work, c.PENDING]
    s.works[work, c.PENDING] = 0


@compiled
def release_remote(s: State, work: int) -> None:
    """Gives back the blocks of a cache that was kept for another replica."""
    source = s.works[work, c.REMOTE]
    leave(s, source, work, s.works[work, c.REMOTE_HELD], s.works[work, c.REMOTE_BLOCKS])
    s.works[work, c.REMOTE] = c.NONE
    s.works[work, c.REMOTE_HELD] = 0
    s.works[work, c.REMOTE_BLOCKS] = 0
    s.replicas[source, c.NUM_HOLDING] -= 1
