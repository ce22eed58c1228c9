"""The JSON Schemas that editors use accept what the loader accepts."""

from __future__ import annotations

from typing import Any

import pytest

from groundplane.catalog.file_schema import cluster_file_schema
from groundplane.spec.job import JobSpec
from groundplane.spec.schema import file_schema

jsonschema = pytest.importorskip("jsonschema")

MEASURED: dict[str, Any] = {
    "kind": "cluster",
    "name": "a",
    "nodes": 1,
    "server": {
        "name": "s",
        "chips": 1,
        "scaleup_size": 1,
        "chip": {
            "name": "c",
            "vendor": "V",
            "kind": "cpu",
            "peak": {"bf16": "1 TFLOP/s"},
            "memory": 1048576,
            "memory_bandwidth": "10 GB/s",
            "measured": {"matmuls": [{"dtype": "fp32", "m": 1, "n": 1, "k": 1, "time": "2 us"}]},
        },
    },
    "fabric": {"kind": "loopback", "topology": "loopback", "latency": "20 us"},
}
GOOD: list[dict[str, Any]] = [
    MEASURED,
    {"kind": "cluster", "name": "a", "nodes": 4, "server": "dgx-h100"},
    {
        "kind": "cluster",
        "name": "a",
        "nodes": 4,
        "catalog": "more.yaml",
        "chips": {"mine": {"base": "h100", "memory": "94 GiB"}},
        "server": {"base": "dgx-h100", "chip": "mine"},
        "fabric": {"base": "roce-400g", "latency": "3 us"},
        "storage": "lustre-small",
    },
]
BAD: list[dict[str, Any]] = [
    {"kind": "cluster", "name": "a", "nodes": 0, "server": "dgx-h100"},
    {"kind": "cluster", "name": "a", "node": 4, "server": "dgx-h100"},
    {"kind": "cluster", "name": "a", "nodes": 4, "server": {"chips": 4}},
    {"kind": "cluster", "name": "a", "nodes": 4, "server": "dgx-h100", "fabric": {"latency": "1 us"}},
]


@pytest.mark.parametrize("data", GOOD)
def test_good_cluster_files(data: dict[str, Any]) -> None:
    jsonschema.validate(data, cluster_file_schema())


@pytest.mark.parametrize("data", BAD)
def test_bad_cluster_files(data: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, cluster_file_schema())


def test_quantities_may_be_written_with_their_unit() -> None:
    job = {"kind": "job", "name": "j", "command": ["true"], "memory_per_rank": "2 GiB", "time_limit": "1 h"}
    jsonschema.validate(job, file_schema(JobSpec))
    jsonschema.validate({**job, "memory_per_rank": 4096}, file_schema(JobSpec))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**job, "memory_per_rank": []}, file_schema(JobSpec))
