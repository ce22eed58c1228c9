"""`groundplane replay`: feed a journal to the control core and compare every action."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from groundplane.sim.fuzz import FuzzCase


@click.command(
    epilog="Examples: groundplane replay .groundplane;  groundplane replay journal.jsonl --json;  "
    "groundplane replay .groundplane --export journal.jsonl"
)
@click.argument("journal", metavar="FILE|STATE_DIR|URL|CASE.json")
@click.option("--export", metavar="FILE", help="Write the journal to FILE as JSON lines, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay_command(journal: str, export: str | None, as_json: bool) -> int:
    """Replay a journal: a file of JSON lines, a database (file or postgresql://...), or a state folder.

    Exit code 0 if the core decides what was recorded, 1 at a divergence, of which the first is shown. A case
    that `fuzz control` wrote is run again and its events are shown: exit code 1 if it still fails.
    """
    from pathlib import Path

    import msgspec

    from groundplane.control.replay import replay
    from groundplane.sim.fuzz import read_case
    from groundplane.sim.journal_file import read_journal, write_journal
    from groundplane.spec.errors import InputError

    case = read_case(Path(journal))
    if case is not None:
        return _replay_case(case, as_json)
    report = replay(read_journal(journal))
    if not report.num_events:
        raise InputError("holds no event: nothing was compared", file=journal)
    if export is not None:
        write_journal(Path(export), read_journal(journal))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report)))
    else:
        click.echo(
            f"{report.num_events} events, {report.num_actions} actions, {report.num_snapshots} snapshots; "
            f"digest {report.digest}"
        )
        if report.divergence is None:
            click.echo("every action as recorded")
        else:
            wrong = report.divergence
            click.echo(f"first divergence at record {wrong.seq} ({wrong.event}):")
            click.echo(f"  recorded:   {wrong.recorded or 'nothing'}")
            click.echo(f"  recomputed: {wrong.recomputed or 'nothing'}")
    return 0 if report.divergence is None else 1


def _replay_case(case: FuzzCase, as_json: bool) -> int:
    """Runs the world of a fuzz case again."""
    import msgspec

    from groundplane.sim.fuzz import run_case

    result = run_case(case)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(result)))
        return 0 if result.failure is None else 1
    click.echo(f"seed {case.seed} with {len(case.kept)} plans and faults; it failed with: {case.message}")
    for line in result.log:
        click.echo(f"  {line}")
    if result.failure is None:
        click.echo(f"passes now: {result.num_events} events, digest {result.digest}")
        return 0
    same = "as before" if result.failure.message == case.message else "in another way"
    click.echo(f"fails {same}: {result.failure.message}")
    return 1
