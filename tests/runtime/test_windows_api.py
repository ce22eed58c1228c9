"""Windows over the API: announced, refused, listed, taken back."""

from __future__ import annotations

from pathlib import Path

from test_api import JOB, Caller, eventually, run

from groundplane.platform.runtime.database import Database

WINDOW = {"name": "swap", "nodes": ["fake"], "duration": "1 h"}


def test_maintenance_keeps_jobs_out_until_it_is_taken_back(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        (window,) = (await call("POST", "/api/windows", WINDOW)).json()
        assert (window["name"], window["nodes"], window["has_begun"]) == ("swap", ["fake"], True)
        assert window["end_ns"] - window["begin_ns"] == 3600 * 10**9
        assert (await call("GET", "/api/windows")).json() == [window]
        job_id = (await call("POST", "/api/jobs", JOB)).json()["job_id"]
        assert (await call("GET", f"/api/jobs/{job_id}")).json()["state"] == "queued"
        assert (await call("DELETE", "/api/windows/swap")).json() == []
        await eventually(call, f"/api/jobs/{job_id}", lambda view: view["state"] == "running")

    run(database, tmp_path, body)


def test_windows_that_cannot_be_are_refused(database: Database, tmp_path: Path) -> None:
    async def body(call: Caller) -> None:
        await call("POST", "/api/windows", WINDOW)
        for change, field in [
            ({}, "name"),
            ({"name": "other"}, "nodes[0]"),
            ({"name": "other", "nodes": ["fakes"]}, "nodes[0]"),
            ({"name": "other", "begin_at": "2001-01-01T00:00:00Z"}, "begin_at"),
            ({"name": "other", "duration": "0 s"}, "duration"),
        ]:
            answer = await call("POST", "/api/windows", WINDOW | change)
            assert answer.status_code == 400, change
            assert answer.json()["error"]["field"] == field
        answer = await call("DELETE", "/api/windows/swop")
        assert answer.status_code == 404
        assert answer.json()["error"]["nearest"] == "swap"
        assert (await call("POST", "/api/windows", WINDOW, role="member")).status_code == 403
        assert (await call("GET", "/api/windows", role="viewer")).status_code == 200

    run(database, tmp_path, body)
