"""What the process table says, on made-up tables and on this very process."""

from __future__ import annotations

import os
from pathlib import Path

from groundplane.platform.engines.local import launching, processes
from groundplane.platform.engines.local.guard import bound_log, last_lines
from groundplane.platform.engines.local.processes import Process


def table(*rows: tuple[int, int, str]) -> list[Process]:
    return [Process(pid, parent, pid, 100 + pid, state) for pid, parent, state in rows]


def test_descendants_come_parents_first_without_zombies() -> None:
    processes_now = table((2, 1, "S"), (5, 2, "S"), (3, 5, "R"), (4, 2, "Z"), (9, 1, "S"), (6, 4, "S"))
    assert [process.pid for process in processes.descendants(processes_now, 2)] == [5, 3, 6]
    assert processes.descendants(processes_now, 3) == []


def test_process_that_is_its_own_ancestor_ends_the_search() -> None:
    assert [p.pid for p in processes.descendants(table((1, 0, "S"), (0, 1, "S")), 0)] == [1]


def test_this_process_reads_itself() -> None:
    me = processes.read_process(os.getpid())
    assert me is not None
    assert (me.parent_pid, me.session_id) == (os.getppid(), os.getsid(0))
    assert processes.is_alive(me.pid, me.start_ticks)
    assert not processes.is_alive(me.pid, me.start_ticks + 1)
    assert processes.resident_bytes(me.pid) > 2**20
    assert processes.proportional_bytes(me.pid) > 0
    assert not processes.wait_gone(me.pid, me.start_ticks, 0.0)
    assert processes.wait_gone(me.pid, me.start_ticks + 1, 0.0)


def test_no_such_process() -> None:
    pid = int(Path("/proc/sys/kernel/pid_max").read_text())
    assert processes.read_process(pid) is None
    assert processes.resident_bytes(pid) == 0
    assert processes.proportional_bytes(pid) == 0
    assert processes.environment_value(pid, "PATH") == ""


def test_memory_is_no_more_than_the_machine_has() -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    total_kib = int(next(line for line in lines if line.startswith("MemTotal:")).split()[1])
    assert 0 < launching.memory_bytes() <= total_kib * 1024


def test_log_keeps_its_end_when_cut(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"a" * 60 + b"b" * 50)
    bound_log(log, limit_bytes=110)
    assert log.stat().st_size == 110
    bound_log(log, limit_bytes=100)
    assert (tmp_path / "rank-0.log.1").read_bytes() == b"a" * 50 + b"b" * 50
    assert log.read_bytes().startswith(b"[groundplane: more than 100 bytes")


def test_last_lines_are_few_and_short(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    assert last_lines(log) == ""
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    assert last_lines(log).splitlines() == [f"line {number}" for number in range(988, 1000)]
    log.write_bytes(b"\xff" * 10_000)
    assert len(last_lines(log)) <= 2048
