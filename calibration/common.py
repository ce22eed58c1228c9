"""What the fitting scripts share: where measurements lie, how folds are drawn, how files are written."""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from groundplane.catalog.resolve import resolve_chip
from groundplane.perfmodel.evidence import Evidence, FloatArray
from groundplane.spec.cluster import ChipSpec

REPOSITORY = Path(__file__).resolve().parent.parent
CALIBRATION = REPOSITORY / "src" / "groundplane" / "catalog" / "calibration"
FOLDS = 5


def measured_folder() -> Path:
    """The folder of published measurements: $GROUNDPLANE_SHARED/measured, else ../shared/measured."""
    shared = os.environ.get("GROUNDPLANE_SHARED")
    folder = Path(shared) if shared else REPOSITORY.parent / "shared"
    return folder / "measured"


def read_rows(name: str) -> list[dict[str, str]]:
    """All rows of one file of measurements."""
    with (measured_folder() / name).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


@functools.cache
def table_chip(name: str) -> ChipSpec:
    """The catalogue's chip for a name as the tables write it."""
    return resolve_chip(name.lower())


def folds_of(keys: Sequence[object], seed: int = 1) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A fold for each row, equal keys together: what is held out has no row of its key in the fit."""
    names = [repr(key) for key in keys]
    unique = sorted(set(names))
    drawn = np.random.default_rng(seed).permutation(len(unique)) % FOLDS
    fold = dict(zip(unique, drawn.tolist(), strict=True))
    return np.array([fold[name] for name in names])


def abs_pct(ratio: FloatArray) -> FloatArray:
    """Absolute error of the prediction in per cent of the measurement, from measured / predicted."""
    return np.asarray(100.0 * np.abs(1.0 / ratio - 1.0), dtype=np.float64)


def error_line(ratio: FloatArray) -> str:
    """Median, 90th percentile and signed bias for a table."""
    error = abs_pct(ratio)
    bias = 100.0 * float(np.mean(1.0 / ratio - 1.0))
    return f"{np.median(error):.1f} | {np.quantile(error, 0.9):.1f} | {bias:+.1f}"


def rounded(evidence: Evidence) -> dict[str, Any]:
    """Evidence as plain data with 4 digits."""
    return {
        "grade": evidence.grade,
        "ratio_p10": round(evidence.ratio_p10, 4),
        "ratio_p50": round(evidence.ratio_p50, 4),
        "ratio_p90": round(evidence.ratio_p90, 4),
        "num_points": evidence.num_points,
        "source": evidence.source,
    }


def write_json(path: Path, data: Any) -> None:
    """Writes readable JSON, with lists of numbers on one line each."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    number = r"-?[0-9.]+(?:e-?[0-9]+)?"
    numbers = re.compile(rf"\[\s*({number}(?:,\s*{number})*)\s*\]")
    text = numbers.sub(lambda found: "[" + " ".join(found[1].split()) + "]", text)
    path.write_text(text + "\n", encoding="utf-8")


def write_manifest(fit: str, script: str, inputs: dict[str, int], outputs: Sequence[str]) -> None:
    """Names every input file of a fit, with its digest and the rows used."""
    folder = REPOSITORY / "calibration" / "manifest"
    folder.mkdir(exist_ok=True)
    files = []
    for name, rows in inputs.items():
        digest = hashlib.sha256((measured_folder() / name).read_bytes()).hexdigest()
        files.append({"file": posixpath.normpath(f"measured/{name}"), "sha256": digest, "rows_used": rows})
    data = {"fit": fit, "script": script, "inputs": files, "outputs": list(outputs)}
    (folder / f"{fit}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
