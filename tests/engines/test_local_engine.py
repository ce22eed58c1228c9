"""The local engine under what goes wrong on real machines: kills, daemons, floods, hogs, full disks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from engine_harness import TAG, Harness, left_behind, python, shell, wait_until

from groundplane.platform.engines.contract import Engine
from groundplane.platform.engines.local import engine as engine_module
from groundplane.platform.engines.local import processes
from groundplane.platform.engines.local.engine import LocalEngine
from groundplane.platform.engines.local.folder import KeeperFile, LineLog, WorkFolder, write_struct
from groundplane.platform.engines.local.guard import LOG_LIMIT_BYTES
from groundplane.platform.engines.local.sweep import sweep
from groundplane.spec.errors import InputError

pytestmark = pytest.mark.real

FOREVER = shell("while :; do sleep 0.05; done")
FORK_DAEMON = """
import os, signal, time
def daemon():
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            while True:
                time.sleep(1000)
        os._exit(0)
    os.wait()
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / ("a long folder name, with spaces and ünicode " * 4) / "state"


@pytest.fixture
def make_harness(state: Path, new_harness: Callable[[Engine], Harness]) -> Callable[[], Harness]:
    return lambda: new_harness(LocalEngine(state))


def folder_of(harness: Harness, work_id: str) -> WorkFolder:
    return WorkFolder(harness.engine.log_path(work_id, 0).parent)


def keeper_of(folder: WorkFolder) -> KeeperFile:
    wait_until(lambda: folder.keeper() is not None)
    keeper = folder.keeper()
    assert keeper is not None
    return keeper


def test_rank_runs_on_its_cpus(state: Path, new_harness: Callable[[Engine], Harness]) -> None:
    cpus = LocalEngine(state).cpus
    harness = new_harness(LocalEngine(state))
    show = python("import os; print(sorted(os.sched_getaffinity(0)))")
    last = len(cpus) - 1
    harness.start(harness.launch("w.a1", show, show, devices=[(last,), tuple(range(len(cpus)))]))
    assert harness.wait_for("w.a1", "gone").outcome == "succeeded"
    assert harness.engine.log_path("w.a1", 0).read_text() == f"{[cpus[last]]}\n"
    assert harness.engine.log_path("w.a1", 1).read_text() == f"{list(cpus)}\n"
    harness.close()


def test_rank_leads_a_session_knows_its_work_and_has_plain_signals(
    make_harness: Callable[[], Harness],
) -> None:
    harness = make_harness()
    show = python(
        "import os, signal\n"
        "print(os.getsid(0) == os.getpid(), os.environ['GROUNDPLANE_WORK'], os.environ['GROUNDPLANE_RANK'])\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []), os.read(0, 1), os.getcwd())\n"
    )
    harness.start(harness.launch("w.a1", show, fence=7))
    assert harness.wait_for("w.a1", "gone").outcome == "succeeded"
    assert harness.engine.log_path("w.a1", 0).read_text() == f"True w.a1.7 0\nset() b'' {os.getcwd()}\n"
    harness.close()


def test_keeper_is_no_child_of_ours(make_harness: Callable[[], Harness]) -> None:
    harness = make_harness()
    harness.start(harness.launch("w.a1", FOREVER))
    harness.wait_for("w.a1", "started")
    keeper = processes.read_process(keeper_of(folder_of(harness, "w.a1")).pid)
    assert keeper is not None
    assert keeper.parent_pid != os.getpid()
    assert keeper.session_id == keeper.pid
    harness.stop("w.a1", grace_s=1.0)
    harness.wait_for("w.a1", "gone")
    own_zombies = [p for p in processes.scan() if p.parent_pid == os.getpid() and p.state == "Z"]
    assert own_zombies == []
    harness.close()


def test_many_children_and_stubborn_daemons_are_ended(make_harness: Callable[[], Harness], tag: str) -> None:
    harness = make_harness()
    source = FORK_DAEMON + (
        "for number in range(30):\n"
        "    if number % 3 == 0:\n"
        "        daemon()\n"
        "    elif os.fork() == 0:\n"
        "        while True:\n"
        "            time.sleep(1000)\n"
        "print('all', flush=True)\n"
        "while True:\n"
        "    time.sleep(1000)\n"
    )
    harness.start(harness.launch("w.a1", python(source)))
    log = harness.engine.log_path("w.a1", 0)
    harness.wait(lambda: log.exists() and log.read_text() == "all\n")
    assert len(left_behind(tag)) == 31
    harness.stop("w.a1", grace_s=0.2)
    assert harness.wait_for("w.a1", "gone").outcome == "stopped"
    assert left_behind(tag) == []
    harness.close()


def test_processes_that_fork_and_end_without_pause_are_caught(make_harness: Callable[[], Harness]) -> None:
    """Each lives for a moment only, half of them in new sessions: a list of them is old when it is made."""
    harness = make_harness()
    source = (
        "import os, time\n"
        "for number in range(10):\n"
        "    if os.fork() == 0:\n"
        "        while os.fork() == 0:\n"
        "            if number % 2:\n"
        "                os.setsid()\n"
        "        os._exit(0)\n"
        "print('up', flush=True)\n"
        "time.sleep(1000)\n"
    )
    harness.start(harness.launch("w.a1", python(source)))
    log = harness.engine.log_path("w.a1", 0)
    harness.wait(lambda: log.exists() and log.read_text() == "up\n")
    harness.stop("w.a1", grace_s=0.0)
    assert harness.wait_for("w.a1", "gone").outcome == "stopped"
    harness.close()


def test_daemon_with_an_empty_environment_is_ended_too(
    make_harness: Callable[[], Harness], tmp_path: Path
) -> None:
    harness = make_harness()
    pid_file = tmp_path / "pid"
    inner = f"echo $$ > '{pid_file}'; exec sleep 1000"
    harness.start(
        harness.launch(
            "w.a1", shell(f'env -i setsid /bin/sh -c "{inner}" & until test -s "{pid_file}"; do :; done')
        )
    )
    assert harness.wait_for("w.a1", "gone").outcome == "succeeded"
    assert processes.read_process(int(pid_file.read_text())) is None
    harness.close()


def test_keeper_killed(make_harness: Callable[[], Harness], tag: str) -> None:
    """Its ranks die with it, what they left is found by its mark, and only then the work is gone."""
    harness = make_harness()
    source = FORK_DAEMON + "daemon()\nprint('up', flush=True)\nwhile True:\n    time.sleep(1000)\n"
    harness.start(harness.launch("w.a1", python(source), python(source)))
    logs = [harness.engine.log_path("w.a1", rank) for rank in (0, 1)]
    harness.wait(lambda: all(log.exists() and log.read_text() == "up\n" for log in logs))
    os.kill(keeper_of(folder_of(harness, "w.a1")).pid, signal.SIGKILL)
    gone = harness.wait_for("w.a1", "gone")
    assert gone.outcome == "failed"
    assert "keeper lost" in gone.detail
    assert left_behind(tag) == []
    harness.close()


def test_keeper_killed_right_after_start(make_harness: Callable[[], Harness], tag: str) -> None:
    harness = make_harness()
    for number in range(5):
        harness.start(harness.launch(f"w.a{number}", FOREVER, FOREVER))
        os.kill(keeper_of(folder_of(harness, f"w.a{number}")).pid, signal.SIGKILL)
    for number in range(5):
        gone = harness.wait_for(f"w.a{number}", "gone")
        assert gone.outcome == "failed"
    assert left_behind(tag) == []
    harness.close()


def test_keeper_killed_during_stop_counts_as_stopped(make_harness: Callable[[], Harness]) -> None:
    harness = make_harness()
    harness.start(harness.launch("w.a1", shell("trap '' TERM; echo up; while :; do sleep 0.05; done")))
    log = harness.engine.log_path("w.a1", 0)
    harness.wait(lambda: log.exists() and log.read_text() == "up\n")
    harness.stop("w.a1", grace_s=1000.0)
    os.kill(keeper_of(folder_of(harness, "w.a1")).pid, signal.SIGKILL)
    assert harness.wait_for("w.a1", "gone").outcome == "stopped"
    harness.close()


CONTROL_PLANE = """
import asyncio, sys
from pathlib import Path
from groundplane.control.actions import RankPlacement
from groundplane.platform.engines.contract import Launch
from groundplane.platform.engines.local.engine import LocalEngine

async def main(state, name, value):
    engine = LocalEngine(Path(state))
    await engine.open(lambda report: print(report.what, flush=True))
    command = ("/bin/sh", "-c", "echo up; while :; do sleep 0.05; done")
    launch = Launch("w.a1", 3, "attempt", (RankPlacement("local", (0,)),), (command,), ({name: value},), 0)
    await engine.start(launch)
    await asyncio.sleep(1000)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("keeper_too", [False, True])
def test_control_plane_killed(
    make_harness: Callable[[], Harness], state: Path, tag: str, keeper_too: bool
) -> None:
    command = [sys.executable, "-c", CONTROL_PLANE, str(state), TAG, tag]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as control_plane:
        assert control_plane.stdout is not None
        assert control_plane.stdout.readline() == b"started\n"
        folder = WorkFolder(state / "works" / "w.a1")
        control_plane.kill()
        if keeper_too:
            os.kill(keeper_of(folder).pid, signal.SIGKILL)
    harness = make_harness()
    harness.reattach("w.a1", 3)
    harness.wait_for("w.a1", "started")
    if keeper_too:
        assert harness.wait_for("w.a1", "gone").outcome == "failed"
    else:
        assert len(left_behind(tag)) >= 1
        harness.stop("w.a1", 3, grace_s=1.0)
        assert harness.wait_for("w.a1", "gone").outcome == "stopped"
    assert [report.position for report in harness.reports] == [1, 2]
    harness.close()


def test_control_plane_killed_at_any_moment_of_a_start(
    new_harness: Callable[[Engine], Harness], tag: str, tmp_path: Path
) -> None:
    """Whatever the next one finds, a repeated start leads to exactly one run, and a stop ends it."""
    for moment in range(6):
        place = tmp_path / f"state {moment}"
        command = [sys.executable, "-c", CONTROL_PLANE, str(place), TAG, tag]
        launch_path = place / "works" / "w.a1" / "launch.json"
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as control_plane:
            conditions = [place.exists, launch_path.parent.exists, launch_path.exists]
            wait_until(conditions[moment % 3])
            control_plane.kill()
        harness = new_harness(LocalEngine(place))
        harness.reattach("w.a1", 3)
        harness.start(harness.launch("w.a1", shell("echo up; while :; do sleep 0.05; done"), fence=3))
        harness.wait_for("w.a1", "started")
        log = harness.engine.log_path("w.a1", 0)
        harness.wait(log.read_text)
        harness.stop("w.a1", 3, grace_s=1.0)
        assert harness.wait_for("w.a1", "gone").outcome == "stopped"
        assert log.read_text() == "up\n"
        harness.close()


def test_success_is_kept_when_the_keeper_is_lost_after_it(make_harness: Callable[[], Harness]) -> None:
    """What has succeeded is not run again (the last rank ended well, then the keeper was killed)."""
    harness = make_harness()
    harness.start(harness.launch("w.a1", shell("exit 0")))
    harness.wait_for("w.a1", "gone")
    harness.close()
    folder = folder_of(harness, "w.a1")
    lines = LineLog(folder.reports_path).lines()
    folder.reports_path.write_bytes(b"".join(line + b"\n" for line in lines[:-1]) + lines[-1][:20])
    folder.seen_path.unlink()
    again = make_harness()
    again.reattach("w.a1")
    assert again.wait_for("w.a1", "gone").outcome == "succeeded"
    assert again.whats("w.a1") == ["started", "gone"]
    again.close()


def test_another_boot_means_gone(make_harness: Callable[[], Harness], state: Path) -> None:
    first = make_harness()
    first.start(first.launch("w.a1", FOREVER))
    first.wait_for("w.a1", "started")
    first.close()
    sweep(state, 0.0)
    folder = folder_of(first, "w.a1")
    lines = LineLog(folder.reports_path).lines()
    folder.reports_path.write_bytes(lines[0] + b"\n")
    folder.stop_path(1).unlink()
    keeper = keeper_of(folder)
    # The number may belong to anybody now: here to this test, which must survive it.
    me = processes.read_process(os.getpid())
    assert me is not None
    write_struct(folder.keeper_path, KeeperFile(me.pid, me.start_ticks, "another boot"))
    assert keeper.boot_id == processes.boot_id()
    second = make_harness()
    second.reattach("w.a1")
    gone = second.wait_for("w.a1", "gone")
    assert (gone.outcome, gone.detail) == ("failed", "the machine was restarted")
    second.close()


def test_launched_but_never_kept(
    make_harness: Callable[[], Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control plane died between launch.json and the keeper: a reattach starts it, a stop closes it."""
    first = make_harness()
    monkeypatch.setattr(LocalEngine, "_spawn_if_needed", lambda self, follower: None)
    first.start(first.launch("w.a1", shell("echo ran")))
    first.start(first.launch("w.a2", shell("echo ran")))
    first.close()
    monkeypatch.undo()
    second = make_harness()
    second.reattach("w.a1")
    assert second.wait_for("w.a1", "gone").outcome == "succeeded"
    second.stop("w.a2")
    assert second.wait_for("w.a2", "gone").outcome == "stopped"
    assert not second.engine.log_path("w.a2", 0).exists()
    second.close()


def test_no_process_can_be_started(
    make_harness: Callable[[], Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: WorkFolder) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    harness = make_harness()
    monkeypatch.setattr(engine_module, "spawn_keeper", refuse)
    harness.start(harness.launch("w.a1", FOREVER))
    gone = harness.wait_for("w.a1", "gone")
    assert gone.outcome == "start_failed"
    assert "Resource temporarily unavailable" in gone.detail
    harness.close()


def test_no_space_for_the_launch_leaves_nothing(
    make_harness: Callable[[], Harness], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, content: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    harness = make_harness()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        harness.start(harness.launch("w.a1", FOREVER))
    gone = harness.wait_for("w.a1", "gone")
    assert gone.outcome == "start_failed"
    assert "No space left on device" in gone.detail
    assert not (state / "works" / "w.a1").exists()
    harness.close()


def test_full_disk_delays_reports_and_loses_none(
    make_harness: Callable[[], Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, content: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    harness = make_harness()
    harness.start(harness.launch("w.a1", shell("exit 5")))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        wait_until(lambda: len(folder_of(harness, "w.a1").keeper_lines()) == 3)
        harness.wait(lambda: harness.engine._in_trouble == {"w.a1"})  # type: ignore[attr-defined]
        assert harness.reports == []
    assert harness.wait_for("w.a1", "gone").exit_code == 5
    assert [(report.position, report.what) for report in harness.reports] == [(1, "started"), (2, "gone")]
    harness.close()


def test_output_flood_does_not_block_and_its_log_is_bounded(make_harness: Callable[[], Harness]) -> None:
    harness = make_harness()
    source = "import os\nfor _ in range(1600):\n    os.write(1, b'x' * 65535 + b'\\n')\n"
    source += "os.write(1, b'last line\\n')\n"
    # It stays until its log has been cut, which the keeper does at its next look.
    source += "import time\nwhile os.fstat(1).st_size > 2**26:\n    time.sleep(0.02)\n"
    harness.start(harness.launch("w.a1", python(source)))
    assert harness.wait_for("w.a1", "gone").outcome == "succeeded"
    log = harness.engine.log_path("w.a1", 0)
    older = log.with_name("rank-0.log.1")
    assert log.stat().st_size + older.stat().st_size <= 3 * LOG_LIMIT_BYTES
    assert b"last line" in log.read_bytes() + older.read_bytes()
    assert log.read_bytes().startswith(b"[groundplane: ")
    harness.close()


def test_memory_hog_is_stopped_with_its_reason(make_harness: Callable[[], Harness], tag: str) -> None:
    """The limit holds for the whole tree of a rank: here the memory is a daemon's."""
    harness = make_harness()
    hog = FORK_DAEMON.replace("while True:\n                time.sleep(1000)", "hog()")
    source = "def hog():\n    held = bytearray(b'x') * (120 << 20)\n    time.sleep(1000)\n" + hog
    source += "daemon()\ntime.sleep(1000)\n"
    calm = python("import time\ntime.sleep(1000)\n")
    harness.start(harness.launch("w.a1", calm, python(source), memory_bytes=96 << 20))
    gone = harness.wait_for("w.a1", "gone")
    assert (gone.outcome, gone.exit_code) == ("failed", -9)
    assert "rank 1 used" in gone.detail
    assert "more than its limit of 96 MiB" in gone.detail
    assert left_behind(tag) == []
    harness.close()


def test_forked_children_share_memory_that_counts_once(make_harness: Callable[[], Harness]) -> None:
    """Four workers with the same 60 MiB are far below 150 MiB, though their resident sizes add up to 300."""
    harness = make_harness()
    source = (
        "import os, time\n"
        "held = bytearray(b'x') * (60 << 20)\n"
        "for _ in range(4):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        time.sleep(1.2)\n"
        "        os._exit(0)\n"
        "for _ in range(4):\n"
        "    os.wait()\n"
    )
    harness.start(harness.launch("w.a1", python(source), memory_bytes=150 << 20))
    assert harness.wait_for("w.a1", "gone").outcome == "succeeded"
    harness.close()


def test_second_keeper_leaves_at_once(make_harness: Callable[[], Harness]) -> None:
    harness = make_harness()
    harness.start(harness.launch("w.a1", FOREVER))
    harness.wait_for("w.a1", "started")
    folder = folder_of(harness, "w.a1")
    before = folder.keeper()
    command = [sys.executable, "-m", "groundplane.platform.engines.local.keeper", str(folder.path)]
    assert subprocess.run(command, check=False).returncode == 0
    assert folder.keeper() == before
    harness.stop("w.a1", grace_s=1.0)
    harness.wait_for("w.a1", "gone")
    assert subprocess.run(command, check=False).returncode == 0
    assert harness.whats("w.a1") == ["started", "gone"]
    harness.close()


def test_bare_sigterm_to_the_keeper_stops_the_work(make_harness: Callable[[], Harness]) -> None:
    harness = make_harness()
    harness.start(harness.launch("w.a1", FOREVER))
    harness.wait_for("w.a1", "started")
    os.kill(keeper_of(folder_of(harness, "w.a1")).pid, signal.SIGTERM)
    assert harness.wait_for("w.a1", "gone").outcome == "stopped"
    harness.close()


def test_stopped_process_is_ended(make_harness: Callable[[], Harness], tag: str) -> None:
    harness = make_harness()
    harness.start(harness.launch("w.a1", shell("kill -STOP $$")))
    harness.wait_for("w.a1", "started")
    harness.stop("w.a1", grace_s=5.0)
    assert harness.wait_for("w.a1", "gone").outcome == "stopped"
    assert left_behind(tag) == []
    harness.close()


def test_deleted_state_folder_ends_the_work(make_harness: Callable[[], Harness], tag: str) -> None:
    harness = make_harness()
    harness.start(harness.launch("w.a1", FOREVER))
    harness.wait_for("w.a1", "started")
    harness.close()
    folder = folder_of(harness, "w.a1")
    keeper = keeper_of(folder)
    os.rename(folder.path, folder.path.with_name("elsewhere"))
    assert processes.wait_gone(keeper.pid, keeper.start_ticks, 30.0)
    assert left_behind(tag) == []


def test_sweep_ends_everything_without_an_engine(
    make_harness: Callable[[], Harness], state: Path, tag: str
) -> None:
    harness = make_harness()
    source = FORK_DAEMON + "daemon()\nprint('up', flush=True)\nwhile True:\n    time.sleep(1000)\n"
    for number in range(3):
        harness.start(harness.launch(f"w{number}.a1", python(source)))
    harness.start(harness.launch("done.a1", shell("exit 0")))
    harness.wait_for("done.a1", "gone")
    logs = [harness.engine.log_path(f"w{number}.a1", 0) for number in range(3)]
    harness.wait(lambda: all(log.exists() and log.read_text() == "up\n" for log in logs))
    harness.close()
    os.kill(keeper_of(folder_of(harness, "w0.a1")).pid, signal.SIGKILL)
    os.kill(keeper_of(folder_of(harness, "w1.a1")).pid, signal.SIGSTOP)
    result = sweep(state, grace_s=0.2)
    assert result.ended == ("w0.a1", "w1.a1", "w2.a1")
    assert result.left == ()
    assert left_behind(tag) == []
    assert sweep(state).ended == ()
    again = make_harness()
    for number in range(3):
        again.reattach(f"w{number}.a1")
        again.wait_for(f"w{number}.a1", "gone")
    again.close()


def test_sweep_of_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert sweep(tmp_path / "nothing").ended == ()


def test_newer_fence_waits_for_the_older_one_to_be_gone(make_harness: Callable[[], Harness]) -> None:
    harness = make_harness()
    harness.start(harness.launch("w.a1", FOREVER, fence=1))
    harness.wait_for("w.a1", "started")
    harness.start(harness.launch("w.a1", FOREVER, fence=2))
    assert harness.wait_for("w.a1", "gone", 2).outcome == "start_failed"
    harness.stop("w.a1", 1, grace_s=1.0)
    harness.wait_for("w.a1", "gone", 1)
    harness.start(harness.launch("w.a1", shell("echo third"), fence=3))
    assert harness.wait_for("w.a1", "gone", 3).outcome == "succeeded"
    assert harness.engine.log_path("w.a1", 0).read_text() == "third\n"
    harness.close()


@pytest.mark.parametrize("work_id", ["", ".hidden", "a/b", "..", "x" * 300, "a~1"])
def test_work_id_that_cannot_be_a_folder(
    make_harness: Callable[[], Harness], state: Path, work_id: str
) -> None:
    harness = make_harness()
    harness.start(harness.launch(work_id, FOREVER))
    assert harness.wait_for(work_id, "gone").outcome == "start_failed"
    harness.stop(work_id)
    harness.reattach(work_id)
    harness.close()
    assert sorted(path.name for path in (state / "works").iterdir()) == [".engine-lock"]


def test_placement_elsewhere_starts_nothing(make_harness: Callable[[], Harness]) -> None:
    harness = make_harness()
    harness.start(harness.launch("w.a1", FOREVER, devices=[(99,)]))
    assert "devices [99] are not among" in harness.wait_for("w.a1", "gone").detail
    harness.start(harness.launch("w.a2", FOREVER, devices=[()]))
    assert harness.wait_for("w.a2", "gone").outcome == "start_failed"
    harness.start(harness.launch("w.a3", FOREVER, ready_url="https://127.0.0.1/x"))
    assert "http://HOST:PORT/PATH" in harness.wait_for("w.a3", "gone").detail
    harness.close()


def test_living_work_that_cannot_be_read_is_not_called_gone(
    make_harness: Callable[[], Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: WorkFolder) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    first = make_harness()
    launch = first.launch("w.a1", FOREVER)
    first.start(launch)
    first.wait_for("w.a1", "started")
    first.close()
    second = make_harness()
    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "launch", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            second.start(launch)
        with pytest.raises(OSError, match="Too many open files"):
            second.stop("w.a1")
    assert second.reports == []
    second.start(launch)
    second.wait_for("w.a1", "started")
    second.stop("w.a1", grace_s=1.0)
    second.wait_for("w.a1", "gone")


def test_one_engine_a_state_folder(make_harness: Callable[[], Harness]) -> None:
    harness = make_harness()
    with pytest.raises(InputError, match="another running control plane"):
        make_harness()
    harness.close()
    make_harness().close()


def test_cpus_that_this_machine_does_not_have(state: Path) -> None:
    with pytest.raises(InputError, match="got 4096"):
        LocalEngine(state, devices=[4096])


def test_program_that_cannot_be_executed(make_harness: Callable[[], Harness], tmp_path: Path) -> None:
    """Found only when it is executed, after rank 0 was started: rank 0 is ended, nothing was started."""
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    harness = make_harness()
    harness.start(harness.launch("w.a1", FOREVER, (str(broken),)))
    gone = harness.wait_for("w.a1", "gone")
    assert gone.outcome == "start_failed"
    assert "rank 1: cannot run" in gone.detail
    assert harness.whats("w.a1") == ["gone"]
    harness.close()


@pytest.mark.parametrize(
    ("command", "env"),
    [
        (("/bin/true", "a\0b"), {}),
        (("/bin/tr\0ue",), {}),
        ((), {}),
        (("",), {}),
        (("/bin/true",), {"A": "a\0b"}),
        (("/bin/true",), {"A=B": "c"}),
        (("/bin/true", "\udcff"), {}),
        (("/bin/true", "x" * 3_000_000), {}),
        (("/etc/passwd",), {}),
        (("/etc",), {}),
    ],
)
def test_command_that_no_machine_can_run(
    make_harness: Callable[[], Harness], command: tuple[str, ...], env: dict[str, str]
) -> None:
    harness = make_harness()
    harness.start(harness.launch("w.a1", FOREVER, command, env=env))
    gone = harness.wait_for("w.a1", "gone")
    assert gone.outcome == "start_failed"
    assert gone.detail
    assert harness.whats("w.a1") == ["gone"]


def test_state_folder_whose_name_is_not_utf_8(
    tmp_path: Path, new_harness: Callable[[Engine], Harness], tag: str
) -> None:
    state = tmp_path / os.fsdecode(b"st\xffate")
    harness = new_harness(LocalEngine(state))
    harness.start(harness.launch("w.a1", FOREVER))
    harness.wait_for("w.a1", "started")
    harness.stop("unknown.a1")
    harness.wait_for("unknown.a1", "gone")
    harness.close()
    assert sweep(state, 1.0).ended == ("w.a1",)


def test_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    log = LineLog(tmp_path / "log.jsonl")
    log.append(b"one", b"two")
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(b"thr")
    assert log.lines() == [b"one", b"two"]
    log.append(b"three")
    assert (tmp_path / "log.jsonl").read_bytes() == b"one\ntwo\nthree\n"


def test_launch_file_is_private(make_harness: Callable[[], Harness]) -> None:
    harness = make_harness()
    harness.start(harness.launch("w.a1", shell("exit 0"), env={"SECRET": "s"}))
    harness.wait_for("w.a1", "gone")
    folder = folder_of(harness, "w.a1")
    assert folder.launch_path.stat().st_mode & 0o777 == 0o600
    assert msgspec.json.decode(folder.launch_path.read_bytes())["ranks"][0]["env"]["SECRET"] == "s"
    harness.close()
