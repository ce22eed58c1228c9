"""Helpers of the runtime's tests: waiting, a throw-away PostgreSQL, the command line as a process."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundplane.platform.runtime import upfile
from groundplane.platform.runtime.upfile import UpFile

COMMAND = (sys.executable, "-c", "from groundplane.cli.main import main; main()")


def until(condition: Callable[[], object], *, within_s: float = 60.0, what: str = "the condition") -> None:
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
        # SIGINT ends it without waiting for its clients.
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


class Cli:
    """The `groundplane` command on a state folder of its own; what it started is ended at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.port, self.gateway_port = free_port(), free_port()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("GROUNDPLANE_")}

    def __call__(self, *words: str, state: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs one command to its end; nothing is checked."""
        where = ["--state", str(self.state)] if state else []
        return subprocess.run(
            [*COMMAND, *words, *where],
            env=self.env | env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def up(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`groundplane up` on the ports of this fixture."""
        ports = ["--port", str(self.port), "--gateway-port", str(self.gateway_port)]
        return self("up", *ports, *words)

    def json(self, *words: str) -> Any:
        """The JSON answer of a command that must succeed."""
        done = self(*words, "--json")
        if done.returncode:
            pytest.fail(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    def up_file(self) -> UpFile:
        """`up.json`, which must be there."""
        found = upfile.read(self.state)
        if found is None:
            pytest.fail("no up.json")
        return found

    def job_file(self, name: str, command: str, **fields: object) -> str:
        """Writes a job that runs a shell command."""
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"name": name, "command": ["sh", "-c", command]} | fields))
        return str(path)

    def processes(self) -> list[str]:
        """Command lines of every process that has this state folder or one of its works in it."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode(errors="replace").split("\0")
                environment = (path.parent / "environ").read_bytes()
            except OSError:
                continue
            mark = str(self.folder)
            if any(mark in word for word in words) or f"GROUNDPLANE_JOB_DIR={mark}".encode() in environment:
                found.append(" ".join(words))
        return found
