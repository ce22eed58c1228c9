"""How many replicas a pool should have: a target a replica, and patience before it changes. In integers.

A decision looks at the requests in the pool (waiting or running) and at what was decided before. It goes up
once more have been wanted for `up_patience_ns` without a break, and down once fewer have been wanted for
`down_patience_ns`, and then only to the most that was wanted in that time: a short lull sheds nothing, and a
burst does not swing the pool. Pure; the simulator compiles this very function, so it calls nothing.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

UP_SINCE: Final = 0
DOWN_SINCE: Final = 1
DOWN_MOST: Final = 2
NOT_SINCE: Final = -1


class Memory(Protocol):
    """Three whole numbers: a list, or part of an array."""

    def __getitem__(self, index: int, /) -> Any:
        """One of them."""

    def __setitem__(self, index: int, value: int, /) -> None:
        """Changes one of them."""


def new_memory() -> list[int]:
    """What a pool remembers between decisions, at the start."""
    return [NOT_SINCE, NOT_SINCE, 0]


def replicas_wanted(
    memory: Memory,
    now_ns: int,
    num_requests: int,
    num_replicas: int,
    target_requests: int,
    min_replicas: int,
    max_replicas: int,
    up_patience_ns: int,
    down_patience_ns: int,
) -> int:
    """The number of replicas to have from now on.

    Args:
        memory: of this pool, see `new_memory`; changed in place.
        now_ns: time of the decision, never decreasing.
        num_requests: waiting or running in the pool now.
        num_replicas: up or starting now, without those that drain.
        target_requests: requests that one replica should have.
        min_replicas, max_replicas: bounds of the answer.
        up_patience_ns, down_patience_ns: how long the load must ask for more or fewer.
    """
    wanted = (num_requests + target_requests - 1) // target_requests
    wanted = min(max(wanted, min_replicas), max_replicas)
    if wanted > num_replicas:
        memory[DOWN_SINCE] = NOT_SINCE
        if memory[UP_SINCE] == NOT_SINCE:
            memory[UP_SINCE] = now_ns
        if now_ns - memory[UP_SINCE] >= up_patience_ns:
            memory[UP_SINCE] = NOT_SINCE
            return wanted
        return num_replicas
    memory[UP_SINCE] = NOT_SINCE
    if wanted == num_replicas:
        memory[DOWN_SINCE] = NOT_SINCE
        return num_replicas
    if memory[DOWN_SINCE] == NOT_SINCE:
        memory[DOWN_SINCE] = now_ns
        memory[DOWN_MOST] = wanted
    memory[DOWN_MOST] = max(memory[DOWN_MOST], wanted)
    if now_ns - memory[DOWN_SINCE] >= down_patience_ns:
        memory[DOWN_SINCE] = NOT_SINCE
        return int(memory[DOWN_MOST])
    return num_replicas
