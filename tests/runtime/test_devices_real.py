"""Parts of devices, hangs and drains with real processes on this machine's cores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runtime_helpers import Cli, until

from groundplane.cli.client import Client

pytestmark = pytest.mark.real

HALF = {"part": {"time_slices": 2}}


def client(cli: Cli) -> Client:
    return Client(cli.state)


def running(cli: Cli, job_id: str) -> bool:
    return bool(cli.json("jobs", job_id)["state"] == "running")


def submit(cli: Cli, path: str) -> str:
    done = cli("submit", path)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_halves_of_one_core_share_it_and_keep_to_their_memory(cli: Cli) -> None:
    assert cli.up("--devices", "1").returncode == 0
    say = 'echo "$GROUNDPLANE_DEVICE_PART on $(grep Cpus_allowed_list /proc/self/status)"; sleep 600'
    jobs = [
        submit(cli, cli.job_file(f"half{number}", say, device=HALF, memory_per_rank="64 MiB"))
        for number in range(3)
    ]
    for job_id in jobs[:2]:
        until(lambda job_id=job_id: running(cli, job_id), what=job_id)  # type: ignore[misc]
    (node,) = client(cli).get("/api/nodes")
    assert list(node["shared"][0]["parts"]) == [f"{jobs[0]}.a1", f"{jobs[1]}.a1"]
    assert node["shared"][0]["free_units"] == 0
    until(lambda: all(cli("logs", job_id).stdout for job_id in jobs[:2]), what="their output")
    first, second = (cli("logs", job_id).stdout for job_id in jobs[:2])
    assert first == second
    assert first.startswith("500/1000 on")
    assert cli.json("jobs", jobs[2])["state"] == "queued"
    assert "needs 500/1000 of a device" in cli("explain", jobs[2]).stdout
    assert cli("cancel", jobs[0], "--wait").returncode == 0
    until(lambda: running(cli, jobs[2]), what="the third")
    hog = cli.job_file(
        "hog",
        "exec python3 -c 'import time; x = bytearray(300 << 20); time.sleep(600)'",
        device=HALF,
        memory_per_rank="64 MiB",
        restart={"budget": 0},
        priority=5,
    )
    assert cli("cancel", jobs[1], "--wait").returncode == 0
    done = cli("submit", hog, "--wait")
    assert done.returncode == 1
    assert "more than its limit of 64 MiB" in done.stderr
    ledger = cli.json("status")["ledger"]
    accounts = [name for name in ledger if name.endswith("_ns") and name not in {"now_ns", "total_ns"}]
    assert sum(ledger[name] for name in accounts) == ledger["total_ns"]
    assert cli("replay", str(cli.state), state=False).returncode == 0


def test_an_attempt_that_hangs_is_restarted(cli: Cli) -> None:
    assert cli.up().returncode == 0
    wait = "exec sleep 600"
    path = cli.job_file("hang", wait, progress_limit="1 s", restart={"budget": 1, "backoff": "50 ms"})
    done = cli("submit", path, "--wait")
    assert done.returncode == 1
    assert "no progress: nothing for" in done.stderr
    attempts = cli.json("explain", "hang")["attempts"]
    assert [each["outcome"] for each in attempts] == ["stopped", "stopped"]
    assert cli.processes() != []  # the platform's own; nothing of the job
    assert not any("sleep 600" in line for line in cli.processes())


def test_a_drain_moves_a_job_at_its_checkpoint_and_rules_survive_a_kill(cli: Cli) -> None:
    assert cli.up().returncode == 0
    progress = "$GROUNDPLANE_WORK_DIR/progress.jsonl"
    wait = f"while [ ! -e {cli.folder}/go ]; do sleep 0.05; done"
    script = f"{wait}; echo '{{\"checkpoint\": 7}}' >> {progress}; sleep 600"
    job_id = submit(cli, cli.job_file("moves", script, stops_at_checkpoint=True))
    until(lambda: running(cli, job_id), what="the job")
    api = client(cli)
    policy: dict[str, Any] = {"kind": "policy", "queues": [{"name": "default", "limit_devices": 1}]}
    api.put("/api/rules/policy", policy)
    (node,) = api.post("/api/nodes/local/drain", {"wait_s": 600})
    assert node["why_closed"].startswith("an operator drains it")
    Path(cli.folder / "go").touch()
    until(lambda: not any(api.get("/api/nodes")[0]["holders"]), what="an empty node")
    job = cli.json("jobs", job_id)
    assert (job["state"], job["restarts_used"], job["checkpoint_step"]) == ("queued", 0, 7)
    assert "is drained" in json.dumps(cli.json("explain", job_id)["job"])
    assert cli("down").returncode == 0
    assert cli.up().returncode == 0
    assert api.get("/api/rules")["policy"]["queues"][0]["limit_devices"] == 1
    assert "an operator drains it, it is empty" in cli("explain", "local").stdout
    api.post("/api/nodes/local/uncordon")
    until(lambda: running(cli, job_id), what="the job again")
