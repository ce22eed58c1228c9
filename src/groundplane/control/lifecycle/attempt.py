"""The life of one attempt of a job: it holds leases from its first state until it is gone.

`gone` is proof, by the engine or by fencing, never silence. Starting can go straight to ready: a report
implies those before it, which may come later or never.
"""

from __future__ import annotations

from typing import Final

from groundplane.control.lifecycle.table import Lifecycle

ATTEMPT: Final = Lifecycle(
    "attempt",
    "starting",
    {
        ("starting", "started"): "running",
        ("starting", "ready"): "stepping",
        ("starting", "stop"): "stopping",
        ("starting", "gone"): "gone",
        ("running", "ready"): "stepping",
        ("running", "stop"): "stopping",
        ("running", "gone"): "gone",
        ("stepping", "stop"): "stopping",
        ("stepping", "gone"): "gone",
        ("stopping", "gone"): "gone",
    },
)
