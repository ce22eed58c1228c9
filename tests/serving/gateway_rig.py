"""A gateway in a process of its own, before counting servers in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from groundplane.platform.runtime.database import Database, default_url
from groundplane.platform.runtime.identity import create_key
from groundplane.platform.runtime.tables import endpoints, services
from groundplane.platform.serving.tables import usage

CHAT = {"model": "tiny", "max_tokens": 6, "messages": [{"role": "user", "content": "a secret prompt"}]}
"""A small request, whose prompt must be found nowhere."""
COUNTING_SERVER = Path(__file__).parent / "counting_server.py"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def fetch(url: str, key: str = "") -> tuple[int, bytes]:
    """GET, with status and body."""
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def post(
    platform: Platform, body: Any, path: str = "/v1/chat/completions", key: str | None = None
) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {platform.key if key is None else key}"}
    return httpx.post(platform.url + path, content=content, headers=headers, timeout=30)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"].startswith("req_")
    return error


class Counting:
    """A counting server that runs."""

    def __init__(self, token_s: float = 0.0) -> None:
        command = [sys.executable, str(COUNTING_SERVER), "--token-s", str(token_s)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if self.process.stdout is None:
            raise RuntimeError("no output")
        self.root = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def counts(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = json.loads(fetch(f"{self.root}/counts")[1])
        return found

    def bodies(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(fetch(f"{self.root}/bodies")[1])
        return found

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


class Platform:
    """A state folder with a key, its database, and a gateway that can be killed and started again."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.database = Database(default_url(state), migrate=True)
        with self.database.begin() as connection:
            self.key, kept = create_key(connection, name="test", now_ns=time.time_ns(), project="blue")
        self.key_id = kept.key_id
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.log = state / "gateway.log"

    def endpoint(
        self,
        model: str,
        url: str,
        *,
        work_id: str = "svc.r1",
        server: str = "openai-counted",
        state: str = "ready",
    ) -> None:
        """Says that a replica serves a model; one that is known is replaced."""
        row = {
            "work_id": work_id, "service_id": "svc", "model_name": model, "server": server, "url": url,
            "state": state, "fence": 1, "updated_ns": time.time_ns(),
        }  # fmt: skip
        with self.database.begin() as connection:
            connection.execute(endpoints.delete().where(endpoints.c.work_id == work_id))
            connection.execute(endpoints.insert().values(row))

    def service(self, name: str, spec: str = "{}") -> None:
        """Says that a service is deployed, whether or not it has a replica."""
        row = {"service_id": name, "name": name, "generation": 1, "spec": spec}
        with self.database.begin() as connection:
            connection.execute(services.insert().values(row))

    def start(self, *options: str) -> None:
        """Starts the gateway and waits for its health."""
        command = [sys.executable, "-m", "groundplane.platform.serving.gateway", "--state", str(self.state)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), *options],
                stdout=log,
                stderr=log,
                env=os.environ | {"NO_COLOR": "1"},
            )
        deadline = time.monotonic() + 20
        while True:
            try:
                if fetch(f"{self.url}/health")[0] == 200:
                    return
            except (urllib.error.URLError, ConnectionError):
                pass
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail(f"the gateway did not start: {self.log.read_text()}")
            time.sleep(0.02)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> int:
        """Ends the gateway and gives its exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(how)
        return self.process.wait(40)

    def wait_known(self, model: str) -> None:
        """Waits until the gateway knows a ready replica of a model, or its service."""
        deadline = time.monotonic() + 10
        while fetch(f"{self.url}/v1/models/{model}", self.key)[0] != 200:
            if time.monotonic() > deadline:
                pytest.fail(f"{model} did not become known")
            time.sleep(0.02)

    def usage(self) -> dict[str, dict[str, Any]]:
        """Rows of the usage table by request id."""
        with self.database.reading() as connection:
            return {row["request_id"]: dict(row) for row in connection.execute(sa.select(usage)).mappings()}

    def wait_usage(
        self, condition: Callable[[dict[str, dict[str, Any]]], bool], deadline_s: float = 20
    ) -> Any:
        """Rows of the usage table once the condition holds of them."""
        end = time.monotonic() + deadline_s
        while not condition(rows := self.usage()):
            if time.monotonic() > end:
                pytest.fail(f"usage did not come to be: {rows}\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)
        return rows

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.database.close()
