"""Checkpoints: copied before they are written, complete or invisible, verified, fenced, kept as asked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from groundplane.platform.training.checkpoint import Checkpoints, read_manifest
from groundplane.platform.training.failures import TrainingFailure
from groundplane.platform.training.fence import Fence
from groundplane.spec.errors import InputError

IDENTITY = {"model.layers": 2, "seed": 0}


class Setting:
    """One attempt's checkpoints in a folder, with what it committed and said."""

    def __init__(self, job_dir: Path, ranks: Any, fence: int, identity: dict[str, Any] | None = None) -> None:
        self.committed: list[int] = []
        self.said: list[str] = []
        self.folder = job_dir / "checkpoints"
        holder = Fence(job_dir, fence)
        self.checkpoints = Checkpoints(
            self.folder,
            ranks,
            fence=holder,
            attempt=holder.attempt,
            keep=2,
            identity=identity or IDENTITY,
            on_commit=self.committed.append,
            log=self.said.append,
        )

    def save(self, step: int) -> None:
        self.checkpoints.save(state(step), step=step, loss=1.0 / step, tokens=10 * step)
        self.checkpoints.finish()

    def load(self) -> tuple[Any, dict[str, torch.Tensor]]:
        into = state(0)
        return self.checkpoints.load_latest(lambda: into), into


def state(step: int) -> dict[str, torch.Tensor]:
    return {
        "model.a": torch.full((300, 7), float(step)),
        "random.0": torch.full((9,), step, dtype=torch.uint8),
    }


@pytest.fixture
def saved(tmp_path: Path, alone: Any) -> Setting:
    """Steps 4, 8 and 12 saved by attempt 1, of which 8 and 12 are kept."""
    setting = Setting(tmp_path, alone, 1)
    assert setting.load()[0] is None
    for step in (4, 8, 12):
        setting.save(step)
    return setting


def test_the_newest_is_read_back_and_the_last_two_are_kept(saved: Setting) -> None:
    assert saved.committed == [4, 8, 12]
    assert sorted(entry.name for entry in saved.folder.iterdir()) == ["step-12", "step-8"]
    manifest, loaded = saved.load()
    assert (manifest.step, manifest.loss, manifest.tokens) == (12, 1 / 12, 120)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state(12).items())


def test_training_may_go_on_while_a_save_is_written(tmp_path: Path, alone: Any) -> None:
    setting = Setting(tmp_path, alone, 1)
    live = state(5)
    setting.checkpoints.save(live, step=5, loss=1.0, tokens=1)
    for tensor in live.values():
        tensor.fill_(99)
    setting.checkpoints.finish()
    assert torch.equal(setting.load()[1]["model.a"], state(5)["model.a"])


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove", "manifest", "no manifest"])
def test_a_damaged_one_is_passed_over_for_the_one_before(saved: Setting, harm: str) -> None:
    newest = saved.folder / "step-12"
    data = next(newest.glob("*.distcp"))
    if harm == "truncate":
        os.truncate(data, data.stat().st_size - 1)
    elif harm == "flip":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif harm == "remove":
        data.unlink()
    elif harm == "manifest":
        manifest = newest / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"tokens": 120', '"tokens": 121'))
    else:
        (newest / "manifest.json").unlink()
    manifest, loaded = saved.load()
    assert manifest.step == 8
    assert torch.equal(loaded["model.a"], state(8)["model.a"])
    assert len(saved.said) == 1
    assert saved.said[0].startswith("checkpoint step-12 is skipped, the one before it is taken: ")
    saved.save(12)
    assert saved.load()[0].step == 12


def test_half_written_ones_are_invisible_and_go_away(saved: Setting, alone: Any, tmp_path: Path) -> None:
    torn = saved.folder / "step-16.tmp.f1"
    torn.mkdir()
    (torn / "__0_0.distcp").write_bytes(b"torn")
    following = Setting(tmp_path, alone, 2)
    assert following.load()[0].step == 12
    assert not torn.exists()


def test_another_model_is_refused(saved: Setting, alone: Any, tmp_path: Path) -> None:
    other = Setting(tmp_path, alone, 2, {"model.layers": 3, "seed": 0})
    with pytest.raises(
        InputError, match=r"^model.layers: checkpoint step-12 was made with model.layers 2; .*, got 3$"
    ):
        other.load()


def test_a_superseded_attempt_changes_nothing(saved: Setting, alone: Any, tmp_path: Path) -> None:
    Fence(tmp_path, 2)
    saved.checkpoints.save(state(16), step=16, loss=1.0, tokens=1)
    with pytest.raises(TrainingFailure, match="attempt with fence 1 is superseded by fence 2"):
        saved.checkpoints.finish()
    assert saved.committed == [4, 8, 12]
    assert read_manifest(saved.folder / "step-16")[0] is None
    assert not (saved.folder / "step-16").exists()
    with pytest.raises(TrainingFailure, match="superseded"):
        Fence(tmp_path, 1)


def test_an_unnumbered_attempt_follows_the_last_one(tmp_path: Path) -> None:
    assert [Fence(tmp_path, None).number, Fence(tmp_path, 7).number, Fence(tmp_path, None).number] == [
        1,
        7,
        8,
    ]


def test_a_full_disk_ends_the_run_with_2(saved: Setting) -> None:
    full = saved.folder / "step-16.tmp.f1" / "__0_0.distcp"
    full.parent.mkdir()
    full.symlink_to("/dev/full")
    saved.checkpoints.save(state(16), step=16, loss=1.0, tokens=1)
    with pytest.raises(TrainingFailure, match=r"could not be written: .*No space left on device") as caught:
        saved.checkpoints.finish()
    assert caught.value.exit_code == 2
    assert saved.committed == [4, 8, 12]


def test_a_save_that_fails_is_said_at_the_next_one(saved: Setting) -> None:
    (saved.folder / "step-16.tmp.f1").write_text("a file where the folder should be")
    saved.checkpoints.save(state(16), step=16, loss=1.0, tokens=1)
    with pytest.raises(TrainingFailure, match="checkpoint"):
        saved.save(20)
