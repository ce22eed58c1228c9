"""Chooses the few published training runs that ship with the catalogue, for `groundplane validate`.

    python calibration/cite_training.py

Papers and project pages only; of each source's runs every so-manyth is taken, nothing is chosen by error.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common

from groundplane.perfmodel.published import COLUMNS, Run, runs_of
from groundplane.perfmodel.validation.table import read_table

FILE = "training_measured.csv"
PAPERS = r"SC21|Korthikanti|MegaScale|BLOOM-176B|DeepSeek-V3|torchtitan|InternEvo train|llm-foundry"
MOST_OF_A_SOURCE = 6


def main() -> None:
    runs: dict[str, list[Run]] = {}
    for run in runs_of(read_table(common.measured_folder() / FILE, COLUMNS)):
        if re.search(PAPERS, run.shared["source"]):
            runs.setdefault(run.shared["source"], []).append(run)
    kept = [run for members in runs.values() for run in spread(members)]
    path = common.CALIBRATION / "points_training.csv"
    rows = 0
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for run in kept:
            for metric, value in run.metrics.items():
                writer.writerow(run.shared | {"metric": metric, "value": f"{value:g}"})
                rows += 1
    outputs = ["src/groundplane/catalog/calibration/points_training.csv"]
    common.write_manifest("cited_training", "calibration/cite_training.py", {FILE: rows}, outputs)
    sys.stdout.write(f"{len(kept)} runs, {rows} rows\n")


def spread(runs: list[Run]) -> list[Run]:
    """At most `MOST_OF_A_SOURCE` runs, evenly through the source's order."""
    count = min(MOST_OF_A_SOURCE, len(runs))
    return [runs[(2 * place + 1) * len(runs) // (2 * count)] for place in range(count)]


if __name__ == "__main__":
    main()
