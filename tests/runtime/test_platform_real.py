"""The platform as processes: up, down, killed at any point, and fed with what it must refuse."""

from __future__ import annotations

import http.client
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from runtime_helpers import COMMAND, Cli, free_port, until

from groundplane.platform.engines.local.folder import WorkFolder
from groundplane.platform.runtime import store, upfile
from groundplane.platform.runtime.database import Database, default_url

pytestmark = pytest.mark.real


def one_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_up_submit_logs_down(cli: Cli) -> None:
    assert cli.up().returncode == 0
    again = cli.up()
    assert (again.returncode, "up already" in again.stdout) == (0, True)
    assert cli("status").returncode == 0
    done = cli("submit", cli.job_file("hello", "echo rank $RANK of $WORLD_SIZE", ranks=2), "--wait")
    assert done.returncode == 0, done.stderr
    job_id = one_line(done.stdout)
    assert cli("logs", job_id).stdout == "rank 0 of 2\n"
    assert cli("logs", "hello", "--rank", "1", "--follow").stdout == "rank 1 of 2\n"
    assert [(job["job_id"], job["state"]) for job in cli.json("jobs")] == [(job_id, "succeeded")]
    assert "succeeded" in cli("explain", job_id).stdout
    ledger = cli.json("status")["ledger"]
    accounts = [
        value for name, value in ledger.items() if name.endswith("_ns") and name not in {"now_ns", "total_ns"}
    ]
    assert sum(accounts) == ledger["total_ns"]
    assert (cli.state / "admin.key").stat().st_mode & 0o077 == 0
    assert cli.state.stat().st_mode & 0o077 == 0
    down = cli("down")
    assert (down.returncode, down.stdout) == (0, "Groundplane is down.\n")
    assert cli.processes() == []
    assert cli("down").stdout == "Groundplane was not up.\n"
    refused = cli("jobs")
    assert (refused.returncode, "groundplane up" in one_line(refused.stderr)) == (2, True)


def test_down_ends_works_and_up_takes_jobs_up_again(cli: Cli) -> None:
    cli.up()
    marker = cli.folder / "marker"
    command = f"if [ -e {marker} ]; then exit 0; fi; touch {marker}; trap '' TERM; sleep 1000 & wait; wait"
    cli("submit", cli.job_file("long", command))
    until(marker.exists, what="the job's start")
    assert "long" in cli("down", "--grace", "0.3").stdout
    assert cli.processes() == []
    cli.up()
    job = cli.json("jobs", "long")
    until(lambda: cli.json("jobs", "long")["state"] == "succeeded", what="the job's second attempt")
    assert cli.json("jobs", "long")["attempts"] == 2, job


@pytest.mark.parametrize("also_control", [False, True])
def test_down_works_when_the_supervisor_was_killed(cli: Cli, also_control: bool) -> None:
    cli.up()
    cli("submit", cli.job_file("long", "sleep 1000"))
    until(lambda: cli.json("jobs", "long")["state"] == "running", what="the job's start")
    up = cli.up_file()
    os.kill(up.supervisor.pid, signal.SIGKILL)
    if also_control and up.control is not None:
        os.kill(up.control.pid, signal.SIGKILL)
    assert cli("down", "--grace", "1").returncode == 0
    assert cli.processes() == []


def test_up_takes_over_from_a_killed_supervisor(cli: Cli) -> None:
    cli.up()
    cli("submit", cli.job_file("long", "sleep 1000"))
    until(lambda: cli.json("jobs", "long")["state"] == "running", what="the job's start")
    before = cli.up_file()
    os.kill(before.supervisor.pid, signal.SIGKILL)
    until(lambda: not before.supervisor.is_alive, what="the supervisor's end")
    done = cli.up()
    assert done.returncode == 0, done.stderr
    after = cli.up_file()
    assert after.supervisor.is_alive
    assert not (before.control and before.control.is_alive)
    job = cli.json("jobs", "long")
    assert (job["state"], job["attempts"]) == ("running", 1)


def test_children_are_started_again(cli: Cli) -> None:
    cli.up()
    for name in ("control", "gateway"):
        before = getattr(cli.up_file(), name)
        os.kill(before.pid, signal.SIGKILL)
        until(
            lambda name=name, before=before: getattr(cli.up_file(), name) not in {None, before},
            what=f"a new {name}",
        )
    assert cli.json("jobs") == []
    assert cli.up_file().restarts == 2


class Submitter(threading.Thread):
    """Submits jobs one after the other until told to stop; keeps what was acknowledged."""

    def __init__(self, cli: Cli, key: str, spec: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[str] = []
        self.stopping = threading.Event()
        self._cli, self._key, self._spec = cli, key, spec

    def run(self) -> None:
        while not self.stopping.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._cli.port, timeout=30)
            headers = {"authorization": f"Bearer {self._key}", "idempotency-key": secrets.token_hex(8)}
            try:
                connection.request("POST", "/api/jobs", json.dumps(self._spec), headers)
                answer = connection.getresponse()
                body = json.loads(answer.read())
                if answer.status == 201:
                    self.acknowledged.append(body["job_id"])
            except (OSError, http.client.HTTPException, ValueError):
                continue
            finally:
                connection.close()


def test_kill_9_during_a_storm_of_submits_loses_and_repeats_nothing(cli: Cli) -> None:
    cli.up()
    marker = cli.folder / "marker"
    spec = {"name": "storm", "command": ["sh", "-c", f"echo $GROUNDPLANE_WORK_ID >> '{marker}'"]}
    key = (cli.state / "admin.key").read_text().strip()
    threads = [Submitter(cli, key, spec) for _ in range(3)]
    for thread in threads:
        thread.start()

    def acknowledged() -> list[str]:
        return [job_id for thread in threads for job_id in thread.acknowledged]

    for round_number in range(3):
        enough = len(acknowledged()) + 5
        until(lambda enough=enough: len(acknowledged()) >= enough, within_s=60, what="submits")
        control = cli.up_file().control
        if control is not None:
            control.signal(signal.SIGKILL)
            until(
                lambda control=control: cli.up_file().control not in {None, control},
                what=f"control plane {round_number}",
            )
    for thread in threads:
        thread.stopping.set()
    for thread in threads:
        thread.join(60)
    until(
        lambda: all(job["state"] == "succeeded" for job in cli.json("jobs", "--limit", "1000")),
        within_s=200,
        what="the end of all jobs",
    )
    known = {job["job_id"]: job for job in cli.json("jobs", "--limit", "1000")}
    assert set(acknowledged()) <= set(known)
    ran = Counter(marker.read_text().split())
    assert set(ran.values()) == {1}, "a work was started twice"
    assert set(ran) == {f"{job_id}.a1" for job_id in known}
    cli("down")
    database = Database(default_url(cli.state))
    replayed = [record.seq for record in store.records(database)]
    database.close()
    assert replayed == list(range(1, len(replayed) + 1))


def test_a_job_survives_the_control_plane(cli: Cli) -> None:
    cli.up()
    go = cli.folder / "go"
    cli("submit", cli.job_file("wait", f"echo begun; while [ ! -e '{go}' ]; do sleep 0.05; done; echo over"))
    until(lambda: "begun" in cli("logs", "wait").stdout, what="the job's first line")
    control = cli.up_file().control
    assert control is not None
    control.signal(signal.SIGKILL)
    go.touch()
    until(lambda: cli.json("jobs", "wait")["state"] == "succeeded", what="the job's end")
    assert cli("logs", "wait").stdout == "begun\nover\n"
    assert cli.json("jobs", "wait")["attempts"] == 1


def test_a_full_disk_stops_the_control_plane_with_one_line(cli: Cli) -> None:
    cli.up()
    control = cli.up_file().control
    assert control is not None
    # No file may grow beyond what the log needs: to SQLite that is a disk without space.
    resource.prlimit(control.pid, resource.RLIMIT_FSIZE, (16 << 10, 16 << 10))
    refused = cli("submit", cli.job_file("hello", "true"), "--wait")
    assert (refused.returncode, "cannot be written" in one_line(refused.stderr)) == (1, True)
    until(lambda: not control.is_alive, what="the control plane's end")
    assert cli.json("jobs") == []
    assert cli("submit", cli.job_file("hello", "true"), "--wait").returncode == 0
    log = (cli.state / "logs" / "control.log").read_text()
    complaints = [line for line in log.splitlines() if "cannot go on" in line]
    assert len(complaints) == 1, log
    assert "Traceback" not in log


def test_a_taken_port_is_named(cli: Cli) -> None:
    for flag, other in (("--port", "--gateway-port"), ("--gateway-port", "--port")):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            refused = cli("up", flag, port, other, str(free_port()))
        assert refused.returncode == 2
        line = one_line(refused.stderr)
        assert port in line
        assert flag in line
        assert upfile.read(cli.state) is None
    assert cli.processes() == []


def test_what_up_refuses(cli: Cli) -> None:
    (cli.folder / "file").write_text("")
    for words, part in [
        (("--host", "0.0.0.0"), "--allow-remote"),
        (("--devices", "4096"), "devices"),
        (("--database", "mysql://x"), "postgresql://"),
        (("--database", "postgresql://x@127.0.0.1:1/none"), "cannot be opened"),
    ]:
        refused = cli.up(*words)
        shutil.rmtree(cli.state, ignore_errors=True)
        assert (refused.returncode, part in one_line(refused.stderr)) == (2, True), refused.stderr
    assert cli.processes() == []


def test_bad_input_is_one_line_with_exit_code_2(cli: Cli) -> None:
    cli.up()
    folder = cli.folder
    (folder / "misspelt.yaml").write_text("name: a\ncommand: [true]\nrankz: 2\n")
    (folder / "unit.yaml").write_text("name: a\ncommand: ['true']\nmemory_per_rank: 8 s\n")
    (folder / "large.yaml").write_text("name: a\ncommand: ['true']\nranks: 4096\n")
    (folder / "data.yaml").write_text("name: a\ntrain:\n  data: [corpus.txt]\n")
    (folder / "service.yaml").write_text("name: a\nmodel: no-such-model\n")
    for words, parts in [
        (("submit", "misspelt.yaml"), ("misspelt.yaml:3", "rankz", "'ranks'")),
        (("submit", "unit.yaml"), ("unit.yaml:3", "memory_per_rank", "duration")),
        (("submit", "large.yaml"), ("large.yaml:3", "ranks", "at most", "4096")),
        (("submit", "data.yaml"), ("data.yaml:3", "train.data[0]", "corpus.txt")),
        (("submit", "mispelt.yaml"), ("mispelt.yaml", "no such file", "'misspelt.yaml'")),
        (("jobs", "nothing"), ("no such job", "nothing")),
        (("logs", "nothing"), ("no such job", "nothing")),
        (("cancel", "nothing"), ("no such job", "nothing")),
        (("explain", "nothing"), ("no such job", "nothing")),
        (("deploy", "service.yaml"), ("service.yaml:2", "model", "no-such-model")),
        (("services", "scale", "nothing", "2"), ("no such service", "nothing")),
        (("keys", "revoke", "nothing"), ("unknown key", "nothing")),
        (("keys", "create", "Bad Name"), ("name", "Bad Name")),
        (("keys", "create", "ci", "--expires", "3 GiB"), ("expires", "3 GiB")),
    ]:
        refused = cli(*words)
        line = one_line(refused.stderr)
        assert refused.returncode == 2, (words, line)
        assert all(part in line for part in parts), (words, line)
    assert cli.json("jobs") == []
    wrong = cli("jobs", GROUNDPLANE_KEY="gp-wrong")
    assert (wrong.returncode, "API key" in one_line(wrong.stderr)) == (2, True)


def test_foreground_ends_everything_on_ctrl_c(cli: Cli) -> None:
    command = [*COMMAND, "up", "--foreground", "--state", str(cli.state)]
    ports = ["--port", str(cli.port), "--gateway-port", str(cli.gateway_port)]
    with (cli.folder / "out").open("w+") as out:
        process = subprocess.Popen([*command, *ports], stdout=out, stderr=out, env=cli.env)
        until(lambda: "is up" in (cli.folder / "out").read_text(), within_s=40, what="the platform")
        cli("submit", cli.job_file("long", "sleep 1000"))
        until(lambda: cli.json("jobs", "long")["state"] == "running", what="the job's start")
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert process.returncode == 130
    assert "Traceback" not in (cli.folder / "out").read_text()
    assert cli.processes() == []


def test_keys_of_the_command_line_reach_what_their_role_may(cli: Cli) -> None:
    cli.up()
    made = cli.json("keys", "create", "reader", "--role", "viewer")
    key = made["secret"]
    assert cli("jobs", GROUNDPLANE_KEY=key).returncode == 0
    refused = cli("submit", cli.job_file("hello", "true"), GROUNDPLANE_KEY=key)
    assert (refused.returncode, "needs a key with role 'member'" in one_line(refused.stderr)) == (2, True)
    remote = {"GROUNDPLANE_URL": f"http://127.0.0.1:{cli.port}", "GROUNDPLANE_KEY": key}
    assert cli("jobs", state=False, **remote).returncode == 0
    cli("keys", "revoke", made["key"]["key_id"])
    assert cli("jobs", GROUNDPLANE_KEY=key).returncode == 2


@pytest.mark.parametrize("kind", ["job", "service", "cluster"])
def test_schemas_are_printed(cli: Cli, kind: str) -> None:
    done = cli("schema", kind, state=False)
    assert done.returncode == 0
    schema = json.loads(done.stdout)
    assert schema["$schema"].startswith("https://json-schema.org/")


@pytest.mark.system
def test_postgres_by_url(cli: Cli, postgres: Any) -> None:
    assert cli.up("--database", postgres.new_database()).returncode == 0
    done = cli("submit", cli.job_file("hello", "echo hi"), "--wait")
    assert done.returncode == 0, done.stderr
    control = cli.up_file().control
    assert control is not None
    control.signal(signal.SIGKILL)
    until(lambda: not control.is_alive, what="the control plane's end")
    assert [job["state"] for job in cli.json("jobs")] == ["succeeded"]
    assert not Path(cli.state / "groundplane.db").exists()


def test_an_idle_control_plane_stays_small(cli: Cli) -> None:
    cli.up()
    assert cli.json("status")["status"]["memory_bytes"] < 150 << 20


def test_a_state_folder_keeps_its_database(cli: Cli) -> None:
    cli.up()
    cli("down")
    refused = cli.up("--database", "postgresql://x:secret@127.0.0.1:1/none")
    line = one_line(refused.stderr)
    assert (refused.returncode, "cannot be changed" in line, "secret" in line) == (2, True, False)
    assert cli.up().returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_up_that_is_interrupted_leaves_nothing(cli: Cli, number: signal.Signals) -> None:
    command = [*COMMAND, "up", "--state", str(cli.state)]
    ports = ["--port", str(cli.port), "--gateway-port", str(cli.gateway_port)]
    for file in ("supervisor.lock", "up.json", "control.lock"):
        with (cli.folder / "out").open("w+") as out:
            process = subprocess.Popen([*command, *ports], stdout=out, stderr=out, env=cli.env)
            until((cli.state / file).exists, what=file)
            process.send_signal(number)
            process.wait(60)
        assert process.returncode != 0
        assert "Traceback" not in (cli.folder / "out").read_text()
        until(lambda: cli.processes() == [], what="the end of all processes")
        shutil.rmtree(cli.state)


def test_several_ups_at_once_are_one(cli: Cli) -> None:
    command = [*COMMAND, "up", "--json", "--state", str(cli.state)]
    ports = [(str(free_port()), str(free_port())) for _ in range(3)]
    started = []
    with ExitStack() as stack:
        ups = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, "--port", port, "--gateway-port", gateway],
                    stdout=subprocess.PIPE,
                    text=True,
                    env=cli.env,
                )
            )
            for port, gateway in ports
        ]
        for up in ups:
            out, _ = up.communicate(timeout=100)
            assert up.returncode == 0
            started.append(json.loads(out)["started"])
    assert sorted(started) == [False, False, True]
    assert cli.json("jobs") == []


def test_the_platform_of_a_deleted_folder_ends(cli: Cli) -> None:
    cli.up()
    cli("submit", cli.job_file("long", "sleep 1000"))
    until(lambda: cli.json("jobs", "long")["state"] == "running", what="the job's start")
    until(lambda: shutil.rmtree(cli.state, ignore_errors=True) or not cli.state.exists(), what="deletion")
    until(lambda: cli.processes() == [], what="the end of all processes")


@pytest.mark.parametrize("lost", ["up.json", "supervisor", "all"])
def test_down_finds_what_up_json_does_not_name(cli: Cli, lost: str) -> None:
    cli.up()
    up = cli.up_file()
    if lost in {"supervisor", "all"}:
        os.kill(up.supervisor.pid, signal.SIGKILL)
    if lost in {"up.json", "all"}:
        upfile.remove(cli.state)
    else:
        # As it stands when the supervisor is killed before it has written who its new children are.
        upfile.write(cli.state, replace(up, control=None, gateway=None))
    assert cli("down").stdout == "Groundplane is down.\n"
    assert cli.processes() == []


def test_a_child_whose_supervisor_is_gone_does_not_begin(cli: Cli) -> None:
    cli.up()
    cli("down")
    for module in ("runtime.control", "serving.gateway"):
        command = [sys.executable, "-m", f"groundplane.platform.{module}", "--state", str(cli.state)]
        ends = ["--supervisor", "1", "--fd" if module == "runtime.control" else "--port", "0"]
        assert subprocess.run([*command, *ends], check=False, timeout=60, capture_output=True).returncode == 0


def test_a_cancelled_work_ends_although_its_keeper_was_stopped(cli: Cli) -> None:
    cli.up()
    job_id = one_line(cli("submit", cli.job_file("long", "sleep 1000")).stdout)
    until(lambda: cli.json("jobs", "long")["state"] == "running", what="the job's start")
    keeper = WorkFolder(cli.state / "works" / f"{job_id}.a1").keeper()
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGSTOP)
    assert cli("cancel", job_id, "--wait").returncode == 0
    assert cli.json("jobs", job_id)["state"] == "cancelled"
