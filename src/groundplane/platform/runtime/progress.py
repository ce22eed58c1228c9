"""What works tell of their progress: `progress.jsonl`, appended by rank 0. Blocks on files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

READ_LIMIT_BYTES: Final = 4 << 20
"""Newest part of a long file that is read; what is older is left out of the sums."""


class Progress(Struct, frozen=True):
    """The last step told, its loss, and the time spent in each stage over all steps told."""

    last_step: int | None
    last_loss: float | None
    stages_ns: dict[str, int]


def read(folders: Iterable[Path]) -> Progress:
    """Sums up the progress of a job's attempts, oldest first. Lines that cannot be read are passed over."""
    last_step: int | None = None
    last_loss: float | None = None
    stages_ns: dict[str, int] = {}
    for folder in folders:
        for line in _lines(folder / "progress.jsonl"):
            if isinstance(line.get("step"), int):
                last_step = line["step"]
                last_loss = line["loss"] if isinstance(line.get("loss"), float) else last_loss
            stages = line.get("stages")
            for name, spent_ns in stages.items() if isinstance(stages, dict) else ():
                if isinstance(spent_ns, int):
                    stage = str(name).removesuffix("_ns")
                    stages_ns[stage] = stages_ns.get(stage, 0) + spent_ns
    return Progress(last_step, last_loss, stages_ns)


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - READ_LIMIT_BYTES))
            content = file.read()
    except FileNotFoundError:
        return []
    lines = []
    for raw in content[: content.rfind(b"\n") + 1].splitlines():
        try:
            line = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines
