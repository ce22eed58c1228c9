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
        fits = (s.replicas[r, c.ROLE] == c.DECODE) == decode
        fits = fits and s.replicas[r, c.POOL_MODEL] == s.works[work, c.MODEL]
        fits = fits and s.replicas[r, c.MOST_TOKENS] >= most_tokens(s, work)
        s.replicas[r, c.ABLE] = fits and s.replicas[r, c.STATUS] == READY
        count += s.replicas[r, c.ABLE]
    return count


@compiled
def _least_to_do(s: State, previous: int, tokens: int) -> int:
    """The replica with the least to do, what its cache holds of the prompt not counted."""
    for r in range(len(s.replicas)):
        s.replicas[r, c.HELD_TOKENS] = s.replicas[r, c.CONTEXT] + s.replicas[r, c.EXPECTED_TOKENS]
    return _least_cost(
        s.replicas[:, c.ABLE], previous, s.replicas[:, c.WAITING_TOKENS], s.replicas[:, c.HELD_TOKENS],
        s.replicas[:, c.HITS], tokens, s.world[c.PROMPT_PERMILLE],
    )  # fmt: skip


@compiled
def route(s: State, work: int, bounded: bool, now_ns: int) -> None:
    """Sends a request to a replica, into the gateway's line, or away."""
    model = s.works[work, c.MODEL]
    if most_tokens(s, work) > s.models[model, c.LONGEST]:
        _reject(s, work, _LONG, now_ns)
        return
    if _mark_able(s, work, False) == 0:
        if bounded and s.models[model, c.GATE_LENGTH] >= s.world[c.MAX_WAITING]:
            _reject(s, work, _FULL, now_ns)
        else:
            s.works[work, c.WHERE] = c.IN_GATEWAY
            push(s.works, s.models, model, c.GATE_LINE, work)
        return
    prefix = s.world[c.ROUTING] == c.PREFIX_AWARE
    tokens = target(s, work)
    for r in range(len(s.replicas)):
        s.replicas[r, c.HITS] = 0
        if s.replicas[r, c.ABLE]:
            if bounded and s.replicas[r, c.LINE_LENGTH] >= s.replicas[r, c.MAX_QUEUE]:
                s.replicas[r, c.ABLE] = 0
            elif prefix:
                hits = count_hits(s, r, work, hit_limit(s, r, work, tokens - 1))
                s.replicas[r, c.HITS] = hits * s.replicas[r, c.UNIT_TOKENS]
    chosen = _pick(s, work, tokens)
    if chosen < 0:
        _reject(s, work, _FULL, now_ns)
        return
    s.models[model, c.PREVIOUS] = chosen
    if s.works[work, c.SESSION] >= 0:
        s.world[s.world[c.HOMES_AT] + s.works[work, c.SESSION]] = chosen
    _send(s, work, chosen, tokens - s.replicas[chosen, c.HITS])
    write(s, now_ns, _ROUTED, chosen, work, s.replicas[chosen, c.HITS], now_ns)


@compiled
def _pick(s: State, work: int, tokens: int) -> int:
    previous = s.models[s.works[work, c.MODEL], c.PREVIOUS]
    if s.world[c.ROUTING] == c.ROUND_ROBIN:
        return _round_robin(s.replicas[:, c.ABLE], previous)
    if s.world[c.ROUTING] == c.SESSION_HOME and s.works[work, c.SESSION] >= 0:
        home = _at_home(s.replicas[:, c.ABLE], s.world[s.world[c.HOMES_AT] + s.works[work, c.SESSION]])
        if home >= 0:
            return home
    return _least_to_do(s, previous, tokens)


@compiled
def _send(s: State, work: int, r: int, pending: int) -> None:
    s.works[work, c.REPLICA] = r
    s.works[work, c.WHERE] = c.IN_LINE
    s.works[work, c.PENDING] = pending
    s.replicas[r, c.WAITING_TOKENS] += pending
    # The iteration under way is the last before its line is looked at.
    s.replicas[r, c.CAN_JUMP] = 0
    push(s.works, s.replicas, r, c.LINE, work)


@compiled
def route_decode(s: State, work: int, now_ns: int) -> None:
    """Sends a request whose prompt is computed to a replica that decodes, or into the line for one."""
    model = s.works[work, c.MODEL]
    chosen = -1
    if _mark_able(s, work, True) > 0:
        previous = s.models[model, c.PREVIOUS_DECODE]
        if s.world[c.ROUTING] == c.ROUND_ROBIN:
            chosen = _round_robin(s.replicas[:, c.ABLE], previous)
        else:
            s.replicas[:, c.HITS] = 0
            chosen = _least_to_do(s, previous, 0)
    if chosen < 0:
        s.works[work, c.WHERE] = c.IN_GATEWAY
        push(s.works, s.models, model, c.DECODE_LINE, work)
        return
    s.models[model, c.PREVIOUS_DECODE] = chosen
    s.works[work, c.EXPECTED] = s.works[work, c.COMPUTED]
    s.replicas[chosen, c.EXPECTED_TOKENS] += s.works[work, c.COMPUTED]
    _send(s, work, chosen, 0 if s.works[work, c.REMOTE] >= 0 else target(s, work))
    write(s, now_ns, _ROUTED, chosen, work, 0, now_ns)
