"""The window command: what it sends, and what it shows. The API behind it is tested in tests/runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from groundplane.cli import windows
from groundplane.cli.windows import window_command

SWAP = {
    "name": "swap",
    "nodes": ["n1", "n2"],
    "begin_ns": 86_400 * 10**9,
    "end_ns": 90_000 * 10**9,
    "queue": "",
    "has_begun": False,
}


class FakeClient:
    """Takes what is sent and answers with one window."""

    sent: list[tuple[str, Any]] = []  # noqa: RUF012 - emptied by each test

    def __init__(self, state: Path) -> None:
        pass

    def get(self, path: str) -> Any:
        self.sent.append((path, None))
        return [SWAP]

    def post(self, path: str, body: Any) -> Any:
        self.sent.append((path, body))
        return [SWAP]

    def delete(self, path: str) -> Any:
        self.sent.append((path, None))
        return []


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeClient.sent.clear()
    monkeypatch.setattr(windows, "Client", FakeClient)


def test_a_file_is_checked_and_sent(tmp_path: Path) -> None:
    path = tmp_path / "window.yaml"
    path.write_text("kind: window\nname: swap\nnodes: [n1, n2]\nduration: 1 h\nbegin_in: 2 h\n")
    done = CliRunner().invoke(window_command, ["set", str(path)])
    assert done.exit_code == 0, done.output
    assert "1970-01-02T00:00:00Z" in done.output
    assert "maintenance" in done.output
    ((where, body),) = FakeClient.sent
    assert where == "/api/windows"
    assert (body["name"], list(body["nodes"])) == ("swap", ["n1", "n2"])
    assert (body["duration"], body["begin_in"]) == (3600.0, 7200.0)


def test_list_as_json_and_remove() -> None:
    assert '"has_begun": false' in CliRunner().invoke(window_command, ["list", "--json"]).output
    assert "No window is announced." in CliRunner().invoke(window_command, ["remove", "a b"]).output
    assert FakeClient.sent == [("/api/windows", None), ("/api/windows/a%20b", None)]
