"""Models and usage over HTTP: roles, projects, errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from litestar import Litestar
from litestar.datastructures import State
from litestar.testing import TestClient
from test_metering_log import settled
from test_registry import gguf

from groundplane.platform.runtime.database import Database
from groundplane.platform.runtime.http import EXCEPTION_HANDLERS
from groundplane.platform.runtime.identity import KeyRing, create_key
from groundplane.platform.serving.metering import MeteringLog
from groundplane.platform.serving.routes import router
from groundplane.platform.serving.settlement import Settler


@pytest.fixture
def api(tmp_path: Path) -> Iterator[SimpleNamespace]:
    database = Database(f"sqlite:///{tmp_path / 'test.db'}", migrate=True)
    keys = {}
    with database.begin() as connection:
        for name, project, role in (("a", "blue", "admin"), ("m", "blue", "member"), ("v", "red", "viewer")):
            keys[role], _ = create_key(
                connection, name=name, now_ns=time.time_ns(), project=project, role=role
            )
    ring = KeyRing()
    ring.load(database)
    app = Litestar(
        [router],
        state=State({"database": database, "state_dir": tmp_path, "key_ring": ring}),
        exception_handlers=EXCEPTION_HANDLERS,
        logging_config=None,
    )
    headers = {role: {"authorization": f"Bearer {key}"} for role, key in keys.items()}
    with TestClient(app) as client:
        yield SimpleNamespace(client=client, headers=headers, database=database, folder=tmp_path)
    database.close()


def test_models(api: SimpleNamespace) -> None:
    file = api.folder / "m.gguf"
    file.write_bytes(gguf())
    body = {"name": "m", "path": str(file), "job_id": "job-1", "checkpoint_step": 7}
    assert api.client.post("/api/models", json=body).status_code == 401
    assert api.client.post("/api/models", json=body, headers=api.headers["viewer"]).status_code == 403
    made = api.client.post("/api/models", json=body, headers=api.headers["member"])
    assert (made.status_code, made.json()["version"], made.json()["checkpoint_step"]) == (201, 1, 7)
    assert api.client.get("/api/models", headers=api.headers["viewer"]).json() == [made.json()]
    assert api.client.get("/api/models/m:1", headers=api.headers["viewer"]).json() == made.json()
    wrong = api.client.get("/api/models/mm", headers=api.headers["viewer"])
    assert (wrong.status_code, wrong.json()["error"]["nearest"]) == (400, "m")
    relative = api.client.post("/api/models", json=body | {"path": "m.gguf"}, headers=api.headers["member"])
    assert (relative.status_code, relative.json()["error"]["field"]) == (400, "path")
    typo = api.client.post("/api/models", json=body | {"pth": ""}, headers=api.headers["member"])
    assert (typo.status_code, typo.json()["error"]["nearest"]) == (400, "path")


def test_usage_of_ones_own_project(api: SimpleNamespace) -> None:
    log = MeteringLog(api.folder / "metering")
    log.append(settled("r1", 5))
    log.append(settled("r2", 6, project="red"))
    log.close()
    Settler(api.folder / "metering", api.database, "gateway").fold()

    def groups(role: str, **query: str) -> dict[str, int]:
        answer = api.client.get("/api/usage", params=query, headers=api.headers[role])
        return {one["group"]: one["tokens_out"] for one in answer.json()}

    assert groups("admin") == {"blue": 5, "red": 6}
    assert groups("member") == {"blue": 5}
    assert groups("viewer", by="model") == {"tiny": 6}
    assert groups("admin", by="day", day="2026-01-01") == {}
    for query in ({"by": "colour"}, {"day": "yesterday"}):
        answer = api.client.get("/api/usage", params=query, headers=api.headers["admin"])
        assert answer.status_code == 400
