"""Chips, servers and clusters as structs: what they refuse and compute, and their way to YAML and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.spec.cluster import (
    ChipSpec,
    ClusterSpec,
    FabricSpec,
    MatmulPoint,
    MeasuredChip,
    NicSpec,
    ServerSpec,
)
from groundplane.spec.dump import to_yaml
from groundplane.spec.errors import InputError
from groundplane.spec.load import from_data, load

CHIP: dict[str, Any] = {
    "name": "c",
    "vendor": "V",
    "kind": "gpu",
    "peak": {"bf16": "100 TFLOP/s"},
    "memory": "16 GiB",
    "memory_bandwidth": "1 TB/s",
}


def _chip(**changes: Any) -> ChipSpec:
    return from_data({**CHIP, **changes}, ChipSpec)


def _cluster(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "cluster",
        "name": "k",
        "nodes": 4,
        "server": {
            "name": "s",
            "chip": CHIP,
            "chips": 8,
            "scaleup_size": 8,
            "nics": {"count": 8, "rate": "400 Gb/s"},
        },
        "fabric": {"kind": "infiniband", "topology": "fat-tree", "latency": "1 us"},
        **changes,
    }


def test_counts_and_rates() -> None:
    cluster = from_data(_cluster(), ClusterSpec)
    assert cluster.num_chips == 32
    assert cluster.scaleup_size == 8
    assert cluster.server.nic_bytes_per_s == 8 * 50e9
    assert cluster.chip.name == "c"


def test_a_scaleup_domain_is_never_larger_than_the_cluster() -> None:
    server = {"name": "tray", "chip": CHIP, "chips": 4, "scaleup_size": 72}
    assert from_data(_cluster(server=server, nodes=2), ClusterSpec).scaleup_size == 8
    assert from_data(_cluster(server=server, nodes=36), ClusterSpec).scaleup_size == 72


def test_peaks_of_formats_that_a_chip_lacks() -> None:
    chip = _chip(peak={"fp32": "10 TFLOP/s", "fp16": "100 TFLOP/s"})
    assert chip.peak("bf16") == chip.peak("fp8") == chip.peak("fp4") == 100e12
    assert chip.peak("tf32") == chip.peak("fp32") == 10e12
    with pytest.raises(InputError, match="no peak for fp32"):
        _chip().peak("fp32")
    with pytest.raises(InputError, match="unknown number format"):
        _chip().peak("bf61")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peak": {}}, "peak: must have the peak of at least one number format"),
        ({"peak": {"fp61": "1 TFLOP/s"}}, "peak: unknown number format; known: bf16"),
        ({"memory": 94}, "memory: must be at least 1 MiB (a bare number is bytes), got 94"),
        ({"memory_bandwidth": 3350}, "memory_bandwidth: needs a unit"),
        ({"peak": {"bf16": "0 TFLOP/s"}}, "peak[...]: must be a number > 0.0"),
        ({"kind": "gpux"}, "kind: must be one of cpu, gpu, npu, tpu, got 'gpux'; did you mean 'gpu'?"),
        ({"memry": "1 GiB"}, "memry: unknown field; did you mean 'memory'?"),
    ],
)
def test_bad_chips(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        _chip(**change)
    assert str(caught.value).startswith(message)


def test_a_torus_must_multiply_to_its_domain() -> None:
    server = {"name": "s", "chip": CHIP, "chips": 4, "scaleup_size": 64, "scaleup_torus": [4, 4, 4]}
    assert from_data(server, ServerSpec).scaleup_torus == (4, 4, 4)
    with pytest.raises(InputError, match="must multiply to scaleup_size"):
        from_data({**server, "scaleup_torus": [4, 4]}, ServerSpec)


def test_fabric_refusals() -> None:
    fabric = {"kind": "roce", "topology": "fat-tree", "latency": "2 us"}
    with pytest.raises(InputError, match="must be at least 1"):
        from_data({**fabric, "oversubscription": 0.5}, FabricSpec)
    with pytest.raises(InputError, match="is only for topology torus"):
        from_data({**fabric, "torus": [4, 4]}, FabricSpec)


def test_servers_without_cards_have_no_injection() -> None:
    assert (
        from_data({"name": "s", "chip": CHIP, "chips": 1, "scaleup_size": 1}, ServerSpec).nic_bytes_per_s
        == 0.0
    )


@settings(deadline=None, max_examples=30)
@given(
    st.integers(min_value=2**20, max_value=2**45),
    st.floats(min_value=1e6, max_value=1e14),
    st.floats(min_value=1e-9, max_value=10.0),
    st.integers(min_value=1, max_value=10_000),
)
def test_a_cluster_survives_yaml(memory_bytes: int, rate: float, time_s: float, nodes: int) -> None:
    measured = MeasuredChip(matmuls=(MatmulPoint("bf16", 8, 16, 32, time_s),))
    chip = msgspec.structs.replace(
        _chip(), memory_bytes=memory_bytes, memory_bytes_per_s=rate, measured=measured
    )
    server = ServerSpec("s", chip, 2, 2, nics=NicSpec(1, rate))
    cluster = ClusterSpec("k", server, nodes, FabricSpec("roce", "fat-tree", time_s))
    again = from_data(yaml.safe_load(to_yaml(cluster)), ClusterSpec)
    assert again.num_nodes == nodes
    assert again.chip.memory_bytes == memory_bytes
    assert again.chip.memory_bytes_per_s == pytest.approx(rate, rel=1e-4)
    assert again.chip.measured is not None
    assert again.chip.measured.matmuls[0].time_s == pytest.approx(time_s, rel=1e-4)
    # Once written, a file reads and writes the same for ever.
    assert from_data(yaml.safe_load(to_yaml(again)), ClusterSpec) == again


def test_a_written_file_loads(tmp_path: Path) -> None:
    cluster = from_data(_cluster(), ClusterSpec)
    file = tmp_path / "cluster.yaml"
    file.write_text(to_yaml(cluster))
    assert load(file, ClusterSpec) == cluster
