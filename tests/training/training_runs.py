"""A small corpus and a small model to train in tests, and readers for what a run leaves."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from groundplane.platform.training import launch
from groundplane.spec.job import LlamaShape, TrainSpec

TINY_SHAPE = LlamaShape(layers=2, hidden=64, ffn=128, heads=4, kv_heads=2, vocab=400)
WORDS = """
    def return class import self for if else value index name the of a table row 12 345
    Ünïcode “quoted” 中文 don't we'll x += 1 # note
""".split()  # noqa: SIM905


def write_corpus(folder: Path) -> Path:
    """Some 60 kB of made-up text in three files, the same every time."""
    source = random.Random(7)
    folder.mkdir(parents=True)
    for number in range(3):
        lines = [
            " " * 4 * source.randrange(3) + " ".join(source.choices(WORDS, k=source.randrange(1, 9)))
            for _ in range(700)
        ]
        (folder / f"{number}.txt").write_text("\n".join(lines) + "\n")
    return folder


def tiny_spec(corpus: Path, **changes: Any) -> TrainSpec:
    """A run of 24 steps that takes about a second, start-up apart."""
    spec = TrainSpec(
        model=TINY_SHAPE,
        data=(str(corpus),),
        seq=32,
        global_batch=8,
        micro_batch=2,
        steps=24,
        learning_rate=3e-3,
        warmup_steps=4,
        checkpoint_every=4,
    )
    return msgspec.structs.replace(spec, **changes)


def read_lines(work_dir: Path) -> list[dict[str, Any]]:
    """The whole lines of `progress.jsonl`; a half-written last one is left out."""
    file = work_dir / "progress.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def losses(work_dir: Path) -> dict[int, float]:
    """Loss by step, as reported."""
    return {line["step"]: line["loss"] for line in read_lines(work_dir) if "step" in line}


def wait_for(condition: Callable[[], bool], gang: launch.LocalGang, limit_s: float = 300.0) -> bool:
    """Polls until `condition` holds; false where the gang ended before."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if all(process.poll() is not None for process in gang.processes):
            return condition()
        if time.monotonic() > deadline:
            pytest.fail(f"nothing happened for {limit_s} s")
        time.sleep(0.001)
    return True


def final(job_dir: Path) -> dict[str, Any]:
    """The run's `final.json`."""
    result: dict[str, Any] = json.loads((job_dir / "final.json").read_text())
    return result
