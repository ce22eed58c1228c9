"""`groundplane tour`: the whole story on this machine."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import click


@click.command(epilog="Example: groundplane tour --keep --dir ~/groundplane-tour")
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("groundplane-tour"),
    show_default=True, help="Folder for everything the tour makes; one of an earlier tour is replaced.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the platform up at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; the story goes to stderr.")
def tour_command(folder: Path, keep: bool, as_json: bool) -> int:
    """The whole story on this machine, on real parts, in minutes.

    Measures the machine, predicts a training job, runs it on real text while ranks and the control plane are
    killed, proves the recovery bit by bit, serves the model beside a real chat model, calls both with the
    official client, and closes the books. Leaves no process behind, also when interrupted.
    """
    import msgspec

    from groundplane.tour.result import failures
    from groundplane.tour.stage import Stage
    from groundplane.tour.story import Tour, show_closing

    # A terminal that closes, or a time limit around us, must end the tour as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    stage = Stage(quiet=as_json)
    result = Tour(folder, stage, keep=keep).run()
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())
    show_closing(result, stage)
    broken = failures(result)
    for promise in broken:
        stage.console.print(f"[red]BROKEN: {promise}[/red]")
    shown = folder if not folder.is_absolute() else folder.absolute()
    stage.console.print(
        f"\nAll of it, with charts: {shown / 'report.html'}. The whole tour took {result.wall_s:.0f} s."
    )
    next_commands = [
        f"groundplane plan train {shown}/job.yaml --cluster {shown}/cluster.yaml --html plan.html",
        "groundplane simulate cluster 64x8 --faults",
        f"groundplane status --state {shown}/state" if keep else "groundplane tour --keep",
    ]
    stage.console.print("Next, try:")
    for command in next_commands:
        stage.console.print(f"  [cyan]{command}[/cyan]", soft_wrap=True)
    return 1 if broken else 0


def _interrupt(_number: int, _frame: Any) -> None:
    raise KeyboardInterrupt
