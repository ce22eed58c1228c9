"""Deterministic simulation testing of the control core: a seed picks a world, its work and its misfortunes.

Reports are lost, late, repeated, reordered or of an old fence; nodes go silent, flap, die, are fenced and
come back; the control plane dies between any two steps of handling, and comes back by replay; clocks jump
forward. After every event the checker compares its own books with the core's. Then the world heals and
progress is demanded: all jobs end, all leases return. A seed that fails always fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from msgspec import Struct

from groundplane.control.core import ControlCore
from groundplane.control.journal import JournalRecord, decode_record
from groundplane.sim.rough_world import RoughWorld


class Failure(Struct, frozen=True):
    """One seed that failed: after which event, what was wrong, and the newest events, oldest first."""

    seed: int
    after_event: int
    message: str
    last_events: tuple[str, ...] = ()


class SeedResult(Struct, frozen=True):
    """One seed. `digest` is that of the core at the end."""

    seed: int
    num_events: int
    num_faults: int
    digest: str
    failure: Failure | None = None


class FuzzReport(Struct, frozen=True):
    """Many seeds. `faults` counts the misfortunes injected, `failing_seeds` those to look at."""

    seeds: int
    first_seed: int
    events: int
    faults: int
    failures: int
    failing_seeds: tuple[int, ...]
    first_failure: Failure | None


def run_seeds(
    first_seed: int, num_seeds: int, each: Callable[[SeedResult], None] | None = None
) -> FuzzReport:
    """Runs seeds one after the other.

    Args:
        each: told of every result, for progress.
    """
    num_events = num_faults = 0
    failures: list[Failure] = []
    for seed in range(first_seed, first_seed + num_seeds):
        result = run_seed(seed)
        num_events += result.num_events
        num_faults += result.num_faults
        if result.failure is not None:
            failures.append(result.failure)
        if each is not None:
            each(result)
    return FuzzReport(
        seeds=num_seeds,
        first_seed=first_seed,
        events=num_events,
        faults=num_faults,
        failures=len(failures),
        failing_seeds=tuple(failure.seed for failure in failures),
        first_failure=failures[0] if failures else None,
    )


def journal_of_seed(seed: int) -> list[JournalRecord]:
    """The journal that the world of a seed leaves, up to its end or its failure."""
    world = RoughWorld(seed, ControlCore, ControlCore.restore)
    with contextlib.suppress(Exception):
        world.run()
    return [decode_record(payload) for payload in world.driver.journal]


def run_seed(
    seed: int,
    *,
    new_core: Callable[[], ControlCore] = ControlCore,
    restore_core: Callable[[bytes], ControlCore] = ControlCore.restore,
) -> SeedResult:
    """Runs the world of one seed to its end.

    Args:
        seed: picks everything.
        new_core: makes an empty core; tests plant faults here.
        restore_core: makes a core of a snapshot.
    """
    world = RoughWorld(seed, new_core, restore_core)
    message = ""
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever the core raises is what is searched for
        message = f"{type(error).__name__}: {error}"
    failure = None
    if message:
        last_events = tuple(f"{now_ns} {event} -> {actions}" for now_ns, event, actions in world.last_events)
        failure = Failure(seed, world.num_events, message, last_events)
    return SeedResult(seed, world.num_events, world.num_faults, world.driver.core.digest(), failure)
