"""`groundplane replay`: feed a journal to the control core and compare every action."""

from __future__ import annotations

import json

import click


@click.command(
    epilog="Examples: groundplane replay .groundplane;  groundplane replay journal.jsonl --json;  "
    "groundplane replay .groundplane --export journal.jsonl"
)
@click.argument("journal", metavar="FILE|STATE_DIR|URL")
@click.option("--export", metavar="FILE", help="Write the journal to FILE as JSON lines, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay_command(journal: str, export: str | None, as_json: bool) -> int:
    """Replay a journal: a file of JSON lines, a database (file or postgresql://...), or a state folder.

    Exit code 0 if the core decides what was recorded, 1 at a divergence, of which the first is shown.
    """
    from pathlib import Path

    import msgspec

    from groundplane.control.replay import replay
    from groundplane.sim.journal_file import read_journal, write_journal
    from groundplane.spec.errors import InputError

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
