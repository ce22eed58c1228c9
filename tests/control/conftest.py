"""The fixture of the control tests."""

from __future__ import annotations

import pytest
from control_hand import Hand


@pytest.fixture
def hand() -> Hand:
    return Hand()
