"""Nodes, rules, parts, explanations and forgotten jobs over the HTTP API; hangs of attempts."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from test_api import EXTERNAL, JOB, Caller, eventually, run, served

from groundplane.control import jobs as core_jobs
from groundplane.control.events import PolicySet
from groundplane.platform.runtime import tables
from groundplane.platform.runtime.database import Database
from groundplane.platform.runtime.hangs import HangWatch

SERVICE = {"name": "chat", "model": "m.gguf", "memory_per_replica": 1}
HALF = {"part": {"compute": 0.5}}


async def submit(call: Caller, name: str, **fields: Any) -> str:
    answer = await call("POST", "/api/jobs", JOB | {"name": name} | fields)
    assert answer.status_code == 201, answer.text
    job_id: str = answer.json()["job_id"]
    return job_id


def test_jobs_on_halves_of_a_device_share_it(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        ids = [await submit(call, f"j{number}", device=HALF) for number in range(5)]
        for job_id in ids[:4]:
            await eventually(call, f"/api/jobs/{job_id}", lambda view: view["state"] == "running")
        node = (await call("GET", "/api/nodes")).json()[0]
        assert [len(shared["parts"]) for shared in node["shared"]] == [2, 2]
        assert [shared["free_units"] for shared in node["shared"]] == [0, 0]
        assert node["holders"][0].count(", ") == 1
        reason = (await call("GET", f"/api/jobs/{ids[4]}/explain")).json()["decision"]["reason"]
        assert reason.startswith("needs 500/1000 of a device of kind cpu; now 0 free, room for 0 ranks")
        call.engine.tell(f"{ids[0]}.a1", "gone", outcome="succeeded")
        await eventually(call, f"/api/jobs/{ids[4]}", lambda view: view["state"] == "running")
        ledger = (await call("GET", "/api/ledger")).json()
        accounts = [name for name in ledger if name.endswith("_ns") and name not in {"now_ns", "total_ns"}]
        assert sum(ledger[name] for name in accounts) == ledger["total_ns"]

    run(database, tmp_path, body)


@pytest.mark.parametrize(
    ("fields", "rule", "field"),
    [
        ({"device": {"kind": "h100"}}, "no node offers this kind of device (offered: cpu)", "device.kind"),
        ({"device": {"bf16": "1 TFLOP/s"}}, "nothing is known of the devices that are offered", "device"),
        (
            {"device": {"part": {"profile": "1g.10gb"}}},
            "none of these devices has any",
            "device.part.profile",
        ),
        (
            {"device": {"part": {"compute": 0.5, "memory": "1 GiB"}}},
            "no memory of their own",
            "device.part.memory",
        ),
        ({"device": {"part": {"compute": 1.5}}}, "must be", "device.part.compute"),
        ({"device": {"part": {}}}, "exactly one of", "device.part.profile"),
        ({"device": HALF, "ranks": 2}, "must be 1 device in all", "ranks"),
        ({"device": {"kind": "cpu", "memory": "1 GiB"}}, "must not be given together", "device.kind"),
        ({"progress_limit": 0}, "must be more than 0", "progress_limit"),
    ],
)
def test_devices_that_nobody_offers_are_refused(
    tmp_path: Path, fields: dict[str, Any], rule: str, field: str
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'groundplane.db'}", migrate=True)

    async def body(call: Caller) -> None:
        answer = await call("POST", "/api/jobs", JOB | fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["field"]) == (400, field)
        assert rule in error["message"]

    run(database, tmp_path, body)
    database.close()


def test_a_node_is_drained_and_opened_again(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        job_id = await submit(call, "long", stops_at_checkpoint=True)
        await eventually(call, f"/api/jobs/{job_id}", lambda view: view["state"] == "running")
        answer = await call("POST", "/api/nodes/fake/drain", {"wait_s": 600})
        assert answer.status_code == 200
        assert answer.json()[0]["why_closed"] == "an operator drains it, 1 works are left"
        call.engine.tell(f"{job_id}.a1", "checkpoint", step=3)
        await eventually(call, f"/api/jobs/{job_id}", lambda view: view["state"] == "queued")
        explained = (await call("GET", "/api/explain/fake")).json()["node"]
        assert explained["why_closed"] == "an operator drains it, it is empty"
        assert (await call("POST", "/api/nodes/fake/uncordon")).json()[0]["why_closed"] == ""
        view = await eventually(call, f"/api/jobs/{job_id}", lambda view: view["state"] == "running")
        assert (view["attempts"], view["restarts_used"]) == (2, 0)
        answer = await call("POST", "/api/nodes/fake/drain", {"wait_s": -1})
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, "wait_s")
        answer = await call("POST", "/api/nodes/fak/drain")
        assert (answer.status_code, answer.json()["error"]["nearest"]) == (404, "fake")
        assert (await call("POST", "/api/nodes/fake/dust")).status_code == 404
        assert (await call("POST", "/api/nodes/fake/drain", role="member")).status_code == 403

    run(database, tmp_path, body)


def test_rules_are_set_hold_and_survive_a_restart(database: Database, tmp_path: Path) -> None:
    policy = {"kind": "policy", "queues": [{"name": "small", "limit_devices": 1}], "half_life": 3600}
    health = {"kind": "health", "max_failures": 2, "spares": {}}

    async def body(call: Caller) -> None:
        assert (await call("PUT", "/api/rules/policy", policy)).status_code == 200
        assert (await call("PUT", "/api/rules/health", health)).status_code == 200
        await submit(call, "first", queue="small")
        second = await submit(call, "second", queue="small")
        reason = (await call("GET", f"/api/explain/{second}")).json()["job"]["decision"]["reason"]
        assert reason == "needs 1 x 1 devices; queue small holds 1 devices of at most 1"
        answer = await call("PUT", "/api/rules/policy", policy | {"queues": [{"name": "a", "parent": "b"}]})
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, "queues[0].parent")
        answer = await call("PUT", "/api/rules/health", {"kind": "health", "spares": {"gpu": 1}})
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, "spares")
        assert (await call("PUT", "/api/rules/policy", policy, role="member")).status_code == 403

    async def later(call: Caller) -> None:
        rules = (await call("GET", "/api/rules")).json()
        assert rules["policy"]["queues"][0]["limit_devices"] == 1
        assert rules["policy"]["half_life_ns"] == 3600 * 10**9
        assert rules["health"]["max_failures"] == 2
        await call("PUT", "/api/rules/policy", {"kind": "policy"})
        assert (
            PolicySet(()).queues == call.driver.core.state.queues == {} or not call.driver.core.state.queues
        )

    run(database, tmp_path, body)
    run(database, tmp_path, later)


def test_services_and_what_is_not_there_are_explained(database: Database, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + b"\0" * 64)

    async def body(call: Caller) -> None:
        await call("POST", "/api/services", EXTERNAL)
        found = (await call("GET", "/api/explain/far")).json()
        assert (found["service"]["name"], found["decision"]) == ("far", None)
        blocker = await submit(call, "blocker", ranks=2)
        await eventually(call, f"/api/jobs/{blocker}", lambda view: view["state"] == "running")
        service = SERVICE | {"model": str(tmp_path / "m.gguf"), "replicas": 1}
        answer = await call("POST", "/api/services", service)
        assert answer.status_code == 201, answer.text
        decision = (await call("GET", "/api/explain/chat")).json()["decision"]
        assert decision["reason"] == "0 of 1 replicas are ready"
        (replica,) = decision["replicas"]
        assert replica["state"] == "queued"
        assert "it is the first in the queue" in replica["reason"]
        answer = await call("GET", "/api/explain/chatt")
        assert (answer.status_code, answer.json()["error"]["nearest"]) == (404, "chat")
        assert answer.json()["error"]["message"] == "no such job, service or node"

    run(database, tmp_path, body)


def test_jobs_that_the_core_has_forgotten_are_found_in_sql(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_jobs, "ENDED_JOBS_KEPT", 2)

    async def body(call: Caller) -> None:
        ids = []
        for number in range(4):
            job_id = await submit(call, f"j{number}", queue="q")
            await eventually(call, f"/api/jobs/{job_id}", lambda view: view["state"] == "running")
            call.engine.tell(f"{job_id}.a1", "checkpoint", step=7)
            call.engine.tell(f"{job_id}.a1", "gone", outcome="succeeded")
            await eventually(call, f"/api/jobs/{job_id}", lambda view: view["state"] == "succeeded")
            ids.append(job_id)
        assert list(call.driver.core.state.jobs) == ids[2:]
        for name in (ids[0], "j0"):
            view = (await call("GET", f"/api/jobs/{name}")).json()
            assert (view["job_id"], view["state"], view["attempts"]) == (ids[0], "succeeded", 1)
            assert (view["checkpoint_step"], view["queue"], view["project"]) == (7, "q", "default")
        explained = (await call("GET", f"/api/explain/{ids[0]}")).json()["job"]
        assert explained["decision"] is None
        assert [each["outcome"] for each in explained["attempts"]] == ["succeeded"]
        assert (await call("POST", f"/api/jobs/{ids[0]}/cancel")).json()["state"] == "succeeded"
        assert (await call("GET", f"/api/jobs/{ids[0]}/logs")).json()["is_over"]
        assert (await call("GET", "/api/jobs/j9")).status_code == 404
        assert (await call("GET", "/api/jobs/j%00")).status_code == 404

    run(database, tmp_path, body)


def test_an_attempt_that_tells_of_no_progress_is_stopped_and_restarted(
    database: Database, tmp_path: Path
) -> None:
    async def body(call: Caller) -> None:
        watched = await submit(call, "watched", progress_limit=60)
        free = await submit(call, "free")
        for job_id in (watched, free):
            await eventually(call, f"/api/jobs/{job_id}", lambda view: view["state"] == "running")
        watch = HangWatch(tmp_path, database, call.driver)
        await watch.look()
        assert call.world.stops == []
        an_hour_ago = time.time_ns() - 3600 * 10**9
        with database.begin() as connection:
            connection.execute(tables.works.update().values(started_ns=an_hour_ago))
        folder = tmp_path / "works" / f"{watched}.a1"
        folder.mkdir(parents=True)
        (folder / "progress.jsonl").write_text("{}\n")
        await watch.look()
        assert call.world.stops == []  # a step was made just now
        os.utime(folder / "progress.jsonl", ns=(an_hour_ago, an_hour_ago))
        await watch.look()
        await watch.look()
        view = await eventually(call, f"/api/jobs/{watched}", lambda view: view["attempts"] == 2)
        assert view["restarts_used"] == 1
        assert call.world.stops == [(f"{watched}.a1", 1)]
        attempts = (await call("GET", f"/api/jobs/{watched}/explain")).json()["attempts"]
        assert attempts[0]["outcome"] == "stopped"
        with database.reading() as connection:
            reason = connection.scalar(
                sa.select(tables.works.c.stop_reason).where(tables.works.c.work_id == f"{watched}.a1")
            )
        assert reason is not None
        assert reason.startswith("no progress: nothing for")

    run(database, tmp_path, body)


def test_a_replica_that_hangs_is_replaced(database: Database, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + b"\0" * 64)

    async def body(call: Caller) -> None:
        service = SERVICE | {
            "model": str(tmp_path / "m.gguf"),
            "unready_limit": 0.05,
            "restart": {"backoff": 0},
        }
        answer = await call("POST", "/api/services", service)
        assert answer.status_code == 201, answer.text
        async with asyncio.timeout(20):
            while "chat.r1" not in call.world.reports:
                await asyncio.sleep(0.002)
        call.engine.tell("chat.r1", "ready")
        call.engine.tell("chat.r1", "unready")
        view = await eventually(
            call,
            "/api/services/chat",
            lambda view: [r["work_id"] for r in view["running"]["replicas"]] == ["chat.r2"],
        )
        assert view["running"]["reason"] == "did not answer for 50 ms"

    run(database, tmp_path, body)


def test_an_old_journal_without_kinds_is_taken_up(tmp_path: Path) -> None:
    """A state folder of an earlier version: the kind is described when its node comes again."""
    database = Database(f"sqlite:///{tmp_path / 'groundplane.db'}", migrate=True)

    async def body() -> None:
        async with served(database, tmp_path) as call:
            assert msgspec.to_builtins(call.driver.core.state.kinds["cpu"])["memory_bytes"] == 0
            seq = call.driver.seq
        async with served(database, tmp_path) as call:
            assert call.driver.seq == seq  # nothing new is said

    asyncio.run(body())
    database.close()
