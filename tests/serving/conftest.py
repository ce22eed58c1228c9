"""Fixtures of the serving tests; what they are made of is in `gateway_rig.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_rig import Counting, Platform


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    made = Platform(tmp_path)
    yield made
    made.close()


@pytest.fixture
def counting() -> Iterator[Counting]:
    server = Counting()
    yield server
    server.stop()


@pytest.fixture
def slow_counting() -> Iterator[Counting]:
    server = Counting(token_s=0.02)
    yield server
    server.stop()


@pytest.fixture
def fresh(platform: Platform, counting: Counting) -> Platform:
    """A gateway of the test's own, whose ledger is empty."""
    platform.endpoint("tiny", f"{counting.root}/v1")
    platform.start()
    return platform
