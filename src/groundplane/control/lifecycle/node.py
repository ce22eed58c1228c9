"""The life of a node as the core knows it. Cordoned is a flag beside it: it changes placement, not life.

A fenced node holds no leases and comes back only by joining again with a new boot number.
"""

from __future__ import annotations

from typing import Final

from groundplane.control.lifecycle.table import Lifecycle

NODE: Final = Lifecycle(
    "node",
    "up",
    {
        ("up", "silent"): "silent",
        ("up", "fenced"): "fenced",
        ("silent", "back"): "up",
        ("silent", "fenced"): "fenced",
        ("fenced", "joined"): "up",
    },
)
