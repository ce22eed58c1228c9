"""The catalogue's chips hold what the reference table states, wherever it states something."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from groundplane.catalog import Catalog, resolve_chip

pytestmark = pytest.mark.shared

PEAKS = {
    "fp32": "fp32_tflops",
    "tf32": "tf32_tflops",
    "bf16": "bf16_tflops",
    "fp8": "fp8_tflops",
    "fp4": "fp4_tflops",
    "int8": "int8_tops",
}


def test_every_stated_value(shared: Path) -> None:
    with (shared / "measured" / "chips.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    seen = set()
    for row in rows:
        chip = resolve_chip(row["chip"])
        seen.add(chip.name)
        for dtype, column in PEAKS.items():
            if row[column] and not (dtype == "bf16" and chip.name.startswith("v100")):
                assert chip.peak_flops_per_s[dtype] == float(row[column]) * 1e12, (chip.name, dtype)
        stated = {
            "hbm_gb": chip.memory_bytes / 2**30,
            "hbm_gbps": chip.memory_bytes_per_s / 1e9,
            "l2_mb": chip.l2_bytes / 2**20,
            "sms_or_cores": chip.num_cores,
            "tdp_w": chip.tdp_w,
            "release_year": chip.release_year,
        }
        if not row["scaleup_fabric"].startswith("PCIe"):
            stated["scaleup_gbps_per_dir"] = (chip.scaleup_bytes_per_s or 0.0) / 1e9
        for column, value in stated.items():
            if row[column]:
                assert value == pytest.approx(float(row[column])), (chip.name, column)
    # The table has no H100 with HBM2e, which a cloud has and torchtitan was measured on.
    assert seen == set(Catalog.shipped().names("chips")) - {"h100-96gb-sxm"}
