"""Recorded workloads are read as they are, and refused with one line where they are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from groundplane.control.events import Gang
from groundplane.sim.traces import TraceOptions, read_gavel, read_trace
from groundplane.sim.workload import Training, at_load, load_of
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


OPTIONS = TraceOptions(devices_per_node=8)


def test_any_csv(tmp_path: Path) -> None:
    text = "job_id,submit_s,devices,run_s,queue,priority,predicted_s\nb,110,16,60,q,5,90\na,100,1,0,,,\n"
    jobs = read_trace(write(tmp_path, "jobs.csv", text), OPTIONS)
    assert [(job.job_id, job.submit_ns, job.gang) for job in jobs] == [
        ("a", 0, Gang(1, 1, 0)), ("b", 10 * 10**9, Gang(2, 8, 0)),
    ]  # fmt: skip
    assert [(job.run_ns, job.predicted_run_ns) for job in jobs] == [(10**9, 10**9), (60 * 10**9, 90 * 10**9)]
    assert [(job.queue, job.priority) for job in jobs] == [("default", 0), ("q", 5)]


def test_columns_by_other_names_and_training(tmp_path: Path) -> None:
    text = "when,gpus,model,global_batch,seq,steps\n0,8,llama-3-8b,64,2048,10\n"
    columns = {"submit_s": "when", "devices": "gpus"}
    (job,) = read_trace(write(tmp_path, "jobs.csv", text), TraceOptions(8, columns=columns))
    assert (job.run_ns, job.training) == (0, Training("llama-3-8b", 64, 2048, 10))


def test_the_acme_columns_are_known(tmp_path: Path) -> None:
    header = "job_id,arrival_time,num_iteration,iteration_computing_time,gpu_workers,gpu_per_worker\n"
    (job,) = read_trace(write(tmp_path, "acme.csv", header + "0,5.0,208,0.5,4,8.0\n"), OPTIONS)
    assert (job.submit_ns, job.gang, job.run_ns) == (0, Gang(4, 8, 0), 104 * 10**9)


def test_a_load_is_made_by_other_arrivals(tmp_path: Path) -> None:
    text = "submit_s,devices,run_s\n0,4,100\n100,4,100\n"
    jobs = read_trace(write(tmp_path, "jobs.csv", text), OPTIONS)
    assert load_of(jobs, 8) == pytest.approx(1.0)
    assert [job.submit_ns for job in at_load(jobs, 0.5, 8)] == [0, 200 * 10**9]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no header"),
        ("submit_s,devices,run_s\n", "has no jobs"),
        ("submit,devices,run_s\n0,1,1\n", "submit_s: has no column 'submit_s'"),
        ("submit_s,devices\n0,1\n", "run_s: has no column 'run_s'"),
        ("submit_s,devices,run_s\n0,1\n", "jobs.csv:2: must have 3 cells"),
        ("submit_s,devices,run_s\n0,1,x\n", "jobs.csv:2: run_s: must be a number"),
        ("submit_s,devices,run_s\n0,1,nan\n", "jobs.csv:2: run_s: must be a number"),
        ("submit_s,devices,run_s\n0,1.5,1\n", "jobs.csv:2: devices: must be a whole number"),
        ("submit_s,devices,run_s\n0,0,1\n", "jobs.csv:2: devices: must be a number from 1"),
        ("submit_s,devices,run_s\n-1,1,1\n", "jobs.csv:2: submit_s"),
        ("job_id,submit_s,devices,run_s\na,0,1,1\na,0,1,1\n", "job_id: must not name a job twice"),
        ("submit_s,devices,run_s\n0,1,1\n1e12,1,1\n", "submit_s: must not spread over more than"),
        ('submit_s,devices,run_s\n0,1,"' + "x" * 200_000, "is no CSV: field larger than field limit"),
    ],
)
def test_bad_csvs_are_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_trace(write(tmp_path, "jobs.csv", text), OPTIONS)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_lists_need_run_times(tmp_path: Path) -> None:
    write(tmp_path, "a.trace", ROW.format("0.0", 1))
    with pytest.raises(InputError, match="run times"):
        read_trace(tmp_path, OPTIONS)


@pytest.mark.shared
def test_the_known_traces_are_read(shared: Path) -> None:
    traces = shared / "traces"
    times = traces / "philly-runtimes" / "philly_runtime.csv"
    philly = read_trace(traces / "philly-gavel", TraceOptions(8, run_times=times))
    assert len(philly) == 8328
    assert len({job.queue for job in philly}) == 8
    acme = read_trace(traces / "acme" / "converted_kalos_trace.csv", OPTIONS)
    assert (len(acme), max(job.num_devices for job in acme)) == (319, 1024)
