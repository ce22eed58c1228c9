"""What a rank says and how it ends when it cannot train."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from training_runs import TINY_SHAPE, read_lines, tiny_spec

from groundplane.platform.training import launch, worker
from groundplane.spec.errors import InputError
from groundplane.spec.job import LlamaShape


def attempt(job_dir: Path, ranks: int = 1) -> tuple[list[int], list[str]]:
    """Exit codes, and what the ranks said, without blank lines."""
    work_dir = job_dir.parent / "work"
    codes = launch.run_local(job_dir, work_dir, ranks)
    said = [(work_dir / f"rank-{rank}.log").read_text().splitlines() for rank in range(ranks)]
    return codes, [line for lines in said for line in lines if line]


@pytest.mark.real
def test_missing_data_is_one_line_and_2_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    launch.write_spec(tmp_path / "job", tiny_spec(tmp_path / "boks"))
    codes, said = attempt(tmp_path / "job")
    assert codes == [2]
    assert len(said) == 1
    assert said[0].startswith("groundplane: data[0]: no such file, folder or built-in corpus, got '")
    assert said[0].endswith("did you mean 'books'?")
    assert [file.name for file in (tmp_path / "job").iterdir()] == ["train.json"]


@pytest.mark.real
def test_another_model_in_the_same_folder_is_refused(undisturbed: Path, corpus: Path) -> None:
    spec = undisturbed / "train.json"
    before = spec.read_bytes()
    wider = msgspec.structs.replace(TINY_SHAPE, ffn=256)
    try:
        launch.write_spec(undisturbed, tiny_spec(corpus, model=wider, steps=30))
        codes, said = attempt(undisturbed)
    finally:
        spec.write_bytes(before)
    assert codes == [2]
    assert said == [
        "groundplane: model.ffn: checkpoint step-24 was made with model.ffn 128; "
        "take a new job folder or go back, got 256"
    ]


@pytest.mark.real
def test_a_loss_that_is_no_number_stops_the_run(corpus: Path, tmp_path: Path) -> None:
    launch.write_spec(tmp_path / "job", tiny_spec(corpus, learning_rate=1e30, warmup_steps=0))
    codes, said = attempt(tmp_path / "job")
    assert codes == [1]
    assert "stopped, the last checkpoint is step 0" in said[-1]
    assert not (tmp_path / "job" / "final.json").exists()
    assert all(line["loss"] == line["loss"] for line in read_lines(tmp_path / "work"))


def test_too_little_disk_is_said_before_anything_is_done(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, model=LlamaShape(layers=1000, hidden=65536, ffn=262144, heads=64, kv_heads=8))
    with pytest.raises(
        InputError, match=r"too little disk in .*: checkpoints and export need .* TiB, .* are free"
    ):
        worker.check_disk(tmp_path, spec)
    worker.check_disk(tmp_path, tiny_spec(tmp_path))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "GROUNDPLANE_JOB_DIR: must be set to a folder that exists, got None"),
        ({"RANK": "x"}, "RANK: must be set to a whole number, got 'x'"),
        ({"RANK": "2", "WORLD_SIZE": "2", "dirs": "1"}, "RANK: must be below WORLD_SIZE 2, got 2"),
        (
            {"dirs": "1", "GROUNDPLANE_FENCE": "-1"},
            "GROUNDPLANE_FENCE: must be set to a whole number, got '-1'",
        ),
    ],
)
def test_a_wrong_environment_is_named(environment: dict[str, str], message: str, tmp_path: Path) -> None:
    if environment.pop("dirs", None):
        environment |= {"GROUNDPLANE_JOB_DIR": str(tmp_path), "GROUNDPLANE_WORK_DIR": str(tmp_path)}
    with pytest.raises(InputError) as caught:
        worker.read_settings(environment)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stepz": 3}, "stepz: unknown field; did you mean 'steps'\\?"),
        ({"steps": 0}, "steps: .*>= 1, got 0"),
        ({"global_batch": 7}, "global_batch: must be divisible by micro_batch x ranks \\(2 x 2\\), got 7"),
        (None, "is not valid JSON"),
    ],
)
def test_a_wrong_train_json_is_named(change: dict[str, Any] | None, message: str, tmp_path: Path) -> None:
    launch.write_spec(tmp_path, tiny_spec(tmp_path))
    file = tmp_path / "train.json"
    file.write_text("{" if change is None else json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError) as caught:
        worker.read_spec(worker.Settings(0, 2, tmp_path, tmp_path, None))
    assert re.fullmatch(re.escape(f"{file}: ") + message, str(caught.value))
