"""What every engine test gets: a mark for all that it starts, and proof that nothing of it is left."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest
from engine_harness import left_behind


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
