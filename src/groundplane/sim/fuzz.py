"""Deterministic simulation testing of the control core: a seed picks a world, its work and its misfortunes.

Reports are lost, late, repeated, reordered or of an old fence, commands are late and repeated; nodes go
silent, flap, die, are fenced and come back; the control plane is cut off from some or all of them; its
journal is slow, writes are torn, it dies between any two records and comes back by replay; clocks jump,
forward while it runs and either way while it is down. After every event the checker compares its own books
with the core's. Then the world heals and progress is demanded: all jobs end, all leases return. A seed that
fails always fails, and is cut down to the few plans and faults that it takes (`minimise`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
from msgspec import Struct

from groundplane.control.core import ControlCore
from groundplane.control.journal import JournalRecord, decode_record
from groundplane.sim.rough_world import RoughWorld
from groundplane.spec.errors import InputError

MAX_MINIMISING_RUNS = 400
"""How many smaller worlds are tried to cut a failure down."""
LINES_SHOWN = 24
"""Lines of the log that a failure shows."""


class FuzzCase(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="fuzz-case"):
    """A failure that can be seen again: the seed, the plans and faults that are kept of it, and what happens.

    `events` is the log of the world with these, `message` what is wrong in it.
    """

    seed: int
    kept: tuple[str, ...]
    message: str
    events: tuple[str, ...]


class Failure(Struct, frozen=True):
    """One seed that failed: after which event, what was wrong, and the newest lines of its log."""

    seed: int
    after_event: int
    message: str
    last_events: tuple[str, ...] = ()
    case: FuzzCase | None = None


class SeedResult(Struct, frozen=True):
    """One seed. `digest` is that of the core at the end, `items` the plans and faults that happened."""

    seed: int
    num_events: int
    num_faults: int
    digest: str
    failure: Failure | None = None
    items: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


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
    first_seed: int,
    num_seeds: int,
    each: Callable[[SeedResult], None] | None = None,
    *,
    minimises: bool = True,
) -> FuzzReport:
    """Runs seeds one after the other.

    Args:
        each: told of every result, for progress.
        minimises: cut the first failure down.
    """
    num_events = num_faults = 0
    failures: list[Failure] = []
    for seed in range(first_seed, first_seed + num_seeds):
        result = run_seed(seed)
        num_events += result.num_events
        num_faults += result.num_faults
        if result.failure is not None:
            failure = result.failure
            if minimises and not failures:
                failure = msgspec.structs.replace(failure, case=minimise(seed))
                result = msgspec.structs.replace(result, failure=failure)
            failures.append(failure)
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
    kept: Collection[str] | None = None,
) -> SeedResult:
    """Runs the world of one seed to its end.

    Args:
        seed: picks everything.
        new_core: makes an empty core; tests plant faults here.
        restore_core: makes a core of a snapshot.
        kept: the plans and faults that happen; all of the seed's, if not given.
    """
    world = RoughWorld(seed, new_core, restore_core, kept)
    message = ""
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever the core raises is what is searched for
        message = f"{type(error).__name__}: {error}"
    failure = None
    if message:
        failure = Failure(seed, world.num_events, message, tuple(world.log[-LINES_SHOWN:]))
    return SeedResult(
        seed,
        world.num_events,
        world.num_faults,
        world.driver.core.digest(),
        failure,
        tuple(world.dice.items),
        () if failure is None else tuple(world.log),
    )


def minimise(seed: int, max_runs: int = MAX_MINIMISING_RUNS) -> FuzzCase | None:
    """The fewest plans and faults of a seed with which it still fails in the same way, as far as is found.

    Delta debugging (Zeller and Hildebrandt, 2002): ever smaller parts are left out, and what is not needed
    stays out.

    Args:
        max_runs: how many smaller worlds are tried at most.

    Returns:
        None if the seed does not fail.
    """
    whole = run_seed(seed)
    if whole.failure is None:
        return None
    shape = _shape(whole.failure.message)
    num_runs = 0

    def fails(kept: Collection[str]) -> bool:
        nonlocal num_runs
        num_runs += 1
        found = run_seed(seed, kept=kept).failure
        return found is not None and _shape(found.message) == shape

    kept = list(whole.items)
    if not fails(kept):
        kept_case = whole
    else:
        size = max(1, len(kept) // 2)
        while num_runs < max_runs:
            before, start = len(kept), 0
            while start < len(kept) and num_runs < max_runs:
                rest = kept[:start] + kept[start + size :]
                if fails(rest):
                    kept = rest
                else:
                    start += size
            if size == 1 and len(kept) == before:
                break
            size = max(1, size // 2)
        kept_case = run_seed(seed, kept=kept)
    message = "" if kept_case.failure is None else kept_case.failure.message
    return FuzzCase(seed, tuple(kept), message, kept_case.log)


def write_case(path: Path, case: FuzzCase) -> None:
    """Writes a case as JSON.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(case)) + b"\n")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from None


def read_case(path: Path) -> FuzzCase | None:
    """The case in a file; None where the file is something else."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
            if b"fuzz-case" not in head:
                return None
            return msgspec.json.decode(head + file.read(), type=FuzzCase)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def run_case(case: FuzzCase) -> SeedResult:
    """The world of a case, run again."""
    return run_seed(case.seed, kept=case.kept)


def _shape(message: str) -> str:
    """What stays the same of a message when numbers and ids change."""
    return re.sub(r"[0-9]+|'[^']*'|\{.*\}|\[.*\]|\(.*\)", "", message)[:60]
