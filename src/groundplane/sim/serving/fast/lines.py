"""Lines of requests by rank (priority, then arrival): skew heaps whose links are columns of the requests.

A request stands in one line at most. (Sleator and Tarjan 1986: amortised logarithmic, without balance data.)
"""

# mypy: disable-error-code="no-any-return"
# (numpy types an element as Any)

from __future__ import annotations

from groundplane.sim.serving.fast import columns as c
from groundplane.sim.serving.fast.compiled import compiled
from groundplane.sim.serving.outcome import IntArray


@compiled
def before(works: IntArray, one: int, other: int) -> bool:
    """Whether one request goes before another."""
    if works[one, c.PRIORITY] != works[other, c.PRIORITY]:
        return works[one, c.PRIORITY] > works[other, c.PRIORITY]
    return one < other


@compiled
def merge(works: IntArray, one: int, other: int) -> int:
    """The root of two heaps made one."""
    if one < 0:
        return other
    if other < 0:
        return one
    if before(works, other, one):
        one, other = other, one
    root = one
    while True:
        rest = works[one, c.RIGHT]
        works[one, c.RIGHT] = works[one, c.LEFT]
        if rest < 0:
            works[one, c.LEFT] = other
            return root
        if before(works, other, rest):
            rest, other = other, rest
        works[one, c.LEFT] = rest
        one = rest


@compiled
def push(works: IntArray, table: IntArray, row: int, column: int, work: int) -> None:
    """Puts a request into the line whose root is in a table's column, its length in the next."""
    works[work, c.LEFT] = c.NONE
    works[work, c.RIGHT] = c.NONE
    table[row, column] = merge(works, table[row, column], work)
    table[row, column + 1] += 1


@compiled
def pop(works: IntArray, table: IntArray, row: int, column: int) -> int:
    """Takes the first of a line that is not empty."""
    work = table[row, column]
    table[row, column] = merge(works, works[work, c.LEFT], works[work, c.RIGHT])
    table[row, column + 1] -= 1
    return work
