"""Topology files of every format: what is found in small ones, and one clear line for bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from groundplane.catalog import resolve_cluster
from groundplane.spec.errors import InputError
from groundplane.spec.topology import HostTopology, read_topology
from groundplane.spec.topology_fabric import expand_names

MODEL = """
switches:
  core: {switches: [spine-1, spine-2]}
  spine-1: {switches: [leaf-1], labels: {topology.kubernetes.io/zone: east}}
  spine-2: {switches: [leaf-2]}
blocks:
- switch: leaf-1
  nodes: ["n[08-10]", m]
  annotations: {accelerator.example/domain: nvl-1}
- switch: leaf-2
  nodes: [z]
"""
TREE = """# a tree
SwitchName=core Switches=spine[1-2]
SwitchName=spine1 Switches=leaf1 LinkSpeed=400
SwitchName=spine2 Switches=leaf2
SwitchName=leaf1 Nodes=a[1-2],b \\
  # a comment after a continued line
SwitchName=leaf2 Nodes=c
"""
BLOCKS = "BlockName=one Nodes=a[1-2]\nblockname=two nodes=b\nBlockSizes=2,4\n"
SYSTEM = """<?xml version="1.0"?>
<!-- two pairs, one card that is named and one that is not -->
<system version="1">
 <cpu numaid="1"><pci busid="0:1" class="0x060400">
  <pci busid="0:2" class="0x030200"><gpu dev="0"><nvlink target="0:3" tclass="0x030200"/></gpu></pci>
  <pci busid="0:3" class="0x030200"><gpu dev="1"/></pci>
  <pci busid="0:4" class="0x020700"><nic><net name="mlx5_0" dev="0"/></nic></pci>
 </pci></cpu>
 <cpu numaid="0">
  <pci busid="0:5" class="0x030200"><gpu dev="2"><nvlink target="0:9" tclass="0x068000"/></gpu></pci>
  <pci busid="0:6" class="0x030200"><gpu dev="3"><nvlink target="0:9" tclass="0x068000"/></gpu></pci>
  <pci busid="0:7" class="0x020000"/>
 </cpu>
</system>"""
MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV4\tSYS\tPIX\t0-7\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tSYS\tSYS\t0-7\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tSYS\t8-15\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\tSYS\t X \n\nLegend:\n  NV#  = NVLinks\n"
)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_topograph_model(tmp_path: Path) -> None:
    topology = read_topology(write(tmp_path, "model.yaml", MODEL))
    assert topology.source == "topograph"
    assert [host.name for host in topology.hosts] == ["n08", "n09", "n10", "m", "z"]
    assert topology.hosts[3] == HostTopology("m", domain="nvl-1", leaf="leaf-1", spine="spine-1", zone="east")
    assert topology.paths()[-1] == ("core", "spine-2", "leaf-2", "")


def test_a_domain_that_spans_leaves_is_the_wider_one(tmp_path: Path) -> None:
    text = "blocks:\n" + "".join(
        f"- {{switch: '', nodes: [n{index}], annotations: {{x/domain: nvl}}}}\n" for index in range(2)
    )
    assert read_topology(write(tmp_path, "model.yaml", text)).paths() == [("nvl",), ("nvl",)]
    text = MODEL.replace("  nodes: [z]", "  nodes: [z]\n  annotations: {accelerator.example/domain: nvl-1}")
    assert read_topology(write(tmp_path, "model.yaml", text)).paths()[0] == (
        "east", "spine-1", "nvl-1", "leaf-1",
    )  # fmt: skip


def test_a_slurm_tree(tmp_path: Path) -> None:
    topology = read_topology(write(tmp_path, "topology.conf", TREE))
    assert [(host.name, host.leaf, host.spine, host.zone) for host in topology.hosts] == [
        ("a1", "leaf1", "spine1", "core"),
        ("a2", "leaf1", "spine1", "core"),
        ("b", "leaf1", "spine1", "core"),
        ("c", "leaf2", "spine2", "core"),
    ]


def test_slurm_blocks(tmp_path: Path) -> None:
    topology = read_topology(write(tmp_path, "topology.conf", BLOCKS))
    assert [(host.name, host.domain) for host in topology.hosts] == [
        ("a1", "one"),
        ("a2", "one"),
        ("b", "two"),
    ]
    assert topology.paths() == [("one",), ("one",), ("two",)]


def test_an_nccl_system(tmp_path: Path) -> None:
    (host,) = read_topology(write(tmp_path, "topo.xml", SYSTEM)).hosts
    assert host == HostTopology("topo", 4, 2, ((0, 1), (2, 3)), (1, 1, 0, 0))


def test_nccl_graphs_and_systems_without_classes(tmp_path: Path) -> None:
    graphs = "<graphs><graph><channel><gpu dev='0'/><gpu dev='1'/></channel></graph></graphs>"
    assert read_topology(write(tmp_path, "graph.xml", graphs)).hosts[0].num_devices == 2
    bare = "<system><cpu numaid='0'><pci busid='0:1'/></cpu></system>"
    assert read_topology(write(tmp_path, "bare.xml", bare)).hosts[0].num_devices == 0


def test_an_nvidia_smi_matrix(tmp_path: Path) -> None:
    (host,) = read_topology(write(tmp_path, "topo.txt", MATRIX)).hosts
    assert host == HostTopology("topo", 3, 1, ((0, 1),), (0, 0, 1))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("a[1-3,7]x,b", ["a1x", "a2x", "a3x", "a7x", "b"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("", []),
    ],
)
def test_host_lists(pattern: str, names: list[str]) -> None:
    assert expand_names(pattern, {}) == names


@pytest.mark.parametrize("pattern", ["a[1-", "a]", "a[[1]]", "a[x]", "a[3-1]", "a[1-9999999]", "a[1][2]"])
def test_bad_host_lists(pattern: str) -> None:
    with pytest.raises(InputError):
        expand_names(pattern, {"file": "f"})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.xml", "<system>", "t.xml:1: is not valid XML"),
        ("t.xml", "<other/>", "must be a system or graphs of NCCL, got 'other'"),
        ("t.xml", "<system><cpu/></system>", "has no accelerator"),
        ("t.xml", "<graphs/>", "names no gpu"),
        ("t.conf", "SwitchName=a Switches=leef\nSwitchName=leaf Nodes=n1\n", "did you mean 'leaf'"),
        ("t.conf", "SwitchName=a Nodes\n", "t.conf:1: must be NAME=VALUE, got 'Nodes'"),
        ("t.conf", "SwitchName=a Switches=b Nodes=n\nSwitchName=b Switches=a\n", "go in a circle"),
        ("t.conf", "SwitchName=a\n", "names no nodes"),
        ("t.conf", "SwitchName=a Nodes=n\nNode=b\n", "t.conf:2: must begin with SwitchName"),
        ("t.yaml", "switches: {}\n", "blocks: must list its nodes under blocks"),
        ("t.yaml", MODEL.replace("switch: leaf-2", "switch: leaf-3"), "blocks[1].switch: is no switch"),
        ("t.yaml", MODEL.replace("[z]", "[m]"), "is in two blocks, got 'm'"),
        ("t.yaml", MODEL.replace("[leaf-2]", "[leaf-1]"), "is below two switches"),
        ("t.txt", "hello\n", "is no topology that is understood"),
        ("t.txt", "\tGPU0\tGPU1\nGPU0\t X \tNV1\n", "must have a row of GPU1"),
        ("t.txt", "", "is no topology that is understood"),
    ],
)  # fmt: skip
def test_bad_files_are_one_clear_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_topology(write(tmp_path, name, text))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_formats_are_known_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'slurm'"):
        read_topology(write(tmp_path, "t.conf", BLOCKS), "slrum")


def test_a_cluster_file_names_its_topology(tmp_path: Path) -> None:
    write(tmp_path, "topology.conf", BLOCKS)
    text = "kind: cluster\nname: c\nnodes: 3\nserver: dgx-h100\ntopology: {file: topology.conf}\n"
    cluster = resolve_cluster(write(tmp_path, "cluster.yaml", text))
    assert cluster.topology is not None
    assert len(read_topology(cluster.topology.file).hosts) == 3
    with pytest.raises(InputError, match=r"cluster.yaml:5: topology.file: must describe the 4 nodes"):
        resolve_cluster(write(tmp_path, "cluster.yaml", text.replace("nodes: 3", "nodes: 4")))
    write(tmp_path, "topo.xml", SYSTEM)
    with pytest.raises(InputError, match="must give topo the 8 chips of the server, got 4"):
        resolve_cluster(write(tmp_path, "cluster.yaml", text.replace("topology.conf", "topo.xml")))


@pytest.mark.shared
def test_every_known_file_is_read(shared: Path) -> None:
    folder = shared / "traces" / "topology"
    systems = sorted(folder.rglob("*.xml"))
    assert len(systems) == 69
    for path in systems:
        (host,) = read_topology(path).hosts
        assert host.num_devices in ((0,) if path.name.startswith("g5") else (3, 4, 8, 16)), path
        assert len(host.numa) in (0, host.num_devices)
    (host,) = read_topology(folder / "nvidia-smi" / "h100-topo-m.txt").hosts
    assert (host.num_devices, host.num_cards, host.islands) == (8, 18, (tuple(range(8)),))
    assert host.numa == (0, 0, 0, 0, 1, 1, 1, 1)
    models = {path.stem: read_topology(path) for path in (folder / "topograph" / "models").glob("*.yaml")}
    assert {name: len(topology.hosts) for name, topology in models.items()} == {
        "small-tree": 6, "medium": 8, "large": 96, "nvl72": 72, "dual-xclr-regular": 96,
        "dual-xclr-irregular": 255,
    }  # fmt: skip
    for path in (folder / "topograph" / "ci").glob("*.conf"):
        assert len(read_topology(path).hosts) == 96
