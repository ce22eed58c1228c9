"""The inside of one host: NCCL's topology and graph XML, and what `nvidia-smi topo -m` prints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from groundplane.spec.errors import InputError
from groundplane.spec.topology import ClusterTopology, HostTopology

_GPU_CLASS = "0x03"
"""PCI base class of display and 3D controllers, and of AMD's accelerators."""
_NETWORK_CLASS = "0x02"
_SWITCH_CLASS = "0x0680"
"""PCI class by which NCCL knows an NVSwitch, as the target of a link."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def read_nccl(text: str, file: str) -> ClusterTopology:
    """A `<system>` of NCCL or RCCL, or a `<graphs>` file, of which the devices are known and no more.

    Devices are `<gpu>` elements and PCI functions of class 0x03 without one, in the order of the file; cards
    are `<net>` elements and PCI functions of class 0x02 without one. A file may leave classes to be found on
    the machine itself (AWS g5): it describes a host, and does not say how many devices it has.

    Raises:
        InputError: not XML, not of NCCL, or no accelerator in it.
    """
    try:
        root = ElementTree.fromstring(text.lstrip("\ufeff \t\r\n"))
    except ElementTree.ParseError as error:
        raise InputError(f"is not valid XML: {error.msg}", file=file, line=error.position[0]) from None
    name = Path(file).stem
    if root.tag == "graphs":
        devices = {gpu.get("dev", "") for gpu in root.iter("gpu")}
        if not devices:
            raise InputError("names no gpu", file=file)
        return ClusterTopology("nccl", (HostTopology(name, len(devices)),))
    if root.tag != "system":
        raise InputError("must be a system or graphs of NCCL", file=file, value=root.tag)
    found = _System()
    for cpu in root.findall("cpu"):
        found.walk(cpu, _whole(cpu.get("numaid")), "")
    if not found.numa and not found.num_unclassed:
        raise InputError("has no accelerator (a gpu element, or PCI class 0x03...)", file=file)
    host = HostTopology(name, len(found.numa), found.num_cards, found.islands(), tuple(found.numa))
    return ClusterTopology("nccl", (host,))


class _System:
    """What is found in a `<system>`, element by element."""

    def __init__(self) -> None:
        self.numa: list[int] = []
        self.num_cards = 0
        self.num_unclassed = 0
        self._busids: dict[str, list[int]] = {}
        self._links: list[tuple[int, str, str]] = []

    def walk(self, element: ElementTree.Element, numa: int, busid: str) -> None:
        """Goes down the PCI tree."""
        for child in element:
            kind = child.get("class", "")
            if child.tag == "gpu":
                self._device(numa, busid, child)
            elif child.tag == "net":
                self.num_cards += 1
            elif child.tag == "pci":
                self.num_unclassed += not kind
                if kind.startswith(_GPU_CLASS) and child.find("gpu") is None:
                    self._device(numa, child.get("busid", ""), child)
                if kind.startswith(_NETWORK_CLASS) and next(child.iter("net"), None) is None:
                    self.num_cards += 1
                self.walk(child, numa, child.get("busid", ""))
            else:
                self.walk(child, numa, busid)

    def _device(self, numa: int, busid: str, element: ElementTree.Element) -> None:
        index = len(self.numa)
        self.numa.append(numa)
        self._busids.setdefault(busid, []).append(index)
        for link in (*element.findall("nvlink"), *element.findall("xgmi")):
            self._links.append((index, link.get("target", ""), link.get("tclass", "")))

    def islands(self) -> tuple[tuple[int, ...], ...]:
        """Devices joined by links; all that reach a switch are joined through it."""
        pairs, at_switch = [], []
        for index, target, kind in self._links:
            if kind.startswith(_SWITCH_CLASS):
                at_switch.append(index)
            pairs += [(index, other) for other in self._busids.get(target, ()) if other != index]
        pairs += [(at_switch[0], other) for other in at_switch[1:]]
        return _joined(len(self.numa), pairs)


def read_topo_matrix(text: str, file: str) -> ClusterTopology:
    """The matrix that `nvidia-smi topo -m` prints, with or without colours."""
    rows = [line for line in _ANSI.sub("", text).splitlines() if line.strip()]
    header = [cell.strip() for cell in rows[0].split("\t")] if rows else []
    devices = [cell for cell in header if re.fullmatch(r"GPU\d+", cell)]
    if not devices:
        raise InputError("must begin with a line that names GPU0", file=file, line=1)
    cards = [cell for cell in header if re.fullmatch(r"NIC\d+|mlx5_\d+", cell)]
    names = [cell for cell in header if cell]
    numa_column = names.index("NUMA Affinity") + 1 if "NUMA Affinity" in names else -1
    pairs: list[tuple[int, int]] = []
    numa: list[int] = []
    for index, device in enumerate(devices):
        row = next((line for line in rows[1:] if line.split("\t")[0].strip() == device), None)
        cells = [] if row is None else [cell.strip() for cell in row.split("\t")]
        if len(cells) <= len(devices):
            raise InputError(f"must have a row of {device} with {len(devices)} devices", file=file)
        links = cells[1 : len(devices) + 1]
        pairs += [(index, other) for other, link in enumerate(links) if re.fullmatch(r"NV\d+", link)]
        numa.append(_whole(cells[numa_column] if 0 <= numa_column < len(cells) else None))
    islands = _joined(len(devices), pairs)
    known_numa = tuple(numa) if all(number >= 0 for number in numa) else ()
    host = HostTopology(Path(file).stem, len(devices), len(cards), islands, known_numa)
    return ClusterTopology("nvidia-smi", (host,))


def _joined(num_devices: int, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """The sets of two or more devices that pairs join, each by way of others too."""
    leader = list(range(num_devices))
    for one, other in pairs:
        kept, gone = sorted((leader[one], leader[other]))
        leader = [kept if each == gone else each for each in leader]
    sets: dict[int, list[int]] = {}
    for index, first in enumerate(leader):
        sets.setdefault(first, []).append(index)
    return tuple(tuple(members) for members in sets.values() if len(members) > 1)


def _whole(text: str | None) -> int:
    """A whole number, -1 where there is none."""
    return int(text) if text is not None and re.fullmatch(r"\d+", text) else -1
