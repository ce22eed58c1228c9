"""Where a published run ran, and in which number formats: chip, servers and network from its row.

Does no I/O.
"""

from __future__ import annotations

import functools
import re

import msgspec

from groundplane.catalog.resolve import resolve_cluster, resolve_server
from groundplane.catalog.store import Catalog
from groundplane.perfmodel.passes import Precision
from groundplane.perfmodel.published_model import Row
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.errors import InputError


def published_cluster(shared: Row, num_chips: int) -> ClusterSpec:
    """The servers of a run's chip, with the network that its remarks state.

    Raises:
        InputError: a chip that the catalogue does not know or that comes in no server.
    """
    catalog = Catalog.shipped()
    chip = _chip_name(shared["chip"], catalog)
    server_name = "jean-zay-a100" if "Omni-Path" in shared["notes"] else catalog.default_server(chip)
    if server_name is None:
        raise InputError("a chip that comes in no server of the catalogue", value=shared["chip"])
    return _cluster_of(server_name, num_chips, _node_bytes_per_s(shared["notes"]))


@functools.cache
def _cluster_of(server_name: str, num_chips: int, node_bytes_per_s: float | None) -> ClusterSpec:
    server = resolve_server(server_name)
    nodes = max(1, -(-num_chips // server.num_chips))
    cluster = resolve_cluster(f"{server_name}x{nodes}")
    if node_bytes_per_s is None or cluster.server.nics is None:
        return cluster
    nics = cluster.server.nics
    cards = msgspec.structs.replace(nics, rate_bytes_per_s=node_bytes_per_s / nics.count)
    name = f"{cluster.name}-{node_bytes_per_s:.3g}"
    return msgspec.structs.replace(
        cluster, name=name, server=msgspec.structs.replace(cluster.server, nics=cards)
    )


def _node_bytes_per_s(notes: str) -> float | None:
    """Network rate of a server, where the remarks of a row state it."""
    match = re.search(r"(\d+)\s*x\s*(\d+)\s*Gb(?:ps|/s)?\s*(?:RoCE|IB|HDR|EDR)?\s*(?:per node|/node)", notes)
    if match:
        return int(match[1]) * int(match[2]) * 1e9 / 8
    match = re.search(r"(\d+)x(\d+)Gb \w+ per node", notes)
    if match:
        return int(match[1]) * int(match[2]) * 1e9 / 8
    match = re.search(r"(\d+)\s*Gb(?:ps|/s) inter-node", notes)
    return int(match[1]) * 1e9 / 8 if match else None


def _chip_name(text: str, catalog: Catalog) -> str:
    """The chip of the catalogue; remarks in brackets are left aside.

    Raises:
        InputError: no such chip.
    """
    plain = re.sub(r"\(.*?\)", "", text).strip()
    tries = [plain, text, plain.replace(" ", "-"), re.sub(r"\s\d+GB.*$", "", plain)]
    for name in tries:
        if catalog.has("chips", name):
            return name
    raise InputError("a chip that the catalogue does not know", value=text)


def published_precision(text: str, opened: list[str]) -> Precision:
    """Number formats of a run; `opened` gets "precision" where the row states none."""
    low = text.lower()
    if not low:
        opened.append("precision")
        return Precision()
    if "fp4" in low:
        return Precision("fp4")
    if "mxfp8" in low or "fp8-mx" in low or "32x32" in low or "blockwise" in low:
        return Precision("fp8_block")
    if "fp8" in low or "float8" in low:
        return Precision("fp8")
    if "fp16" in low:
        return Precision("fp16", "fp16")
    return Precision()
