"""Devices as vendors' tools print them, and the description of a probed machine."""

import pytest
import yaml

from groundplane.perfmodel.eager import price_host_training
from groundplane.probe.machine import ascend_devices, detect_machine, rocm_devices, xpu_devices
from groundplane.probe.run import core_name, describe, num_busy_processes
from groundplane.spec.cluster import (
    BandwidthPoint,
    ClusterSpec,
    CollectivePoint,
    DiskSpec,
    MatmulPoint,
    OverheadPoint,
)
from groundplane.spec.dump import to_plain, to_yaml
from groundplane.spec.errors import InputError
from groundplane.spec.job import TrainSpec
from groundplane.spec.load import from_data, load

ROCM = """{"card0": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "206141652992"},
           "system": {"Driver version": "6.7"}}"""
XPU = '{"device_list": [{"device_id": 0, "device_name": "Intel Data Center GPU Max 1550"}]}'
NPU = """
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| 0     910B3               | OK            | 92.1        41                0    / 0             |
| 1     910B3               | OK            | 90.9        40                0    / 0             |
"""


def test_vendor_tools_are_understood() -> None:
    (card,) = rocm_devices(ROCM)
    assert (card.vendor, card.name, card.memory_bytes) == ("AMD", "AMD Instinct MI300X", 206141652992)
    assert [device.name for device in xpu_devices(XPU)] == ["Intel Data Center GPU Max 1550"]
    assert [device.name for device in ascend_devices(NPU)] == ["Ascend 910B3", "Ascend 910B3"]


@pytest.mark.parametrize("text", ["", "no devices", "[]"])
def test_output_of_no_use_means_no_devices(text: str) -> None:
    assert rocm_devices(text) == xpu_devices(text) == ascend_devices(text) == []


def test_this_machine_has_cores_and_memory() -> None:
    machine = detect_machine()
    assert machine.cores
    assert machine.memory_bytes > 2**28
    assert 1 <= num_busy_processes(machine) <= len(machine.cores)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("AMD EPYC 9454 48-Core Processor", "amd-epyc-9454-core"),
        ("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", "intel-xeon-platinum-8480c-core"),
        ("", "core"),
    ],
)
def test_core_names(model: str, name: str) -> None:
    assert core_name(model) == name


def described() -> ClusterSpec:
    points = (
        MatmulPoint("fp32", 1024, 1024, 1024, 0.025),
        MatmulPoint("fp32", 64, 64, 64, 1e-5, processes=2),
        BandwidthPoint(1 << 28, 2e10, "copy"),
        BandwidthPoint(1 << 28, 1.5e10, "copy", processes=2),
        OverheadPoint("eager_forward", 3e-6),
        CollectivePoint("all_reduce", 1 << 20, 2, 1.25e-3),
    )
    disk = DiskSpec(2e9, 1e9, 10**12, 1e-4)
    return describe(detect_machine(), points, disk, {"torch": "2.13.0"})


def test_description_takes_the_fastest_product_and_the_shared_bandwidth() -> None:
    chip = described().chip
    assert chip.peak_flops_per_s == {"fp32": pytest.approx(2 * 1024**3 / 0.025)}
    assert chip.memory_bytes_per_s == 1.5e10


def test_a_written_cluster_file_is_read_back_equal(tmp_path) -> None:
    cluster = described()
    file = tmp_path / "cluster.yaml"
    file.write_text(to_yaml(cluster))
    again = load(file, ClusterSpec)
    assert to_plain(again) == to_plain(cluster)
    assert again.server.disk == cluster.server.disk
    assert from_data(yaml.safe_load(to_yaml(again)), ClusterSpec) == again


def test_a_cluster_never_measured_is_refused_by_field() -> None:
    cluster = described()
    with pytest.raises(InputError, match=r"no measurement of .*run groundplane probe"):
        price_host_training(TrainSpec(), 1, cluster)
