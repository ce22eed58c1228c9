"""Where the hosts of a cluster stand, and how the devices in one are joined: read from what sites have.

Read are topograph models, Slurm's `topology.conf`, NCCL's topology and graph XML, and the output of
`nvidia-smi topo -m`. The first two describe a fabric, the last two the inside of one host. What a file does
not say stays empty. Knows of no scheduler and of no price.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from groundplane.spec.errors import InputError, unknown_name
from groundplane.spec.load import read_text

LEVELS: Final = ("zone", "spine", "leaf", "domain")
"""The domains around a host, the widest first: zone, spine block, leaf or rack, NVLink domain."""


class HostTopology(Struct, frozen=True, forbid_unknown_fields=True):
    """One host. Texts are "" and counts 0 where the file does not say.

    `domain` is the NVLink domain that reaches beyond the host. `islands` are the sets of its devices that
    reach each other over NVLink or xGMI, each in ascending order; `numa` is the NUMA node of each device.
    """

    name: str
    num_devices: int = 0
    num_cards: int = 0
    islands: tuple[tuple[int, ...], ...] = ()
    numa: tuple[int, ...] = ()
    domain: str = ""
    leaf: str = ""
    spine: str = ""
    zone: str = ""


class ClusterTopology(Struct, frozen=True, forbid_unknown_fields=True):
    """All hosts that a file describes, in its order."""

    source: str
    hosts: tuple[HostTopology, ...]

    def paths(self) -> list[tuple[str, ...]]:
        """The domains around each host, the widest first, as the scheduler takes them.

        Levels that no host has are left out. An NVLink domain that spans leaves comes before them.
        """
        leaf_of: dict[str, set[str]] = {}
        for host in self.hosts:
            leaf_of.setdefault(host.domain, set()).add(host.leaf)
        spans_leaves = any(domain and len(leaves) > 1 for domain, leaves in leaf_of.items())
        order = ("zone", "spine", "domain", "leaf") if spans_leaves else LEVELS
        kept = [level for level in order if any(getattr(host, level) for host in self.hosts)]
        return [tuple(str(getattr(host, level)) for level in kept) for host in self.hosts]


class TopologyFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The topology of a cluster file: `file` beside it, `format` one of `FORMATS` ("" to find out)."""

    file: str
    format: str = ""


def read_topology(path: str | Path, format_name: str = "") -> ClusterTopology:
    """Reads a topology file.

    Args:
        path: the file.
        format_name: one of `FORMATS`; "" finds out from the content.

    Raises:
        InputError: unknown format, or a file that is none or is wrong.
    """
    from groundplane.spec.topology_fabric import read_slurm, read_topograph
    from groundplane.spec.topology_host import read_nccl, read_topo_matrix

    readers: dict[str, Callable[[str, str], ClusterTopology]] = {
        "topograph": read_topograph,
        "slurm": read_slurm,
        "nccl": read_nccl,
        "nvidia-smi": read_topo_matrix,
    }
    text = read_text(Path(path))
    found = format_name or _format_of(text, str(path))
    if found not in readers:
        raise unknown_name("topology format", found, FORMATS, field="format").at(file=str(path))
    return readers[found](text, str(path))


FORMATS: Final = ("topograph", "slurm", "nccl", "nvidia-smi")
"""What can be read."""


def _format_of(text: str, file: str) -> str:
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("<"):
        return "nccl"
    lines = [line.split("#", 1)[0].strip() for line in start.splitlines()]
    words = [line for line in lines if line]
    if any(line.lower().startswith(("switchname=", "blockname=")) for line in words):
        return "slurm"
    if words and "GPU0" in words[0]:
        return "nvidia-smi"
    if any(line.startswith(("switches:", "blocks:", '"switches"', "{")) for line in words):
        return "topograph"
    rule = f"is no topology that is understood ({', '.join(FORMATS)})"
    raise InputError(rule, file=file)
