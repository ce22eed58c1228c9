"""Chooses the few measured points that ship with the catalogue, as cited facts for `groundplane validate`.

    python calibration/cite_points.py

Of each source's rows every so-manyth is taken, to spread sizes and chips; nothing is chosen by error.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common

NETWORK_COLUMNS = (
    "source", "where", "chip", "n_nodes", "n_chips", "fabric", "collective", "message_bytes", "algbw_GBps",
    "busbw_GBps", "latency_us",
)  # fmt: skip


def main() -> None:
    kept: dict[str, int] = {}
    matmul = common.read_rows("kernels_gemm_measured.csv")
    kept["kernels_gemm_measured.csv"] = write(
        "points_matmul.csv",
        ("source", "where", "chip", "dtype", "m", "n", "k", "latency_us"),
        spread(matmul, ("chip", "dtype"), 2),
    )
    attention = common.read_rows("kernels_attention_measured.csv")
    kept["kernels_attention_measured.csv"] = write(
        "points_attention.csv",
        ("source", "where", "chip", "dtype", "batch", "seq", "heads", "kv_heads", "head_dim", "latency_us"),
        spread(attention, ("chip", "dtype"), 2),
    )
    total = 0
    network = []
    for name in ("network_aiconfigurator.csv", "network_measured.csv"):
        rows = [row for row in common.read_rows(name) if row["message_bytes"] and row["n_chips"]]
        chosen = spread(rows, ("source", "chip"), 12 if "measured" in name else 4)
        kept[name] = len(chosen)
        network += chosen
    total += write("points_network.csv", NETWORK_COLUMNS, network)
    runs = [row for row in common.read_rows("training_measured.csv") if row["metric"] == "memory_gb"]
    chosen = spread(runs, ("source",), 6)
    kept["training_measured.csv"] = write("points_memory.csv", tuple(runs[0]), chosen)
    outputs = [
        f"src/groundplane/catalog/calibration/points_{kind}.csv"
        for kind in ("matmul", "attention", "network", "memory")
    ]
    common.write_manifest("cited_points", "calibration/cite_points.py", kept, outputs)
    sys.stdout.write(f"{kept}\n")


def spread(rows: list[dict[str, str]], keys: tuple[str, ...], most: int) -> list[dict[str, str]]:
    """At most `most` rows of each group, evenly through the group's order in the file."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [
        members[(2 * place + 1) * len(members) // (2 * min(most, len(members)))]
        for members in groups.values()
        for place in range(min(most, len(members)))
    ]


def write(name: str, columns: tuple[str, ...], rows: list[dict[str, str]]) -> int:
    with (common.CALIBRATION / name).open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


if __name__ == "__main__":
    main()
