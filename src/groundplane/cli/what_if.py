"""`groundplane what-if`: what would change if nodes went down, a quota grew, or a job was submitted."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import click

from groundplane.cli.client import json_option

if TYPE_CHECKING:
    from groundplane.control.core import ControlCore
    from groundplane.control.forecast import JobForecast
    from groundplane.sim.what_if import Change, WhatIf

MAX_SHOWN = 40
"""Jobs that are shown, the first that differ; --json has all of them."""


@click.command(
    epilog="Examples: groundplane what-if .groundplane --down 2;  "
    "groundplane what-if .groundplane --submit job.yaml --run-time '2 h';  "
    "groundplane what-if simulated.jsonl --at '6 h' --quota research=x2"
)
@click.argument("journal", metavar="FILE|STATE_DIR")
@click.option("--down", type=click.IntRange(1), metavar="N", help="N nodes die, those that hold most.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="This node dies; may be repeated.")
@click.option("--quota", "quotas", multiple=True, metavar="QUEUE=xFACTOR|QUEUE=DEVICES",
              help="Guarantee and limit of a queue times a factor, or its guarantee anew.")  # fmt: skip
@click.option("--submit", "submits", multiple=True, metavar="JOB.yaml", help="This job is submitted.")
@click.option("--run-time", metavar="TIME", help="With --submit: how long it is predicted to run.")
@click.option(
    "--at", metavar="TIME", help="As things stood so long after the journal began [default: its end]."
)
@click.option("--horizon", default="7 days", show_default=True, metavar="TIME", help="How far to look ahead.")
@click.option("--assume-run-time", metavar="TIME",
              help="Run time of jobs of which nothing is predicted [default: no end in sight].")  # fmt: skip
@json_option
def what_if_command(
    journal: str,
    down: int | None,
    nodes: tuple[str, ...],
    quotas: tuple[str, ...],
    submits: tuple[str, ...],
    run_time: str | None,
    at: str | None,
    horizon: str,
    assume_run_time: str | None,
    as_json: bool,
) -> None:
    """Say what would change, with the production code on a copy of the state; nothing real is touched.

    The state is that of a journal: the state folder of a platform (which may be running), or a file as
    `simulate cluster --journal` and `replay --export` write it. Two copies are run ahead on predicted run
    times, one of them changed; the jobs that fare differently are shown.
    """
    import msgspec

    from groundplane.sim.what_if import nodes_down, what_if
    from groundplane.spec.errors import InputError
    from groundplane.spec.units import parse_ns

    core = _core_of(journal, None if at is None else parse_ns(at, field="--at"))
    changes: list[Change] = []
    if down is not None or nodes:
        if down is not None and nodes:
            raise InputError("cannot stand beside --node", field="--down", value=down)
        changes.append(nodes_down(down or 0, nodes))
    changes += [_quota(text) for text in quotas]
    predicted_ns = 0 if run_time is None else parse_ns(run_time, field="--run-time")
    changes += [_submission(core, path, number, predicted_ns) for number, path in enumerate(submits)]
    if not changes:
        raise InputError("say what changes: --down, --node, --quota or --submit", field="what-if")
    answer = what_if(
        core,
        changes,
        horizon_ns=parse_ns(horizon, field="--horizon"),
        assumed_run_ns=0 if assume_run_time is None else parse_ns(assume_run_time, field="--assume-run-time"),
    )
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(answer)))
    else:
        _show(answer)


def _core_of(journal: str, after_ns: int | None) -> ControlCore:
    """The core as the journal leaves it, or as it stood so long after the first record."""
    from groundplane.control.replay import Replay
    from groundplane.sim.journal_file import read_journal
    from groundplane.spec.errors import InputError

    run, first_ns = Replay(), None
    for record in read_journal(journal):
        first_ns = record.now_ns if first_ns is None else first_ns
        if after_ns is not None and record.now_ns > first_ns + after_ns:
            break
        run.take(record)
    if first_ns is None:
        raise InputError("holds no event", file=journal)
    return run.core


def _quota(text: str) -> Change:
    from groundplane.sim.what_if import quota_changed
    from groundplane.spec.errors import InputError

    match = re.fullmatch(r"([^=]+)=(?:x(\d+(?:\.\d+)?)|(\d+))", text)
    if match is None:
        raise InputError("must be QUEUE=xFACTOR or QUEUE=DEVICES", field="--quota", value=text)
    factor = None if match[2] is None else float(match[2])
    return quota_changed(match[1], factor, None if match[3] is None else int(match[3]))


def _submission(core: ControlCore, path: str, number: int, predicted_ns: int) -> Change:
    """The job of a file as it would enter the core, checked against what the nodes offer."""
    from groundplane.control.events import Gang, JobSubmitted, RestartPolicy
    from groundplane.platform.runtime.device_kinds import gang_on
    from groundplane.sim.what_if import submitted
    from groundplane.spec.job import JobSpec
    from groundplane.spec.load import load

    spec = load(path, JobSpec)
    restart = spec.restart
    gang = Gang(spec.sizes[0], spec.devices_per_rank, spec.memory_per_rank_bytes)
    event = JobSubmitted(
        job_id=f"what-if-{number}-{spec.name}",
        name=spec.name,
        queue=spec.queue,
        priority=spec.priority,
        gang=gang_on(spec.device, core, gang),
        restart=RestartPolicy(
            restart.budget, round(restart.backoff_s * 1e9), round(restart.backoff_limit_s * 1e9)
        ),
        stop_grace_ns=round(spec.stop_grace_s * 1e9),
        time_limit_ns=round((spec.time_limit_s or 0) * 1e9),
        predicted_run_ns=predicted_ns,
        is_preemptible=spec.preemptible,
        larger_ranks=tuple(spec.sizes[1:]),
    )
    return submitted(event, f"{path} submitted")


def _show(answer: WhatIf) -> None:
    click.echo(f"what if: {'; '.join(answer.changes)}")
    click.echo(f"at once: {len(answer.at_once)} actions" + (":" if answer.at_once else ""))
    for words in answer.at_once[:MAX_SHOWN]:
        click.echo(f"  {words}")
    differing = len(answer.differences)
    click.echo(
        f"of {answer.num_jobs} jobs that have not ended, {differing} fare differently" + ":" * bool(differing)
    )
    if differing:
        click.echo(f"  {'job':<24} {'devices':>8}  {'starts':>24}  {'ends':>24}  stops")
    for each in answer.differences[:MAX_SHOWN]:
        one = each.after or each.before
        if one is None:
            continue
        start = _change(each.before, each.after, "start_ns", answer.now_ns)
        end = _change(each.before, each.after, "end_ns", answer.now_ns)
        stops = 0 if each.after is None else each.after.num_stops
        click.echo(f"  {each.job_id:<24} {one.num_devices:>8}  {start:>24}  {end:>24}  {stops:>5}")
    if differing > MAX_SHOWN:
        click.echo(f"  ... and {differing - MAX_SHOWN} more")
    click.echo("nothing was changed: this was a copy")


def _change(before: JobForecast | None, after: JobForecast | None, name: str, now_ns: int) -> str:
    """`old -> new`, in time from now; one of them where they are the same."""

    def shown(forecast: JobForecast | None) -> str:
        from groundplane.spec.units import show_duration

        if forecast is None:
            return "-"
        at_ns = getattr(forecast, name)
        if at_ns < 0:
            return "not in sight"
        return "before now" if at_ns < now_ns else f"in {show_duration((at_ns - now_ns) / 1e9)}"

    old, new = shown(before), shown(after)
    return new if old == new or before is None else f"{old} -> {new}"
