from __future__ import annotations

import pytest

from groundplane.sim.agenda import FIRST, LAST, NORMAL, Agenda
from groundplane.spec.errors import InvariantError


def test_time_then_priority_then_sequence() -> None:
    agenda, done = Agenda(), []
    for name, time_ns, priority in [
        ("e", 7, NORMAL),
        ("d", 5, LAST),
        ("b", 5, NORMAL),
        ("c", 5, NORMAL),
        ("a", 5, FIRST),
    ]:
        agenda.at(time_ns, lambda name=name: done.append(name), priority)  # type: ignore[misc]
    agenda.run(6)
    assert (done, agenda.now_ns, len(agenda)) == (["a", "b", "c", "d"], 6, 1)
    agenda.run(10)
    assert (done[-1], agenda.now_ns, agenda.num_done) == ("e", 10, 5)
    assert not agenda.step()


def test_what_is_planned_at_this_moment_still_happens_in_it() -> None:
    agenda, done = Agenda(), []
    agenda.at(3, lambda: agenda.after(0, lambda: done.append(agenda.now_ns), FIRST), LAST)
    agenda.run(3)
    assert done == [3]


def test_the_past_cannot_be_planned() -> None:
    agenda = Agenda()
    agenda.run(4)
    with pytest.raises(InvariantError, match="a deed for 3 ns, but it is 4 ns already"):
        agenda.at(3, lambda: None)
