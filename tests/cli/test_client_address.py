"""GROUNDPLANE_URL: what is no address is one clear line and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from groundplane.cli.client import checked_address
from groundplane.spec.errors import InputError

COMMAND = (sys.executable, "-c", "from groundplane.cli.main import main; main()")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8470", "127.0.0.1:8470"),
        ("host.example:80", "host.example:80"),
        ("http://[::1]:8470/", "[::1]:8470"),
    ],
)
def test_addresses(url: str, address: str) -> None:
    assert checked_address(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "http://",
        "https://host:1",
        "http://host:port",
        "http://host:99999",
        "http://h:1/x",
        "://",
        "http://[::1",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InputError, match="GROUNDPLANE_URL"):
        checked_address(url)


@pytest.mark.parametrize("url", ["nonsense", "http://no-such-host.invalid:8470"])
def test_the_command_says_so_in_one_line(tmp_path: Path, url: str) -> None:
    done = subprocess.run(
        [*COMMAND, "status"],
        env={"GROUNDPLANE_URL": url, "GROUNDPLANE_KEY": "k", "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "GROUNDPLANE_URL" in done.stderr
