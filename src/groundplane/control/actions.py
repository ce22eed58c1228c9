"""Everything the control core can ask for. Frozen, journalled before they are carried out, idempotent.

A driver may carry an action out more than once (after a crash it cannot know), so each names its work and
fence: an engine that has seen the pair does nothing the second time, and refuses an older fence.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class PlacedPart(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The part of a device that a rank has: a MIG instance of `profile` from slice `start` on, or a fraction.

    A fraction has `units` of 7,000 of the compute and at most `memory_bytes` of the memory (0: no cap).
    """

    units: int
    memory_bytes: int
    profile: str = ""
    start: int = -1


class RankPlacement(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Where one rank runs: its node and the indices of its devices there, or the part of the one device."""

    node_id: str
    devices: tuple[int, ...]
    part: PlacedPart | None = None


class Action(Struct, frozen=True, forbid_unknown_fields=True, tag=True, gc=False):
    """Base of all actions; the tag is the class name."""


class StartWork(Action, frozen=True):
    """Start an attempt (`kind` "attempt", owner a job) or a replica (owner a service) on leased devices.

    `generation` is that of the service's description which the replica runs; 1 for an attempt.
    """

    work_id: str
    kind: Literal["attempt", "replica"]
    owner_id: str
    fence: int
    placement: tuple[RankPlacement, ...]
    generation: int = 1


class DrainWork(Action, frozen=True):
    """Send a replica no new requests; `WorkDrained` follows when the last one has ended."""

    work_id: str
    fence: int


PREEMPTED = "preempted"
"""How the reason of a `StopWork` begins where another work takes the place; also the intent in the core."""


class StopWork(Action, frozen=True):
    """End every process of the work, politely for `grace_ns`, then by force; `WorkGone` follows."""

    work_id: str
    fence: int
    grace_ns: int
    reason: str


class SetTimer(Action, frozen=True):
    """Bring `TimerFired(timer_id)` at `at_ns` or soon after. Setting the same id again moves it."""

    timer_id: str
    at_ns: int


class JobEnded(Action, frozen=True):
    """Said once a job, when it reaches its final state and holds nothing any more."""

    job_id: str
    outcome: Literal["succeeded", "failed", "cancelled"]
    reason: str


AnyAction = StartWork | DrainWork | StopWork | SetTimer | JobEnded
