"""The life of one replica of a service. A replacement is a new replica, which may begin by backing off.

It holds leases from `starting` until it is gone; one that has been ready drains before it is stopped.
"""

from __future__ import annotations

from typing import Final

from groundplane.control.lifecycle.table import Lifecycle

REPLICA: Final = Lifecycle(
    "replica",
    "queued",
    {
        ("queued", "placed"): "starting",
        ("queued", "dropped"): "gone",
        ("backing_off", "backed_off"): "queued",
        ("backing_off", "dropped"): "gone",
        ("starting", "started"): "running",
        ("starting", "ready"): "ready",
        ("starting", "stop"): "stopping",
        ("starting", "gone"): "gone",
        ("running", "ready"): "ready",
        ("running", "stop"): "stopping",
        ("running", "gone"): "gone",
        ("ready", "unready"): "unready",
        ("ready", "drain"): "draining",
        ("ready", "stop"): "stopping",
        ("ready", "gone"): "gone",
        ("unready", "ready"): "ready",
        ("unready", "drain"): "draining",
        ("unready", "stop"): "stopping",
        ("unready", "gone"): "gone",
        ("draining", "stop"): "stopping",
        ("draining", "gone"): "gone",
        ("stopping", "gone"): "gone",
    },
)
