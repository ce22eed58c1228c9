"""Control planes and keepers killed at random: each work runs at most once and ends exactly once.

A failure prints its seed. More seeds: GROUNDPLANE_STORM_SEEDS=1-20.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from engine_harness import TAG, wait_until

from groundplane.platform.engines.local import processes
from groundplane.platform.engines.local.folder import WorkFolder

pytestmark = pytest.mark.real

NUM_WORKS = 12
NUM_KILLS = 6

CONTROL_PLANE = """
import asyncio, sys
from pathlib import Path
from groundplane.control.actions import RankPlacement
from groundplane.platform.engines.contract import Launch
from groundplane.platform.engines.local.engine import LocalEngine

async def main(state, name, value, num_works):
    gone = set()
    engine = LocalEngine(Path(state))

    def on_report(report):
        print(report.work_id, report.position, report.what, report.outcome or "-", flush=True)
        if report.what == "gone":
            gone.add(report.work_id)

    await engine.open(on_report)
    for number in range(int(num_works)):
        # A daemon, a short sleep, and an exit code of its own each.
        run = f"echo run >> '{state}/ran-{number}'; (setsid sleep 1000 &); "
        run += f"sleep 0.{number % 10}; exit {number % 3}"
        commands = (("/bin/sh", "-c", run), ("/bin/sh", "-c", "exit 0"))
        placement = (RankPlacement("local", (0,)),) * 2
        launch = Launch(f"w{number}.a1", 1, "attempt", placement, commands, ({name: value},) * 2, 2**30)
        await engine.reattach(launch.work_id, 1)
        await engine.start(launch)
    while len(gone) < int(num_works):
        await asyncio.sleep(0.02)
    await engine.close()

asyncio.run(main(*sys.argv[1:]))
"""


def seeds() -> list[int]:
    first, _, last = os.environ.get("GROUNDPLANE_STORM_SEEDS", "1-2").partition("-")
    return list(range(int(first), int(last or first) + 1))


def kill_a_keeper(state: Path, choose: random.Random) -> None:
    paths = sorted((state / "works").glob("*/keeper.json"))
    if not paths:
        return
    with suppress(FileNotFoundError):
        keeper = WorkFolder(choose.choice(paths).parent).keeper()
        if keeper is not None and processes.is_alive(keeper.pid, keeper.start_ticks):
            os.kill(keeper.pid, 9)


@pytest.mark.parametrize("seed", seeds())
def test_each_work_ends_exactly_once(tmp_path: Path, tag: str, seed: int) -> None:
    choose = random.Random(seed)
    state = tmp_path / "state"
    state.mkdir()
    output = tmp_path / "output"
    command = [sys.executable, "-c", CONTROL_PLANE, str(state), TAG, tag, str(NUM_WORKS)]
    for kill in range(NUM_KILLS + 1):
        with output.open("ab") as stream, subprocess.Popen(command, stdout=stream) as control_plane:
            if kill == NUM_KILLS:
                wait_until(lambda: control_plane.poll() is not None)
                assert control_plane.returncode == 0
                break
            end_s = time.monotonic() + choose.uniform(0.1, 0.9)
            kill_s = time.monotonic() + choose.uniform(0.1, 2.0)
            wait_until(lambda: time.monotonic() > min(end_s, kill_s) or control_plane.poll() is not None)  # noqa: B023
            if kill_s < end_s:
                kill_a_keeper(state, choose)
            control_plane.kill()
    reports: dict[tuple[str, str], tuple[str, str]] = {}
    for line in output.read_text().splitlines():
        work_id, position, what, outcome = line.split(" ")
        assert reports.setdefault((work_id, position), (what, outcome)) == (what, outcome)
    for number in range(NUM_WORKS):
        mine = [report for (work_id, _), report in reports.items() if work_id == f"w{number}.a1"]
        outcomes = [outcome for what, outcome in mine if what == "gone"]
        assert len(outcomes) == 1
        ran = state / f"ran-{number}"
        assert not ran.exists() or ran.read_text() == "run\n"
        if outcomes == ["succeeded"]:
            assert number % 3 == 0
            assert ran.exists()
        lines = WorkFolder(state / "works" / f"w{number}.a1").reports_path.read_bytes().splitlines()
        assert [msgspec.json.decode(line)["what"] for line in lines].count("gone") == 1
