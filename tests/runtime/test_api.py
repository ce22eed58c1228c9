"""The HTTP API: who may do what, what is refused and how, and that what it says is so."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from runtime_fakes import FakeEngine, FakeLauncher, World

from groundplane.platform.runtime import identity, launch, tables
from groundplane.platform.runtime.api import MAX_BODY_BYTES, Platform, create_app
from groundplane.platform.runtime.database import Database
from groundplane.platform.runtime.driver import Driver
from groundplane.platform.runtime.job_desk import JobDesk
from groundplane.platform.runtime.service_desk import ServiceDesk

JOB = {"name": "train", "command": ["true"]}
EXTERNAL = {"name": "far", "server": "openai", "url": "http://127.0.0.1:9/v1"}


class Caller:
    """An API over an engine without processes, with one key a role."""

    def __init__(
        self, client: httpx.AsyncClient, keys: dict[str, str], engine: FakeEngine, driver: Driver
    ) -> None:
        self._client, self._keys = client, keys
        self.engine, self.driver, self.world = engine, driver, engine.world

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: bytes | None = None,
        role: str = "admin",
        **headers: str,
    ) -> httpx.Response:
        if role:
            headers["authorization"] = f"Bearer {self._keys.get(role, role)}"
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._client.request(method, path, json=body, content=content, headers=names)


@asynccontextmanager
async def served(database: Database, state: Path) -> AsyncIterator[Caller]:
    engine = FakeEngine(World())
    driver = Driver(database, engine, FakeLauncher())
    keys = {}
    with database.begin() as connection:
        for role in identity.ROLES:
            keys[role], _ = identity.create_key(connection, name=role, now_ns=time.time_ns(), role=role)
    ring = identity.KeyRing()
    ring.load(database)
    try:
        await driver.open()
        jobs, services = JobDesk(state, database, driver, engine), ServiceDesk(state, database, driver)
        platform = Platform(state, database, driver, engine, ring, jobs, services, driver.now_ns())
        transport = httpx.ASGITransport(create_app(platform, []))
        async with httpx.AsyncClient(transport=transport, base_url="http://groundplane") as client:
            yield Caller(client, keys, engine, driver)
    finally:
        await driver.close()


def run(database: Database, state: Path, body: Callable[[Caller], Any]) -> None:
    async def main() -> None:
        async with served(database, state) as call:
            await body(call)

    asyncio.run(main())


async def eventually(call: Caller, path: str, wanted: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(20):
        while True:
            answer = (await call("GET", path)).json()
            if wanted(answer):
                return answer
            await asyncio.sleep(0.002)


def test_a_job_from_submission_to_its_end(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        answer = await call("POST", "/api/jobs", JOB | {"memory_per_rank": "64 MiB"}, role="member")
        assert answer.status_code == 201
        job = answer.json()
        job_id, work_id = job["job_id"], f"{job['job_id']}.a1"
        assert job_id.startswith("train-")
        await eventually(call, f"/api/jobs/{job_id}", lambda view: view["state"] == "running")
        assert (await call("GET", "/api/nodes")).json()[0]["holders"] == [work_id, ""]
        call.engine.tell(work_id, "checkpoint", step=5)
        call.engine.tell(work_id, "gone", outcome="succeeded")
        view = await eventually(call, "/api/jobs/train", lambda view: view["state"] == "succeeded")
        assert view["checkpoint_step"] == 5
        explained = (await call("GET", f"/api/jobs/{job_id}/explain")).json()
        assert [each["outcome"] for each in explained["attempts"]] == ["succeeded"]
        assert [each["job_id"] for each in (await call("GET", "/api/jobs?only=succeeded")).json()] == [job_id]
        assert (await call("GET", "/api/jobs?only=failed")).json() == []
        answer = await call("GET", "/api/jobs?only=runing")
        assert (answer.status_code, answer.json()["error"]["nearest"]) == (400, "running")
        ledger = (await call("GET", "/api/ledger")).json()
        accounts = [name for name in ledger if name.endswith("_ns") and name not in {"now_ns", "total_ns"}]
        assert sum(ledger[name] for name in accounts) == ledger["total_ns"] > 0

    run(database, tmp_path, body)


def test_a_job_that_waits_is_explained_and_can_be_cancelled(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        first = (await call("POST", "/api/jobs", JOB | {"ranks": 2})).json()["job_id"]
        second = (await call("POST", "/api/jobs", JOB | {"name": "later", "ranks": 2})).json()["job_id"]
        decision = (await call("GET", f"/api/jobs/{second}/explain")).json()["decision"]
        assert decision["needed_devices"] == 2
        assert [each["free_devices"] for each in decision["available"]] == [0]
        assert "needs 2 x 1 devices" in decision["reason"]
        assert (await call("POST", f"/api/jobs/{second}/cancel")).json()["state"] == "cancelled"
        assert (await call("POST", f"/api/jobs/{second}/cancel")).json()["state"] == "cancelled"
        await eventually(call, f"/api/jobs/{first}", lambda view: view["state"] == "running")
        await call("POST", f"/api/jobs/{first}/cancel")
        await eventually(call, f"/api/jobs/{first}", lambda view: view["state"] == "cancelled")
        assert [work_id for work_id, _ in call.world.starts] == [f"{first}.a1"]

    run(database, tmp_path, body)


def test_the_same_request_twice_is_one_job(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        both = await asyncio.gather(
            *(call("POST", "/api/jobs", JOB, idempotency_key="once") for _ in range(4))
        )
        again = await call("POST", "/api/jobs", JOB, idempotency_key="once")
        assert len({answer.json()["job_id"] for answer in [*both, again]}) == 1
        assert len((await call("GET", "/api/jobs")).json()) == 1

    run(database, tmp_path, body)


REFUSED = [
    (JOB | {"rankz": 2}, "unknown field", "rankz", "ranks"),
    (JOB | {"memory_per_rank": "8 GiBB"}, "unknown unit", "memory_per_rank", "GiB"),
    (JOB | {"time_limit": "8 GiB"}, "not a size", "time_limit", None),
    (JOB | {"ranks": 0}, "must be a whole number >= 1", "ranks", None),
    (JOB | {"ranks": 3}, "must be at most 2", "ranks", None),
    (JOB | {"devices_per_rank": 3}, "must be at most 2", "devices_per_rank", None),
    (JOB | {"memory_per_rank": "9 GiB"}, "must be at most 8 GiB", "memory_per_rank", None),
    (JOB | {"command": ["no-such-program-here"]}, "no such program", "command[0]", None),
    ({"name": "a"}, "exactly one of", "command", None),
    ({"name": "a", "train": {"data": ["/nowhere/at/all.txt"]}}, "", "train.data[0]", None),
    (["not a job"], "", None, None),
]


def test_what_cannot_run_is_refused_and_leaves_nothing(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        for sent, message, field, nearest in REFUSED:
            answer = await call("POST", "/api/jobs", sent)
            error = answer.json()["error"]
            assert (answer.status_code, error["field"], error["nearest"]) == (400, field, nearest), error
            assert message in error["message"]
        assert (await call("GET", "/api/jobs")).json() == []
        with database.reading() as connection:
            kinds = connection.scalars(sa.select(tables.journal.c.kind)).all()
        assert kinds == ["KindDescribed", "NodeJoined"]

    run(database, tmp_path, body)


def test_too_little_disk_is_refused(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(call: Caller) -> None:
        monkeypatch.setattr(launch.shutil, "disk_usage", lambda _path: SimpleNamespace(free=1 << 20))
        answer = await call("POST", "/api/jobs", JOB)
        assert answer.status_code == 400
        assert "too little disk" in answer.json()["error"]["message"]
        answer = await call("POST", "/api/jobs", {"name": "a", "train": {}})
        assert "too little disk" in answer.json()["error"]["message"]

    run(database, tmp_path, body)


def test_bodies_that_are_no_json_or_too_large(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        headers = {"authorization": f"Bearer {call._keys['admin']}"}
        answer = await call._client.post("/api/jobs", content=b"{", headers=headers)
        assert (answer.status_code, "must be JSON" in answer.text) == (400, True)
        answer = await call("POST", "/api/jobs", {"name": "x" * MAX_BODY_BYTES})
        assert answer.status_code == 413
        assert answer.json()["error"]["message"]

    run(database, tmp_path, body)


def test_what_is_not_there_is_said_with_the_nearest(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        job_id = (await call("POST", "/api/jobs", JOB)).json()["job_id"]
        await call("POST", "/api/services", EXTERNAL)
        for method, path, nearest in [
            ("GET", "/api/jobs/trian", "train"),
            ("POST", "/api/jobs/trian/cancel", "train"),
            ("GET", f"/api/jobs/{job_id}/logs?rank=1", None),
            ("GET", f"/api/jobs/{job_id}/logs?attempt=2", None),
            ("GET", "/api/services/fra", "far"),
            ("DELETE", "/api/services/fra", "far"),
            ("POST", "/api/nodes/fakes/cordon", "fake"),
            ("DELETE", "/api/keys/key-0", None),
            ("GET", "/api/nothing", None),
        ]:
            answer = await call(method, path)
            assert answer.status_code == 404, (path, answer.text)
            assert answer.json()["error"]["nearest"] == nearest, path

    run(database, tmp_path, body)


def test_roles_are_enforced(database: Database, tmp_path: Path) -> None:
    allowed = {
        ("GET", "/api/jobs"): "viewer",
        ("GET", "/api/services"): "viewer",
        ("GET", "/api/nodes"): "viewer",
        ("GET", "/api/ledger"): "viewer",
        ("GET", "/api/status"): "viewer",
        ("POST", "/api/jobs"): "member",
        ("POST", "/api/jobs/x/cancel"): "member",
        ("POST", "/api/services"): "member",
        ("POST", "/api/services/x/scale"): "member",
        ("DELETE", "/api/services/x"): "member",
        ("GET", "/api/keys"): "admin",
        ("POST", "/api/keys"): "admin",
        ("DELETE", "/api/keys/x"): "admin",
        ("POST", "/api/nodes/fake/cordon"): "admin",
    }

    async def body(call: Caller) -> None:
        for (method, path), least in allowed.items():
            for role in identity.ROLES:
                answer = await call(method, path, {} if method == "POST" else None, role=role)
                may = identity.ROLES.index(role) >= identity.ROLES.index(least)
                assert (answer.status_code == 403) is not may, (method, path, role)
            for wrong in ("", "gp-wrong"):
                answer = await call(method, path, role=wrong)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "API key is needed" in answer.json()["error"]["message"]
        assert (await call("GET", "/health", role="")).json() == {"status": "ok"}

    run(database, tmp_path, body)


def test_keys_are_made_shown_once_and_end(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        made = (await call("POST", "/api/keys", {"name": "ci", "role": "viewer", "project": "speech"})).json()
        assert (await call("GET", "/api/jobs", role=made["secret"])).status_code == 200
        listed = await call("GET", "/api/keys")
        assert made["secret"] not in listed.text
        assert made["key"] in listed.json()
        ended = (await call("DELETE", f"/api/keys/{made['key']['key_id']}")).json()
        assert ended["revoked_ns"] is not None
        assert (await call("GET", "/api/jobs", role=made["secret"])).status_code == 401
        answer = await call("POST", "/api/keys", {"name": "x", "expires_s": 1e15})
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, "expires_s")
        answer = await call("POST", "/api/keys", {"name": "x", "role": "amdin"})
        assert (answer.status_code, answer.json()["error"]["nearest"]) == (400, "admin")

    run(database, tmp_path, body)


def test_a_service_that_somebody_else_runs_is_an_endpoint_and_nothing_else(
    database: Database, tmp_path: Path
) -> None:
    async def body(call: Caller) -> None:
        service = (await call("POST", "/api/services", EXTERNAL)).json()
        assert (service["generation"], service["running"]) == (1, None)
        with database.reading() as connection:
            row = connection.execute(sa.select(tables.endpoints)).mappings().one()
        assert (row["model_name"], row["url"], row["state"]) == ("far", EXTERNAL["url"], "ready")
        assert (await call("POST", "/api/services", EXTERNAL)).json()["generation"] == 1
        moved = EXTERNAL | {"url": "http://127.0.0.1:10/v1"}
        assert (await call("POST", "/api/services", moved)).json()["generation"] == 2
        assert (await call("POST", "/api/services/far/scale", {"replicas": 2})).status_code == 400
        assert (await call("DELETE", "/api/services/far")).status_code == 200
        assert (await call("GET", "/api/services")).json() == []
        with database.reading() as connection:
            assert connection.execute(sa.select(tables.endpoints)).all() == []
        assert (await call("POST", "/api/services", EXTERNAL)).json()["generation"] == 3
        assert call.world.starts == []

    run(database, tmp_path, body)


def test_a_service_with_an_unknown_model_is_refused(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        answer = await call("POST", "/api/services", {"name": "chat", "model": "no-such-model"})
        assert answer.status_code == 400
        assert answer.json()["error"]["field"] == "model"
        assert (await call("GET", "/api/services")).json() == []

    run(database, tmp_path, body)


def test_cordoned_nodes_take_no_work(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        nodes = (await call("POST", "/api/nodes/fake/cordon")).json()
        assert nodes[0]["is_cordoned"]
        job_id = (await call("POST", "/api/jobs", JOB)).json()["job_id"]
        assert (await call("GET", f"/api/jobs/{job_id}")).json()["state"] == "queued"
        await call("POST", "/api/nodes/fake/uncordon")
        await eventually(call, f"/api/jobs/{job_id}", lambda view: view["state"] == "running")

    run(database, tmp_path, body)


def test_the_openapi_document_names_every_route_and_body(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        document = (await call("GET", "/schema", role="")).json()
        assert document["openapi"].startswith("3.")
        submit = document["paths"]["/api/jobs"]["post"]
        schema = submit["requestBody"]["content"]["application/json"]["schema"]
        assert "memory_per_rank" in schema["properties"]
        assert {"/api/jobs/{job_id}/explain", "/api/services", "/api/keys", "/api/ledger"} <= set(
            document["paths"]
        )

    run(database, tmp_path, body)


@pytest.mark.parametrize(
    "change",
    [
        {"time_limit": 1e300},
        {"time_limit": 1e10},
        {"stop_grace": 1e12},
        {"restart": {"backoff": 1e300, "backoff_limit": 1e300}},
        {"restart": {"budget": 10**30}},
        {"train": {"steps": 10**30}, "command": []},
        {"name": "line\n"},
        {"command": ["true", "a\0b"]},
        {"env": {"A=B": "c"}},
        {"env": {"": "c"}},
        {"env": {"A": "\0"}},
    ],
)
def test_odd_values_are_refused_and_harm_nobody(database: Database, tmp_path: Path, change: Any) -> None:
    async def body(call: Caller) -> None:
        refused = await call("POST", "/api/jobs", JOB | change)
        assert (refused.status_code, refused.json()["error"]["message"] != "") == (400, True)
        assert (await call("GET", "/api/jobs")).json() == []
        assert (await call("POST", "/api/jobs", JOB)).status_code == 201

    run(database, tmp_path, body)


def test_odd_requests_are_refused_and_harm_nobody(database: Database, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")

    async def body(call: Caller) -> None:
        managed = {"name": "a", "model": str(tmp_path / "pipe.gguf")}
        for method, path, data, status in [
            ("POST", "/api/keys", {"name": "k", "expires_s": 1e308}, 400),
            ("POST", "/api/keys", {"name": "k", "expires_s": 9.3e9}, 400),
            ("GET", "/api/works/%00/logs", None, 404),
            ("GET", "/api/works/%2e%2e/logs", None, 404),
            ("GET", "/api/works/nothing/logs", None, 404),
            ("GET", f"/api/jobs/a/logs?offset={10**30}", None, 404),
            ("POST", "/api/services", managed, 400),
            ("POST", "/api/services", managed | {"model": "\0/x.gguf"}, 400),
            ("POST", "/api/services", EXTERNAL | {"url": "http://x/\0"}, 400),
            ("POST", "/api/services", EXTERNAL | {"url": "nonsense"}, 400),
            ("POST", "/api/services", EXTERNAL | {"url": "http://x:99999999/"}, 400),
            ("POST", "/api/services", EXTERNAL | {"replicas": 10**7}, 400),
        ]:
            answer = await call(method, path, data)
            assert answer.status_code == status, (path, data, answer.text)
        nested = await call("POST", "/api/jobs", content=b"[" * 100_000)
        assert (nested.status_code, "nested" in nested.text) == (400, True)

    run(database, tmp_path, body)
