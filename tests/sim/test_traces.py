"""Recorded workloads are read as they are, and refused with one line where they are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from groundplane.control.events import Gang
from groundplane.sim.traces import read_gavel
from groundplane.spec.errors import InputError

ROW = "ResNet-18 (batch size 32)\tcd x && python3 main.py\t--num_steps\t1\t1104675\t{}\t{}\n"


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_lists_are_merged_by_arrival(tmp_path: Path) -> None:
    first = write(tmp_path, "a.trace", ROW.format("0.0", 1) + ROW.format("20.0", 16))
    second = write(tmp_path, "b.trace", ROW.format("10.0", 8))
    times = write(tmp_path, "runtime.csv", "runtime\n0.0\n")
    jobs = read_gavel([first, second], run_times=times, devices_per_node=8, seed=0, speed=2.0)
    assert [job.submit_ns for job in jobs] == [0, 5 * 10**9, 10 * 10**9]
    assert [job.gang for job in jobs] == [Gang(1, 1, 0), Gang(1, 8, 0), Gang(2, 8, 0)]
    assert {job.run_ns for job in jobs} == {10**9}


@pytest.mark.parametrize("row", ["nothing\n", ROW.format("x", 1), ROW.format("-1", 1), ROW.format("1", 0)])
def test_a_line_that_is_no_job_is_named(tmp_path: Path, row: str) -> None:
    trace = write(tmp_path, "a.trace", ROW.format("0.0", 1) + row)
    times = write(tmp_path, "runtime.csv", "runtime\n5\n")
    with pytest.raises(InputError, match=r"a\.trace"):
        read_gavel([trace], run_times=times, devices_per_node=8, seed=0)


@pytest.mark.parametrize("text", ["runtime\n", "runtime\nx\n", "runtime\n-1\n"])
def test_run_times_that_are_none(tmp_path: Path, text: str) -> None:
    trace = write(tmp_path, "a.trace", ROW.format("0.0", 1))
    with pytest.raises(InputError, match=r"runtime\.csv"):
        read_gavel([trace], run_times=write(tmp_path, "runtime.csv", text), devices_per_node=8, seed=0)
