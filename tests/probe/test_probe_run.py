"""The probe for real, in its quick form, and what it refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from groundplane.cli.plan import plan_command
from groundplane.cli.probe import probe_command
from groundplane.probe import disk, workers
from groundplane.probe.timer import Stopwatch
from groundplane.probe.worker import Task
from groundplane.spec.errors import InputError, InvariantError

JOB = """
kind: job
name: small
ranks: 2
train:
  model: {layers: 2, hidden: 128, ffn: 352, heads: 4, kv_heads: 2, vocab: 512}
  seq: 128
  global_batch: 16
  micro_batch: 4
"""


@pytest.mark.real
def test_probe_then_plan(tmp_path: Path) -> None:
    out = tmp_path / "cluster.yaml"
    runner = CliRunner()
    probed = runner.invoke(probe_command, ["--quick", "--json", "--out", str(out)], catch_exceptions=False)
    found = json.loads(probed.stdout)
    assert found["peak_flops_per_s"]["fp32"] > 1e9
    assert found["disk"]["fsync_s"] > 0
    assert not list(tmp_path.glob(".*"))
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    if len(found["machine"]["cores"]) < 2:
        pytest.skip("one core: a gang of two does not fit")
    planned = runner.invoke(
        plan_command, ["train", str(job), "--cluster", str(out), "--json"], catch_exceptions=False
    )
    estimate = json.loads(planned.stdout)
    assert estimate["fits"]
    assert sum(estimate["stages_s"].values()) == pytest.approx(estimate["step_s"])
    assert estimate["step_low_s"] < estimate["step_s"] < estimate["step_high_s"]


@pytest.mark.parametrize(
    ("out", "rule"), [("x.txt", "must end in .yaml"), ("no/such/x.yaml", "does not exist")]
)
def test_bad_output_is_refused_before_anything_is_measured(out: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        CliRunner().invoke(probe_command, ["--out", out], catch_exceptions=False)


def test_disk_is_measured_and_left_clean(tmp_path: Path) -> None:
    found = disk.measure_disk(tmp_path, 8 << 20)
    assert found.write_bytes_per_s > 1e6
    assert found.read_bytes_per_s > 1e6
    assert found.fsync_s > 0
    assert not list(tmp_path.iterdir())


def test_disk_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        disk.measure_disk(tmp_path / "missing", 1 << 20)


def test_stopwatch_finds_a_longer_operation_longer() -> None:
    watch = Stopwatch(0.01)
    short = watch.time_s(lambda: sum(range(1_000)))
    assert watch.time_s(lambda: sum(range(100_000))) > 10 * short
    assert watch.processor_s <= watch.wall_s * 1.5


def test_a_failing_process_is_told_with_its_last_line() -> None:
    task = Task("gloo", 0, 0.01, rank=5, rendezvous="nowhere://")
    with pytest.raises(InvariantError, match="measuring process failed with code 1"):
        workers.run_phase([task], lambda kind: None)


def test_points_of_several_processes_are_merged_by_their_median() -> None:
    lines = [
        workers.Line(
            "MatmulPoint",
            {"dtype": "fp32", "m": 2, "n": 2, "k": 2, "time_s": t, "which": "forward", "processes": 1},
        )
        for t in (1.0, 2.0, 9.0)
    ]
    (point,) = workers._merged(lines, 3)
    assert (point.time_s, point.processes) == (2.0, 3)
