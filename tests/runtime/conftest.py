"""Databases for the runtime's tests: SQLite always, Postgres where its programs are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from groundplane.platform.runtime.database import Database


def until(condition: Callable[[], object], *, within_s: float = 20.0, what: str = "the condition") -> None:
    """Waits until `condition()` is true, at most `within_s`."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail(f"{what} did not come true within {within_s} s")
        time.sleep(0.01)


def free_port() -> int:
    """A TCP port of the loopback address that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def postgres_programs() -> Path | None:
    """Folder with `initdb` and `postgres`, if there is one."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


class Postgres:
    """A throw-away server; as root it is run by the user `postgres` or `nobody`, because it refuses root."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        user: dict[str, object] = {}
        if os.geteuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            account = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            os.chown(folder, account.pw_uid, account.pw_gid)
            user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        data = str(folder / "data")
        initdb = [
            str(programs / "initdb"),
            "-D",
            data,
            "-U",
            "groundplane",
            "-A",
            "trust",
            "-N",
            "--no-locale",
        ]
        subprocess.run([*initdb, "-E", "UTF8"], check=True, capture_output=True, cwd=folder, **user)  # type: ignore[call-overload]
        options = [
            "-c",
            f"unix_socket_directories={folder}",
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "fsync=off",
        ]
        command = [str(programs / "postgres"), "-D", data, "-p", str(self.port), *options]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **user)  # type: ignore[call-overload]
        self._count = 0

    def ready(self) -> bool:
        """Whether it answers."""
        import psycopg

        try:
            psycopg.connect(self.admin_url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def admin_url(self) -> str:
        """The database that is always there."""
        return f"postgresql://groundplane@127.0.0.1:{self.port}/postgres"

    def new_database(self) -> str:
        """URL of a fresh, empty database."""
        import psycopg

        self._count += 1
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE test{self._count}".encode())
        return f"postgresql://groundplane@127.0.0.1:{self.port}/test{self._count}"

    def close(self) -> None:
        """Stops it."""
        self.process.terminate()
        self.process.wait(30)


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
