"""The life of a job, from the queue to its one end. Its attempts have a life of their own.

A job is held while others must succeed before it, or too many of its group are ahead; most are released at
once. `retry` is after a failure and waits its back-off; `requeued` is after a stop that was no failure of the
job: an operator's, or for another that takes its place.
"""

from __future__ import annotations

from typing import Final

from groundplane.control.lifecycle.table import Lifecycle

JOB: Final = Lifecycle(
    "job",
    "held",
    {
        ("held", "released"): "queued",
        ("held", "cancelled"): "cancelled",
        ("held", "refused"): "failed",
        ("held", "time_over"): "failed",
        ("queued", "placed"): "starting",
        ("queued", "cancelled"): "cancelled",
        ("queued", "time_over"): "failed",
        ("queued", "late_success"): "succeeded",
        ("starting", "started"): "running",
        ("starting", "stop"): "stopping",
        ("starting", "succeeded"): "succeeded",
        ("starting", "retry"): "backing_off",
        ("starting", "failed"): "failed",
        ("running", "stop"): "stopping",
        ("running", "succeeded"): "succeeded",
        ("running", "retry"): "backing_off",
        ("running", "requeued"): "queued",
        ("running", "failed"): "failed",
        ("stopping", "succeeded"): "succeeded",
        ("stopping", "retry"): "backing_off",
        ("stopping", "requeued"): "queued",
        ("stopping", "failed"): "failed",
        ("stopping", "cancelled"): "cancelled",
        ("backing_off", "backed_off"): "queued",
        ("backing_off", "cancelled"): "cancelled",
        ("backing_off", "time_over"): "failed",
        ("backing_off", "late_success"): "succeeded",
    },
)
