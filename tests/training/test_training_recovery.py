"""A killed run ends in the bits of an undisturbed one."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from training_runs import final, losses, read_lines, tiny_spec, wait_for

from groundplane.platform.training import launch
from groundplane.platform.training.checkpoint import read_manifest
from groundplane.platform.training.files import sha256_file
from groundplane.spec.job import LlamaShape

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
PATIENCE_S = 300.0
CHOICE = random.Random(20261130)


def there(folder: Path, pattern: str) -> Callable[[], bool]:
    return lambda: any(folder.glob(pattern))


def at_step(work_dir: Path, step: int) -> Callable[[], bool]:
    return lambda: max(losses(work_dir), default=0) >= step


def kill_at(job_dir: Path, work_dir: Path, ranks: int, condition: Callable[[], bool]) -> bool:
    """Starts an attempt and ends one random rank by SIGKILL at `condition`, then the others.

    Returns whether the attempt was killed, not finished.
    """
    gang = launch.LocalGang(job_dir, work_dir, ranks)
    try:
        killed = wait_for(condition, gang)
        gang.processes[CHOICE.randrange(ranks)].send_signal(signal.SIGKILL)
        gang.wait(PATIENCE_S)
    finally:
        gang.kill()
    reported = [line["checkpoint"] for line in read_lines(work_dir) if "checkpoint" in line]
    if reported:
        manifest, problem = read_manifest(job_dir / "checkpoints" / f"step-{reported[-1]}")
        assert manifest is not None, f"reported as durable and is not: {problem}"
    return killed


def test_five_kills_leave_the_bits_of_the_undisturbed_run(
    undisturbed: Path, corpus: Path, tmp_path: Path
) -> None:
    job_dir = tmp_path / "job"
    launch.write_spec(job_dir, tiny_spec(corpus))
    first, second = CHOICE.randrange(5, 9), CHOICE.randrange(14, 20)
    points: list[Callable[[Path], Callable[[], bool]]] = [
        lambda _: there(job_dir, "data.tmp.*/tokens.bin"),
        lambda work: at_step(work, first),
        lambda _: there(job_dir, "checkpoints/step-*.tmp.f3/*"),
        lambda work: at_step(work, second),
        lambda _: there(job_dir, "export.tmp.*/config.json"),
    ]
    kept: dict[int, float] = {}
    kills = 0
    for number, point in enumerate(points):
        work_dir = tmp_path / f"a{number}"
        kills += kill_at(job_dir, work_dir, 2, point(work_dir))
        kept |= losses(work_dir)
    assert launch.run_local(job_dir, tmp_path / "last", 2) == [0, 0], (
        tmp_path / "last" / "rank-0.log"
    ).read_text()
    kept |= losses(tmp_path / "last")
    assert kills == 5
    assert final(job_dir)["weights_sha256"] == final(undisturbed)["weights_sha256"]
    assert kept == losses(undisturbed / "work")
    assert not list(job_dir.glob("**/*.tmp.*"))


def test_fsdp2_resumes_in_the_same_bits(corpus: Path, tmp_path: Path) -> None:
    for name in ("plain", "killed"):
        launch.write_spec(tmp_path / name, tiny_spec(corpus, parallel="fsdp2", steps=12, checkpoint_every=3))
    assert launch.run_local(tmp_path / "plain", tmp_path / "p0", 2) == [0, 0]
    assert kill_at(tmp_path / "killed", tmp_path / "k0", 2, at_step(tmp_path / "k0", 7))
    assert launch.run_local(tmp_path / "killed", tmp_path / "k1", 2) == [0, 0]
    assert min(losses(tmp_path / "k1")) > 1
    assert final(tmp_path / "killed")["weights_sha256"] == final(tmp_path / "plain")["weights_sha256"]


def test_three_ranks_resume_in_the_same_bits(corpus: Path, tmp_path: Path) -> None:
    """Three ranks add in an order that depends on DDP's buckets, which it sorts anew after its first pass."""
    job_dir = tmp_path / "job"
    several_buckets = LlamaShape(layers=2, hidden=256, ffn=704, heads=8, kv_heads=4, vocab=400)
    spec = tiny_spec(corpus, model=several_buckets, global_batch=6, steps=6, warmup_steps=0)
    launch.write_spec(job_dir, spec)
    assert launch.run_local(job_dir, tmp_path / "whole", 3) == [0, 0, 0]
    expected = final(job_dir)["weights_sha256"]
    for name in ("checkpoints/step-6", "export"):
        shutil.rmtree(job_dir / name)
    (job_dir / "final.json").unlink()
    assert launch.run_local(job_dir, tmp_path / "rest", 3) == [0, 0, 0]
    assert list(losses(tmp_path / "rest")) == [5, 6]
    assert final(job_dir)["weights_sha256"] == expected


def test_sigterm_saves_and_another_number_of_ranks_goes_on(
    undisturbed: Path, corpus: Path, tmp_path: Path
) -> None:
    """Told to one rank, both stop after the same step with the state saved; one rank then trains the rest."""
    job_dir = tmp_path / "job"
    launch.write_spec(job_dir, tiny_spec(corpus, checkpoint_every=24))
    gang = launch.LocalGang(job_dir, tmp_path / "two", 2)
    try:
        assert wait_for(at_step(tmp_path / "two", 3), gang)
        os.kill(gang.processes[1].pid, signal.SIGTERM)
        assert gang.wait(PATIENCE_S) == [143, 143]
    finally:
        gang.kill()
    stopped_at = max(losses(tmp_path / "two"))
    assert read_lines(tmp_path / "two")[-1] == {"checkpoint": stopped_at}
    assert launch.run_local(job_dir, tmp_path / "one", 1) == [0]
    rest = losses(tmp_path / "one")
    assert list(rest) == list(range(stopped_at + 1, 25))
    expected = losses(undisturbed / "work")
    assert all(abs(rest[step] - expected[step]) < 1e-5 for step in rest)


def test_an_attempt_thought_dead_that_wakes_up_changes_nothing(corpus: Path, tmp_path: Path) -> None:
    """The old attempt is frozen, a new one trains to the end, and the old one is let go again."""
    job_dir = tmp_path / "job"
    launch.write_spec(job_dir, tiny_spec(corpus))
    old = launch.LocalGang(job_dir, tmp_path / "old", 1, fence=1)
    try:
        assert wait_for(at_step(tmp_path / "old", 5), old)
        old.processes[0].send_signal(signal.SIGSTOP)
        new = launch.LocalGang(job_dir, tmp_path / "new", 1, fence=2)
        try:
            assert new.wait(PATIENCE_S) == [0]
        finally:
            new.kill()
        before = contents(job_dir)
        old.processes[0].send_signal(signal.SIGCONT)
        assert old.wait(PATIENCE_S) == [1]
    finally:
        old.kill()
    assert contents(job_dir) == before
    assert any(reason in old.log(0) for reason in ("is superseded by fence 2", "could not be written"))


def contents(job_dir: Path) -> dict[str, str]:
    """SHA-256 of every file that has its final name."""
    files = (file for file in job_dir.rglob("*") if file.is_file())
    return {str(file): sha256_file(file) for file in files if ".tmp." not in str(file)}


def test_a_finished_job_is_left_alone(undisturbed: Path, tmp_path: Path) -> None:
    before = (undisturbed / "final.json").stat().st_mtime_ns
    assert launch.run_local(undisturbed, tmp_path / "again", 1) == [0]
    assert (undisturbed / "final.json").stat().st_mtime_ns == before
    assert "already complete" in (tmp_path / "again" / "rank-0.log").read_text()


def processes_naming(folder: Path) -> list[int]:
    """Pids of processes whose environment names a job's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) in environment:
                found.append(int(entry.name))
    return found


def test_the_process_that_builds_tokens_ends_with_its_rank(
    corpus: Path, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    job_dir = tmp_path / "job"
    launch.write_spec(job_dir, tiny_spec(corpus))
    gang = launch.LocalGang(job_dir, tmp_path / "work", 1)
    try:
        assert wait_for(there(job_dir, "*.tmp.*"), gang)
        gang.processes[0].send_signal(signal.SIGKILL)
        eventually(lambda: not processes_naming(job_dir), 60.0, "the end of all processes of the job")
    finally:
        gang.kill()
