"""`groundplane fuzz`: search for seeds that break the control core."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from groundplane.sim.fuzz import Failure, SeedResult


@click.group(epilog="Example: groundplane fuzz control --seeds 200")
def fuzz_command() -> None:
    """Search for seeds that break a part of Groundplane."""


@fuzz_command.command(
    name="control",
    epilog="Examples: groundplane fuzz control --seeds 1000;  "
    "groundplane fuzz control --first-seed 4711 --seeds 1 --journal j.jsonl",
)
@click.option(
    "--seeds", type=click.IntRange(1), default=200, show_default=True, help="How many seeds to run."
)
@click.option("--first-seed", type=click.IntRange(0), default=0, show_default=True, help="The first of them.")
@click.option("--journal", metavar="FILE", help="Write the journal of the first seed to FILE, for replay.")
@click.option("--case", metavar="FILE", help="Where the first failure goes, cut down, for replay.",
              default="fuzz-case.json", show_default=True)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def control_command(seeds: int, first_seed: int, journal: str | None, case: str, as_json: bool) -> int:
    """Run the control core in small simulated worlds full of faults, and check it after every event.

    A seed picks topology, workload and faults: lost, late, repeated and reordered reports, nodes that flap,
    die and are fenced, partitions, slow and torn journal writes, a control plane killed between any two
    records, clocks that jump. Then the world heals and all must come to its end. The first seed that fails is
    cut down to the plans and faults that it takes, shown as a list of events and written to a file that
    `groundplane replay` runs again. Exit code 1 if a seed fails.
    """
    from pathlib import Path

    import msgspec

    from groundplane.sim.fuzz import journal_of_seed, run_seeds, write_case
    from groundplane.sim.journal_file import write_journal

    if journal is not None:
        write_journal(Path(journal), journal_of_seed(first_seed))

    def show(result: SeedResult) -> None:
        if result.failure is not None:
            _show_failure(result.failure)

    report = run_seeds(first_seed, seeds, None if as_json else show)
    if report.first_failure is not None and report.first_failure.case is not None:
        write_case(Path(case), report.first_failure.case)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report)))
    else:
        last = first_seed + seeds - 1
        click.echo(
            f"seeds {first_seed} to {last}: {report.failures} failed "
            f"({report.events} events, {report.faults} faults injected)"
        )
        if report.failures:
            click.echo(f"  again, cut down: groundplane replay {case}")
    return 1 if report.failures else 0


def _show_failure(failure: Failure) -> None:
    click.echo(f"seed {failure.seed} failed after event {failure.after_event}: {failure.message}")
    lines, kept = failure.last_events, ""
    if failure.case is not None:
        lines, kept = failure.case.events, f", cut down to {len(failure.case.kept)} plans and faults"
    click.echo(f"  what happened{kept}:")
    for line in lines:
        click.echo(f"    {line}")
    click.echo(f"  again: groundplane fuzz control --first-seed {failure.seed} --seeds 1")
