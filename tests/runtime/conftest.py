"""Databases for the runtime's tests (SQLite, and Postgres where it is installed) and the command line."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_helpers import Cli, Postgres, postgres_programs, until

from groundplane.platform.runtime.bringup import take_down
from groundplane.platform.runtime.database import Database


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    folder = Path(tempfile.mkdtemp(prefix="groundplane-postgres-"))
    server = Postgres(programs, folder)
    try:
        until(server.ready, what="PostgreSQL's answer")
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.system)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database, once a kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'groundplane.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def database(empty_url: str) -> Iterator[Database]:
    """A database with the current schema, once a kind."""
    opened = Database(empty_url, migrate=True)
    yield opened
    opened.close()


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    command = Cli(tmp_path)
    yield command
    take_down(command.state, grace_s=0.5)
