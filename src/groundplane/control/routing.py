"""Which replica gets a request: policies in integers, the same for the gateway and for its simulation.

Replicas are numbered; `able[r]` says whether replica r may take the request (up, of its model, with room in
its line). Loads are in tokens: `waiting_tokens[r]` prompt tokens that r has yet to compute, `held_tokens[r]`
those in the caches of the sequences it decodes. Among equals the one goes first that comes next after
`previous`, the replica picked last. Pure and without allocation; the simulator compiles these very functions,
so they use plain loops over anything that can be indexed, and call nothing.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

NO_REPLICA: Final = -1


class Row(Protocol):
    """Numbers or flags, one a replica: a list, or an array."""

    def __len__(self) -> int:
        """How many."""

    def __getitem__(self, index: int, /) -> Any:
        """One of them."""


def round_robin(able: Row, previous: int) -> int:
    """The next able replica after `previous`; `NO_REPLICA` if none is able."""
    count = len(able)
    for step in range(1, count + 1):
        replica = (previous + step) % count
        if able[replica]:
            return replica
    return NO_REPLICA


def least_cost(
    able: Row,
    previous: int,
    waiting_tokens: Row,
    held_tokens: Row,
    hit_tokens: Row,
    prompt_tokens: int,
    prompt_permille: int,
) -> int:
    """The able replica with the least to do, this prompt counted without what its cache holds of it.

    With all `hit_tokens` zero this is least work, else prefix-aware routing: a hit is worth going to a busier
    replica as long as it saves more than waits there.

    Args:
        able, previous, waiting_tokens, held_tokens: see the module.
        hit_tokens: of the prompt, found in each replica's cache.
        prompt_tokens: of this request.
        prompt_permille: what a prompt token to be computed weighs, a held one being 1000.
    """
    count = len(able)
    best = NO_REPLICA
    best_cost = 0
    for step in range(1, count + 1):
        replica = (previous + step) % count
        if able[replica]:
            fresh = prompt_tokens - hit_tokens[replica]
            cost = prompt_permille * (waiting_tokens[replica] + fresh) + 1000 * held_tokens[replica]
            if best == NO_REPLICA or cost < best_cost:
                best = replica
                best_cost = cost
    return best


def at_home(able: Row, home: int) -> int:
    """The replica that served the session before, if it is still able; else `NO_REPLICA`."""
    if home >= 0 and able[home]:
        return home
    return NO_REPLICA
