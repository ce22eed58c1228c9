"""The supervisor's parts: back-off, processes known past doubt, and the file that names them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from runtime_helpers import until

from groundplane.platform.engines.local import processes
from groundplane.platform.runtime import state, supervisor, upfile
from groundplane.platform.runtime.upfile import ProcessId, UpFile
from groundplane.spec.errors import InputError


def up_file(**changes: object) -> UpFile:
    me = upfile.process_id(os.getpid())
    assert me is not None
    up = UpFile(
        boot_id=processes.boot_id(),
        version="1",
        host="127.0.0.1",
        port=1,
        gateway_port=2,
        started_ns=3,
        supervisor=me,
    )
    return msgspec.structs.replace(up, **changes)


def test_the_pause_before_a_restart_doubles_up_to_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: 100.0)
    child = supervisor.Child(
        "control", [sys.executable, "-c", "print('no'); raise SystemExit(7)"], tmp_path / "log"
    )
    pauses_s = []
    for _ in range(9):
        child.start()
        assert child.process is not None
        child.process.wait(30)
        assert child.reap() == 7
        assert child.reap() is None
        pauses_s.append(round(child.restart_at_s - 100.0, 6))
    assert pauses_s == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert child.last_words() == "no"
    assert child.num_ends == 9


def test_a_child_that_was_well_begins_with_the_shortest_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now_s)
    child = supervisor.Child("control", [sys.executable, "-c", ""], tmp_path / "log")
    for lived_s, pause_s in ((0.0, 0.1), (0.0, 0.2), (60.0, 0.1)):
        child.start()
        assert child.process is not None
        child.process.wait(30)
        now_s += lived_s
        assert child.reap() == 0
        assert child.restart_at_s - now_s == pytest.approx(pause_s)


def test_exit_codes_in_words() -> None:
    assert supervisor.how_it_ended(-9) == "was killed by signal 9"
    assert supervisor.how_it_ended(1) == "ended with exit code 1"


def test_a_pid_that_was_used_again_is_not_ours() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ours = upfile.process_id(child.pid)
    assert ours is not None
    assert ours.is_alive
    stranger = ProcessId(ours.pid, ours.start_ticks + 1)
    assert not stranger.is_alive
    stranger.signal(supervisor.signal.SIGKILL)
    assert ours.is_alive
    ours.signal(supervisor.signal.SIGKILL)
    child.communicate()
    until(lambda: not ours.is_alive)


def test_the_file_is_private_whole_and_of_this_boot(tmp_path: Path) -> None:
    assert upfile.read(tmp_path) is None
    upfile.write(tmp_path, up_file())
    assert upfile.read(tmp_path) == up_file()
    assert (tmp_path / upfile.NAME).stat().st_mode & 0o077 == 0
    upfile.write(tmp_path, up_file(boot_id="another"))
    assert upfile.read(tmp_path) is None
    (tmp_path / upfile.NAME).write_text("{")
    assert upfile.read(tmp_path) is None
    upfile.remove(tmp_path)
    upfile.remove(tmp_path)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "127.0.0.1:80"),
        ("0.0.0.0", "127.0.0.1:80"),
        ("::", "[::1]:80"),
        ("::1", "[::1]:80"),
        ("node7", "node7:80"),
    ],
)
def test_addresses_that_clients_reach(host: str, expected: str) -> None:
    assert upfile.address(host, 80) == expected


def test_a_folder_keeps_its_database(tmp_path: Path) -> None:
    assert state.default_url(tmp_path) == f"sqlite:///{tmp_path}/groundplane.db"
    url = "postgresql://me:secret@there/name"
    assert state.keep_url(tmp_path, url)
    assert not state.keep_url(tmp_path, url)
    assert state.default_url(tmp_path) == url
    assert (tmp_path / state.URL_FILE).stat().st_mode & 0o077 == 0
    with pytest.raises(InputError, match="cannot be changed") as caught:
        state.keep_url(tmp_path, "postgresql://me:other@there/name2")
    assert "secret" not in str(caught.value)
    assert "other" not in str(caught.value)
    with pytest.raises(InputError, match="must be a URL"):
        state.keep_url(tmp_path, "mysql://x")
