"""What the tour sees of works from their folders: steps, pids, memory. Reads only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from groundplane.tour.result import StepPoint


def steps_of(state: Path, job_id: str) -> list[StepPoint]:
    """All steps that a job's attempts have told of, in the order in which they were made."""
    points = []
    for folder in attempt_folders(state, job_id):
        for line in _lines(folder / "progress.jsonl"):
            if isinstance(line.get("step"), int) and "loss" in line:
                points.append(StepPoint(folder.name, line["step"], float(line["loss"]), int(line["time_ns"])))
    return points


def attempt_folders(state: Path, job_id: str) -> list[Path]:
    """Folders of a job's attempts, oldest first."""
    folders = (state / "works").glob(f"{job_id}.a*")
    return sorted(folders, key=lambda folder: int(re.sub(r".*\.a", "", folder.name)))


def rank_pids(state: Path, job_id: str) -> list[int]:
    """Pids of the newest attempt's ranks, in the order of ranks; empty while there is none that runs."""
    folders = attempt_folders(state, job_id)
    if not folders:
        return []
    lines = _lines(folders[-1] / "reports.jsonl")
    if any(line.get("what") == "gone" for line in lines):
        return []
    return [pid for line in lines if line.get("what") == "started" for pid in line["pids"]]


def resident_bytes(pids: Iterable[int]) -> int:
    """Largest resident set among processes that are alive; 0 when none is."""
    peak = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        peak = max(peak, int(match[1]) * 1024 if match else 0)
    return peak


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = content[: content.rfind(b"\n") + 1]
    return [msgspec.json.decode(line) for line in whole.splitlines()]
