from __future__ import annotations

from pathlib import Path

import pytest

from groundplane.control.lifecycle.attempt import ATTEMPT
from groundplane.control.lifecycle.diagrams import lifecycles_page
from groundplane.control.lifecycle.job import JOB
from groundplane.control.lifecycle.node import NODE
from groundplane.control.lifecycle.replica import REPLICA
from groundplane.control.lifecycle.table import Lifecycle
from groundplane.spec.errors import InvariantError

ALL = [JOB, ATTEMPT, REPLICA, NODE]


def test_the_page_in_the_docs_is_made_from_the_tables() -> None:
    page = Path(__file__).parents[2] / "docs" / "lifecycles.md"
    assert page.read_text() == lifecycles_page()


def test_final_states() -> None:
    assert set(JOB.final) == {"succeeded", "failed", "cancelled"}
    assert ATTEMPT.final == REPLICA.final == ("gone",)
    assert NODE.final == ()


@pytest.mark.parametrize("lifecycle", ALL, ids=lambda lifecycle: lifecycle.kind)
def test_every_state_is_reached_from_the_initial_one(lifecycle: Lifecycle) -> None:
    reached = ["backing_off", lifecycle.initial] if lifecycle is REPLICA else [lifecycle.initial]
    for state in reached:
        reached += [
            to for (source, _), to in lifecycle.transitions.items() if source == state and to not in reached
        ]
    assert set(reached) == {state for state, _ in lifecycle.transitions} | set(lifecycle.transitions.values())


def test_an_illegal_step_raises() -> None:
    assert not JOB.allows("succeeded", "placed")
    with pytest.raises(InvariantError, match="a job in state 'succeeded' cannot take 'placed'"):
        JOB.after("succeeded", "placed")


def test_diagram() -> None:
    door = Lifecycle("door", "open", {("open", "close"): "shut", ("shut", "burn"): "ash"})
    assert door.diagram() == (
        "stateDiagram-v2\n    [*] --> open\n    open --> shut: close\n    shut --> ash: burn\n    ash --> [*]"
    )
