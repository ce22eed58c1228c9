"""Every kind of process killed at random while jobs are submitted: nothing is lost, doubled or left behind.

A failure prints its seed. More: GROUNDPLANE_STORM_SEEDS=1-20 GROUNDPLANE_STORM_ROUNDS=60.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import suppress

import pytest
from runtime_helpers import Cli, until
from test_platform_real import Submitter

from groundplane.control.core import ControlCore
from groundplane.platform.engines.local import processes
from groundplane.platform.engines.local.folder import KeeperFile, WorkFolder
from groundplane.platform.runtime import store, upfile
from groundplane.platform.runtime.database import Database, default_url

pytestmark = pytest.mark.real

OVER = {"succeeded", "failed", "cancelled"}
KINDS = ("supervisor", "control", "gateway", "keeper", "rank")


def seeds() -> list[int]:
    first, _, last = os.environ.get("GROUNDPLANE_STORM_SEEDS", "1").partition("-")
    return list(range(int(first), int(last or first) + 1))


def kill(cli: Cli, kind: str, choose: random.Random) -> None:
    """Kills one process of a kind, if there is one."""
    up = upfile.read(cli.state)
    if kind in {"supervisor", "control", "gateway"}:
        process = getattr(up, kind, None)
        if process is not None:
            process.signal(signal.SIGKILL)
        return
    keepers: list[KeeperFile] = []
    for path in sorted((cli.state / "works").glob("*/keeper.json")):
        keeper = WorkFolder(path.parent).keeper()
        if keeper is not None and processes.is_alive(keeper.pid, keeper.start_ticks):
            keepers.append(keeper)
    if not keepers:
        return
    keeper = choose.choice(keepers)
    below = processes.descendants(processes.scan(), keeper.pid)
    with suppress(ProcessLookupError):
        if kind == "keeper":
            os.kill(keeper.pid, signal.SIGKILL)
        elif below:
            os.kill(choose.choice(below).pid, signal.SIGKILL)


def replayed_digest(cli: Cli) -> str:
    """Replays the journal; each event must lead to the actions recorded."""
    core = ControlCore()
    database = Database(default_url(cli.state))
    for record in store.records(database):
        assert tuple(core.handle(record.now_ns, record.event)) == record.actions, record.seq
    database.close()
    return core.digest()


@pytest.mark.parametrize("seed", seeds())
def test_nothing_is_lost_doubled_or_left_behind(cli: Cli, seed: int) -> None:
    choose = random.Random(seed)
    cli.up()
    marker = cli.folder / "marker"
    run = f"echo $GROUNDPLANE_WORK_ID >> '{marker}'; (setsid sleep 1000 &); sleep 0.1"
    spec = {"name": "storm", "command": ["sh", "-c", run], "restart": {"budget": 50, "backoff": 0.1}}
    submitter = Submitter(cli, (cli.state / "admin.key").read_text().strip(), spec)
    submitter.start()
    for _ in range(int(os.environ.get("GROUNDPLANE_STORM_ROUNDS", "4"))):
        enough = len(submitter.acknowledged) + choose.randrange(3)
        until(lambda enough=enough: len(submitter.acknowledged) >= enough, what="submits")
        for kind in choose.sample(KINDS, choose.randrange(1, 4)):
            kill(cli, kind, choose)
        up = upfile.read(cli.state)
        if up is None or not up.supervisor.is_alive:
            done = cli.up()
            assert done.returncode == 0, done.stderr
    submitter.stopping.set()
    submitter.join(60)
    until(
        lambda: all(job["state"] in OVER for job in cli.json("jobs", "--limit", "1000")),
        within_s=240,
        what="the end of all jobs",
    )
    jobs = {job["job_id"]: job["state"] for job in cli.json("jobs", "--limit", "1000")}
    assert set(submitter.acknowledged) <= set(jobs)
    assert set(jobs.values()) == {"succeeded"}
    assert set(Counter(marker.read_text().split()).values()) == {1}, "a work was started twice"
    status = cli.json("status")
    assert [node["num_free"] for node in status["nodes"]] == [node["num_devices"] for node in status["nodes"]]
    assert not [line for line in cli.processes() if "sleep" in line or "keeper" in line]
    cli("down")
    assert cli.processes() == []
    assert replayed_digest(cli)
