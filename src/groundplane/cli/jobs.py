"""`groundplane submit`, `jobs`, `logs`, `cancel` and `explain`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from groundplane.cli.client import (
    Client,
    fail,
    json_option,
    print_json,
    print_table,
    quote,
    show_span,
    show_time,
    state_option,
)

FOLLOW_PERIOD_S = 0.3
OVER = ("succeeded", "failed", "cancelled")


@click.command("submit", epilog="Example: groundplane submit job.yaml --wait")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--wait", is_flag=True, help="Wait for the job's end; exit code 1 unless it succeeds.")
@click.option(
    "--follow", "-f", is_flag=True, help="Print its output as it comes, until its end; implies --wait."
)
@state_option
@json_option
def submit_command(file: Path, wait: bool, follow: bool, state: Path, as_json: bool) -> int:
    """Submit a job file (YAML, TOML or JSON); prints the job's id."""
    import secrets

    import msgspec

    from groundplane.spec.job import JobSpec
    from groundplane.spec.load import from_data, read_data

    data, lines = read_data(file)
    spec = from_data(data, JobSpec, file=str(file), lines=lines)
    client = Client(state)
    body = msgspec.to_builtins(with_absolute_data(spec, file.absolute().parent))
    from groundplane.spec.errors import InputError

    try:
        job = client.post("/api/jobs", body, idempotency_key=secrets.token_hex(16))
    except InputError as error:
        raise error.at(file=str(file), line=lines.get(error.field or "")) from None
    if not as_json:
        click.echo(job["job_id"])
    if follow:
        _follow(client, job["job_id"], 0, None)
    if wait or follow:
        job = wait_for(client, job["job_id"])
    if as_json:
        print_json(job)
    if (wait or follow) and job["state"] != "succeeded":
        fail(f"{job['job_id']} {job['state']}: {job['reason'] or 'no reason given'}")
    return 0


@click.command("jobs", epilog="Example: groundplane jobs --only running")
@click.argument("job", required=False)
@click.option("--only", metavar="STATE", help="Only jobs in this state (queued, running, failed, ...).")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000), help="Newest so many.")
@state_option
@json_option
def jobs_command(job: str | None, only: str | None, limit: int, state: Path, as_json: bool) -> int:
    """List jobs, newest first, or show one by its id or name."""
    client = Client(state)
    found = (
        [client.get(f"/api/jobs/{quote(job)}")] if job else client.get("/api/jobs", only=only, limit=limit)
    )
    if as_json:
        print_json(found[0] if job else found)
        return 0
    print_table(
        ["JOB", "STATE", "RANKS", "QUEUE", "SUBMITTED", "RAN FOR", "ATTEMPTS", "CHECKPOINT", "REASON"],
        [
            [
                each["job_id"],
                each["state"],
                f"{each['ranks']} x {each['devices_per_rank']}",
                each["queue"],
                show_time(each["submitted_ns"]),
                show_span(each["started_ns"], each["ended_ns"]),
                str(each["attempts"]),
                "-" if each["checkpoint_step"] is None else str(each["checkpoint_step"]),
                each["reason"],
            ]
            for each in found
        ],
        empty="No jobs yet. Submit one: groundplane submit JOB.yaml",
    )
    return 0


@click.command("logs", epilog="Example: groundplane logs -f train-x7k2pa --rank 1")
@click.argument("work", metavar="JOB|REPLICA")
@click.option("--rank", default=0, show_default=True, type=click.IntRange(0), help="Which rank's output.")
@click.option("--attempt", type=click.IntRange(1), help="Which attempt's; the newest by default.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job is over, through its restarts.")
@state_option
@json_option
def logs_command(work: str, rank: int, attempt: int | None, follow: bool, state: Path, as_json: bool) -> int:
    """Print the output of a job (by id or name) or of a replica (SERVICE.r1)."""
    client = Client(state)
    if follow and not as_json:
        _follow(client, work, rank, attempt)
        return 0
    text = ""
    offset = 0
    while True:
        part = _log_part(client, work, rank, attempt, offset)
        if not part["text"]:
            break
        text, offset = text + part["text"] if as_json else "", part["next_offset"]
        if not as_json:
            click.echo(part["text"], nl=False)
    if as_json:
        print_json({"work_id": part["work_id"], "rank": rank, "text": text})
    return 0


@click.command("cancel", epilog="Example: groundplane cancel train-x7k2pa")
@click.argument("job")
@click.option("--wait", is_flag=True, help="Wait until nothing of it runs any more.")
@state_option
@json_option
def cancel_command(job: str, wait: bool, state: Path, as_json: bool) -> int:
    """Cancel a job by its id or name; its processes are ended and its devices come back."""
    client = Client(state)
    answer = client.post(f"/api/jobs/{quote(job)}/cancel")
    if wait:
        answer = wait_for(client, answer["job_id"])
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{answer['job_id']}: {answer['state']}")
    return 0


@click.command("explain", epilog="Example: groundplane explain train")
@click.argument("name", metavar="JOB|SERVICE|NODE")
@state_option
@json_option
def explain_command(name: str, state: Path, as_json: bool) -> int:
    """Say why a job waits, or what became of it: attempts, restarts, progress, and where its time went.

    Of a service: what each replica does or waits for. Of a node: why it takes no work.
    """
    found = Client(state).get(f"/api/explain/{quote(name)}")
    answer = found["job"]
    if as_json:
        print_json(answer or found["node"] or {"service": found["service"], "decision": found["decision"]})
        return 0
    if answer is None:
        _explain_other(found)
        return 0
    view, decision = answer["job"], answer["decision"]
    reason = decision["reason"] if decision and decision["reason"] != view["state"] else ""
    click.echo(f"{view['job_id']} is {view['state']}" + (f": {reason}" if reason else ""))
    _show_waiting(decision)
    _show_attempts(answer["attempts"])
    if view["restarts_used"]:
        click.echo(f"Restarts used: {view['restarts_used']}")
    if answer["last_step"] is not None:
        loss = "" if answer["last_loss"] is None else f", loss {answer['last_loss']:.4f}"
        click.echo(f"Last step told: {answer['last_step']}{loss}")
    total_ns = sum(answer["stages_ns"].values())
    if total_ns:
        shares = sorted(answer["stages_ns"].items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {100 * spent_ns / total_ns:.1f} %" for name, spent_ns in shares)
        click.echo(f"Time of its steps: {parts}")
    return 0


def _explain_other(found: Any) -> None:
    from groundplane.cli.nodes import show_nodes

    if found["node"] is not None:
        node = found["node"]
        click.echo(
            f"{node['node_id']} "
            + (f"is closed: {node['why_closed']}" if node["why_closed"] else "takes work")
        )
        if node["num_failures"]:
            click.echo(f"Works that failed there of late: {node['num_failures']}")
        show_nodes([node])
        return
    service, decision = found["service"], found["decision"]
    if decision is None:
        click.echo(f"{service['name']} is run by somebody else at {service['spec'].get('url')}")
        return
    click.echo(
        f"{service['name']} is {decision['state']}: {decision['reason']}; a replica {decision['needed']}"
    )
    print_table(
        ["REPLICA", "STATE", "AHEAD", "EXPECTED TO START", "WHY"],
        [
            [
                each["work_id"],
                each["state"],
                str(each["num_ahead"]),
                show_time(each["expected_start_ns"]),
                each["reason"],
            ]
            for each in decision["replicas"]
        ],
        empty="It has no replica.",
    )


def with_absolute_data(spec: Any, folder: Path) -> Any:
    """The job with the relative paths of its training data taken from the folder of its file."""
    import msgspec

    if spec.train is None:
        return spec
    data = tuple(
        str(folder / source) if not source.startswith(("/", "~")) and source != "python-sources" else source
        for source in spec.train.data
    )
    return msgspec.structs.replace(spec, train=msgspec.structs.replace(spec.train, data=data))


def wait_for(client: Client, job_id: str) -> Any:
    """Asks until the job is over; gives its last view."""
    while True:
        job = client.get(f"/api/jobs/{quote(job_id)}")
        if job["state"] in OVER:
            return job
        time.sleep(FOLLOW_PERIOD_S)


def _log_part(client: Client, work: str, rank: int, attempt: int | None, offset: int) -> Any:
    head, _, number = work.rpartition(".")
    if head and number[:1] == "r" and number[1:].isdigit():
        return client.get(f"/api/works/{quote(work)}/logs", offset=offset)
    if head and number[:1] == "a" and number[1:].isdigit():
        work, attempt = head, int(number[1:])
    return client.get(f"/api/jobs/{quote(work)}/logs", rank=rank, attempt=attempt, offset=offset)


def _follow(client: Client, work: str, rank: int, attempt: int | None) -> None:
    """Prints output as it comes. Without a fixed attempt each new one is followed in its turn."""
    shown, offset = "", 0
    while True:
        part = _log_part(client, work, rank, attempt, offset)
        if part["work_id"] != shown:
            if shown:
                # The former attempt's end may not have been read yet.
                former = shown.rpartition(".a")[2]
                rest = _log_part(client, work, rank, int(former), offset) if former.isdigit() else part
                click.echo(rest["text"] if rest is not part else "", nl=False)
                click.echo(f"--- {part['work_id']} ---", err=True)
                part = _log_part(client, work, rank, attempt, 0)
            shown = part["work_id"]
        click.echo(part["text"], nl=False)
        offset = part["next_offset"]
        if part["is_over"] and (attempt is not None or ".r" in work or _is_over(client, work)):
            return
        if not part["text"]:
            time.sleep(FOLLOW_PERIOD_S)


def _is_over(client: Client, work: str) -> bool:
    over: bool = client.get(f"/api/jobs/{quote(work)}")["state"] in OVER
    return over


def _show_waiting(decision: Any) -> None:
    if not decision or decision["state"] != "queued":
        return
    needed = decision["needed"]
    if needed["part"] is None:
        click.echo(f"Needs: {needed['num_ranks']} ranks of {needed['devices_per_rank']} devices, all at once")
    else:
        part = needed["part"]
        click.echo(f"Needs: {part['profile'] or str(part['units'] // 7) + '/1000'} of one device")
    for free in decision["available"]:
        click.echo(
            f"Free:  {free['free_devices']} {free['device_kind']}, room for {free['ranks_that_fit']} ranks"
        )
    for ahead in decision["ahead"]:
        click.echo(f"Ahead: {ahead['waiting_id']} (priority {ahead['priority']})")
    if decision["expected_start_ns"] >= 0:
        click.echo(f"Expected to start: {show_time(decision['expected_start_ns'])}")


def _show_attempts(attempts: list[Any]) -> None:
    if not attempts:
        return
    print_table(
        ["ATTEMPT", "DEVICES", "LEASED", "STARTED AFTER", "HELD FOR", "OUTCOME", "CHECKPOINT", "DETAIL"],
        [
            [
                each["work_id"],
                ", ".join(each["devices"]),
                show_time(each["leased_ns"]),
                "-" if each["started_ns"] is None else show_span(each["leased_ns"], each["started_ns"]),
                show_span(each["leased_ns"], each["gone_ns"]),
                (each["outcome"] or "runs") + (f" ({each['exit_code']})" if each["exit_code"] else ""),
                "-" if each["checkpoint_step"] is None else str(each["checkpoint_step"]),
                each["detail"],
            ]
            for each in attempts
        ],
    )
