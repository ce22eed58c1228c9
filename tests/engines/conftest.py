"""What every engine test gets: a mark for all that it starts, and proof that nothing of it is left."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from engine_harness import Harness, left_behind

from groundplane.platform.engines.contract import Engine


@pytest.fixture
def tag() -> Iterator[str]:
    """A mark in the environment of everything a test starts; at the end no process may carry it any more."""
    tag = uuid.uuid4().hex
    yield tag
    left = left_behind(tag)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    assert left == []


@pytest.fixture
def new_harness(tag: str) -> Iterator[Callable[[Engine], Harness]]:
    """Opens an engine in a harness, and closes what the test has not closed."""
    made: list[Harness] = []

    def new(engine: Engine) -> Harness:
        made.append(Harness(engine, tag))
        return made[-1]

    yield new
    for harness in made:
        harness.close()
