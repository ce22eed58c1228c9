"""Where requests go, compiled: the gateway of `reference.service.Service`, by control's own policies."""

# mypy: disable-error-code="no-any-return"
# (numpy types an element as Any)

from __future__ import annotations

from groundplane.control import routing
from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.cache import count_hits, hit_limit, write
from groundplane.sim.serving.fast.compiled import compiled
from groundplane.sim.serving.fast.lines import push
from groundplane.sim.serving.fast.state import State
from groundplane.sim.serving.outcome import EventKind
from groundplane.sim.serving.outcome import State as End
from groundplane.sim.serving.reference.replica import READY

_ROUTED, _REJECTED = int(EventKind.ROUTED), int(EventKind.REJECTED)
_LONG, _FULL = int(End.REJECTED_LONG), int(End.REJECTED_FULL)
_HITS, _WAITING, _HELD = range(3)

_round_robin = compiled(routing.round_robin)
_least_cost = compiled(routing.least_cost)
_at_home = compiled(routing.at_home)


@compiled
def end_work(s: State, work: int, state: int, now_ns: int) -> None:
    """A request is over."""
    s.works[work, c.STATE] = state
    s.works[work, c.FINISHED] = now_ns
    s.works[work, c.WHERE] = c.NOWHERE
    s.world[c.NUM_DONE] += 1
    s.world[c.NOW] = max(s.world[c.NOW], now_ns)


@compiled
def _reject(s: State, work: int, state: int, now_ns: int) -> None:
    end_work(s, work, state, now_ns)
    write(s, now_ns, _REJECTED, c.NONE, work, state, now_ns)


@compiled
def most_tokens(s: State, work: int) -> int:
    """Tokens in the cache when the last token is computed."""
    return s.works[work, c.PROMPT] + s.works[work, c.OUTPUT] - 1


@compiled
def target(s: State, work: int) -> int:
    """Tokens to be in the cache before the next can be computed."""
    return s.works[work, c.PROMPT] + s.works[work, c.GENERATED]


@compiled
def _mark_able(s: State, work: int, decode: bool) -> int:
    """Marks the replicas that are up and can hold a request; how many."""
    count = 0
    for r in range(len(s.replicas)):
        pool = s.replicas[r, c.POOL]
        fits = (s.pools[pool, c.ROLE] == c.DECODE) == decode
        fits = fits and s.pools[pool, c.POOL_MODEL] == s.works[work, c.MODEL]
        fits = fits and s.pools[pool, c.MOST_TOKENS] >= most_tokens(s, work)
        s.able[r] = fits and s.replicas[r, c.STATUS] == READY
        count += s.able[r]
    return count


@compiled
def _look_at_loads(s: State) -> None:
    for r in range(len(s.replicas)):
        s.scratch[_WAITING, r] = s.replicas[r, c.WAITING_TOKENS]
        s.scratch[_HELD, r] = s.replicas[r, c.CONTEXT] + s.replicas[r, c.EXPECTED_TOKENS]


@compiled
def route(s: State, work: int, bounded: bool, now_ns: int) -> None:
    """Sends a request to a replica, into the gateway's line, or away."""
    model = s.works[work, c.MODEL]
    if most_tokens(s, work) > s.longest[model]:
        _reject(s, work, _LONG, now_ns)
        return
    if _mark_able(s, work, False) == 0:
        line = len(s.replicas) + model
        if bounded and s.lines[line, c.LENGTH] >= s.world[c.MAX_WAITING]:
            _reject(s, work, _FULL, now_ns)
        else:
            s.works[work, c.WHERE] = c.IN_GATEWAY
            push(s.works, s.lines, line, work)
        return
    prefix = s.world[c.ROUTING] == c.PREFIX_AWARE
    tokens = target(s, work)
    for r in range(len(s.replicas)):
        s.scratch[_HITS, r] = 0
        if s.able[r]:
            pool = s.replicas[r, c.POOL]
            if bounded and s.lines[r, c.LENGTH] >= s.pools[pool, c.MAX_QUEUE]:
                s.able[r] = False
            elif prefix:
                hits = count_hits(s, r, work, hit_limit(s, r, work, tokens - 1))
                s.scratch[_HITS, r] = hits * s.pools[pool, c.UNIT_TOKENS]
    chosen = _pick(s, work, tokens)
    if chosen < 0:
        _reject(s, work, _FULL, now_ns)
        return
    s.previous[0, model] = chosen
    if s.works[work, c.SESSION] >= 0:
        s.home[s.works[work, c.SESSION]] = chosen
    _send(s, work, chosen, tokens - s.scratch[_HITS, chosen])
    write(s, now_ns, _ROUTED, chosen, work, s.scratch[_HITS, chosen], now_ns)


@compiled
def _pick(s: State, work: int, tokens: int) -> int:
    previous = s.previous[0, s.works[work, c.MODEL]]
    if s.world[c.ROUTING] == c.ROUND_ROBIN:
        return _round_robin(s.able, previous)
    if s.world[c.ROUTING] == c.SESSION_HOME and s.works[work, c.SESSION] >= 0:
        home = _at_home(s.able, s.home[s.works[work, c.SESSION]])
        if home >= 0:
            return home
    _look_at_loads(s)
    return _least_cost(
        s.able, previous, s.scratch[_WAITING], s.scratch[_HELD], s.scratch[_HITS], tokens,
        s.world[c.PROMPT_PERMILLE],
    )  # fmt: skip


@compiled
def _send(s: State, work: int, r: int, pending: int) -> None:
    s.works[work, c.REPLICA] = r
    s.works[work, c.WHERE] = c.IN_LINE
    s.works[work, c.PENDING] = pending
    s.replicas[r, c.WAITING_TOKENS] += pending
    push(s.works, s.lines, r, work)


@compiled
def route_decode(s: State, work: int, now_ns: int) -> None:
    """Sends a request whose prompt is computed to a replica that decodes, or into the line for one."""
    model = s.works[work, c.MODEL]
    chosen = -1
    if _mark_able(s, work, True) > 0:
        if s.world[c.ROUTING] == c.ROUND_ROBIN:
            chosen = _round_robin(s.able, s.previous[1, model])
        else:
            s.scratch[_HITS, :] = 0
            _look_at_loads(s)
            chosen = _least_cost(
                s.able, s.previous[1, model], s.scratch[_WAITING], s.scratch[_HELD], s.scratch[_HITS], 0,
                s.world[c.PROMPT_PERMILLE],
            )  # fmt: skip
    if chosen < 0:
        s.works[work, c.WHERE] = c.IN_GATEWAY
        push(s.works, s.lines, len(s.replicas) + len(s.longest) + model, work)
        return
    s.previous[1, model] = chosen
    s.works[work, c.EXPECTED] = s.works[work, c.COMPUTED]
    s.replicas[chosen, c.EXPECTED_TOKENS] += s.works[work, c.COMPUTED]
    _send(s, work, chosen, 0 if s.works[work, c.REMOTE] >= 0 else target(s, work))
    write(s, now_ns, _ROUTED, chosen, work, 0, now_ns)
