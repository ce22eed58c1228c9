"""`groundplane replay` reads a platform's Postgres: by the URL, and by the state folder that names it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from runtime_helpers import Postgres
from test_api import JOB, Caller, eventually, run

from groundplane.control.replay import replay
from groundplane.platform.runtime.database import Database
from groundplane.platform.runtime.state import keep_url
from groundplane.sim.journal_file import read_journal, write_journal
from groundplane.spec.errors import InputError

pytestmark = pytest.mark.system


async def work(call: Caller) -> None:
    for number in range(3):
        job = (await call("POST", "/api/jobs", JOB | {"name": f"j{number}"})).json()["job_id"]
        await eventually(call, f"/api/jobs/{job}", lambda view: view["state"] == "running")
        call.engine.tell(f"{job}.a1", "gone", outcome="succeeded")
        await eventually(call, f"/api/jobs/{job}", lambda view: view["state"] == "succeeded")
    await asyncio.sleep(0)


def test_a_postgres_platform_replays_to_the_same_actions(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.new_database()
    database = Database(url, migrate=True)
    run(database, tmp_path, work)
    run(database, tmp_path, work)  # another control plane, with a snapshot between the two
    database.close()
    keep_url(tmp_path, url)
    for place in (url, tmp_path):
        report = replay(read_journal(place))
        assert report.divergence is None
        assert report.num_events > 12
        assert report.num_snapshots >= 1
    write_journal(tmp_path / "journal.jsonl", read_journal(url))
    assert replay(read_journal(tmp_path / "journal.jsonl")) == report


def test_a_postgres_that_is_not_there_or_holds_no_journal(postgres: Postgres) -> None:
    with pytest.raises(InputError, match="is not a journal"):
        list(read_journal(postgres.new_database()))
    with pytest.raises(InputError) as caught:
        list(read_journal("postgresql://user:secret@127.0.0.1:1/none"))
    assert "secret" not in str(caught.value)
