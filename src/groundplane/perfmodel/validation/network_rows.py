"""From a row of a network table to a question that the collective model can answer.

Tables name chips, fabrics and collectives in words. What a row leaves open is inferred where the words allow
(and the row marked so), or the row is excluded with its reason. Knows the words, not the model.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel.collectives import KINDS, bus_bytes
from groundplane.perfmodel.validation.chip_names import chip_named
from groundplane.perfmodel.validation.table import Row

COLUMNS: Final = (
    "source", "chip", "n_nodes", "n_chips", "fabric", "collective", "message_bytes", "algbw_GBps",
    "busbw_GBps", "latency_us",
)  # fmt: skip


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured collective. `chip` is a catalogue name, `cards_bytes_per_s` all cards of a node."""

    row: int
    source: str
    chip: str
    fabric: str
    stack: str
    kind: str
    message_bytes: float
    inside: int
    domains: int
    measured_s: float
    link: str
    cards_bytes_per_s: float
    inferred: bool


class Unclear(Exception):
    """A row that cannot be compared; the message is the reason for the report."""


def case_of(row: Row) -> Case:
    """The question that a row asks, and its answer.

    Raises:
        Unclear: something needed is neither stated nor told by the words.
        InputError: a cell that should be a number is none.
    """
    kind, kind_inferred = _kind(row)
    inside, domains, group_inferred = _group(row)
    size, size_inferred = _message_bytes(row, kind)
    _agreement(row, kind, inside * domains)
    fabric = row.text("fabric")
    if domains > 1 and "not stated" in fabric:
        raise Unclear("the network between nodes is not stated")
    return Case(
        row=row.line,
        source=row.text("source"),
        chip=_chip(row),
        fabric=fabric,
        stack=_stack(row),
        kind=kind,
        message_bytes=size,
        inside=inside,
        domains=domains,
        measured_s=_seconds(row, kind, size, inside * domains),
        link=_link(fabric) if domains > 1 else "",
        cards_bytes_per_s=_cards(fabric) if domains > 1 else 0.0,
        inferred=kind_inferred or group_inferred or size_inferred,
    )


def _kind(row: Row) -> tuple[str, bool]:
    text = row.text("collective")
    if text in KINDS:
        return text, False
    words = text.lower()
    if "low-latency" in words:
        raise Unclear(f"collective {text!r}: low-latency expert kernels are priced with serving, not here")
    for word, kind in (("dispatch", "moe_dispatch"), ("combine", "moe_combine")):
        if words.startswith("moe") and word in words:
            return kind, False
    if "p2p" in words:
        return "send_recv", False
    raise Unclear(f"collective {text!r} is none of {', '.join(KINDS)}")


def _group(row: Row) -> tuple[int, int, bool]:
    """Ranks inside a domain, domains, and whether that had to be inferred."""
    fabric = row.text("fabric")
    nodes = row.number("n_nodes")
    chips_text = row.text("n_chips")
    printed = re.search(r"(\d+) ranks", f"{chips_text} {fabric}")
    chips = float(printed[1]) if printed is not None else row.number("n_chips")
    inferred = False
    if chips is None and row.text("collective").startswith("MoE") and nodes is not None:
        # The expert-parallel tables use whole nodes: eight chips, or the four of a compute tray.
        chips = nodes * (4.0 if "4-GPU" in fabric else 8.0)
    if chips is None:
        stated = re.search(r"(\d+) ranks = (\d+) nodes", row.text("notes"))
        if stated is None:
            raise Unclear("number of chips is not stated")
        chips, nodes, inferred = float(stated[1]), float(stated[2]), True
    if nodes is None:
        raise Unclear("number of nodes is not stated")
    if "NVL72" in fabric or "MNNVL" in fabric:
        nodes = 1.0
    if nodes < 1 or chips < 2 or chips % nodes:
        raise Unclear(f"{chips:g} chips on {nodes:g} nodes make no group")
    return int(chips // nodes), int(nodes), inferred


def _message_bytes(row: Row, kind: str) -> tuple[float, bool]:
    stated = row.number("message_bytes")
    if stated is not None and stated > 0:
        return stated, False
    notes = row.text("notes")
    tokens = re.search(r"([\d.]+)(K?) tokens(?:/batch)?, hidden (\d+)", notes)
    if tokens is not None and kind.startswith("moe_"):
        count = float(tokens[1]) * (1024.0 if tokens[2] else 1.0)
        return count * float(tokens[3]) * (1.0 if kind == "moe_dispatch" else 2.0), True
    default = re.search(r"default message (\d+) MB", notes)
    if default is not None:
        return float(default[1]) * 2**20, True
    raise Unclear("message size is not stated")


def _agreement(row: Row, kind: str, ranks: int) -> None:
    """Refuses a row whose two bandwidths cannot both be right.

    Raises:
        Unclear: bus over algorithm bandwidth is not the factor of the collective, by more than rounding.
    """
    bus, algorithm = row.number("busbw_GBps"), row.number("algbw_GBps")
    if not bus or not algorithm or bus < 1.0 or kind.startswith("moe_"):
        return
    factor = float(bus_bytes(kind, np.array(1.0), np.array(float(ranks))))
    if not 0.8 < bus / algorithm / factor < 1.25:
        raise Unclear(f"the printed bandwidths contradict each other: {algorithm:g} and {bus:g} GB/s")


def _seconds(row: Row, kind: str, size: float, ranks: int) -> float:
    latency = row.number("latency_us")
    if latency:
        return latency * 1e-6
    bus, algorithm = row.number("busbw_GBps"), row.number("algbw_GBps")
    if kind.startswith("moe_"):
        raise Unclear("only a bandwidth is stated, and not over which bytes it was counted")
    factor = float(bus_bytes(kind, np.array(size), np.array(float(ranks))))
    # Bandwidths are printed with two decimals: below this, rounding hides the time.
    if bus and bus >= 0.5:
        return factor / (bus * 1e9)
    if algorithm and algorithm >= 0.5:
        return size / (algorithm * 1e9)
    raise Unclear("neither a time nor a bandwidth above 0.5 GB/s is stated")


def _chip(row: Row) -> str:
    name = chip_named(row.text("chip"))
    if name is None:
        raise Unclear(f"chip {row.text('chip')!r} is not in the catalogue")
    return name


def _stack(row: Row) -> str:
    """What carried the collective out, where the row's place says so: DeepEP's tables differ by version."""
    version = re.search(r"/(?:nccl|sglang)/([^/]+)/", row.text("where"))
    return "" if version is None else version[1]


def _link(fabric: str) -> str:
    words = fabric.lower()
    for word, kind in (
        ("efa", "efa"),
        ("roce", "roce"),
        ("slingshot", "slingshot"),
        ("omni-path", "ethernet"),
        ("cx7", "infiniband"),
        ("infiniband", "infiniband"),
        ("rdma", "infiniband"),
        ("ib", "infiniband"),
    ):
        if word in words:
            return kind
    return "ethernet"


def _cards(fabric: str) -> float:
    """Bytes/s of all cards of a node, from "8x400G/node" or "3200G/node"; else eight cards of 400 Gb/s."""
    many = re.search(r"(\d+)x(?: \w+ \()?(\d+)G", fabric)
    if many is not None:
        return float(many[1]) * float(many[2]) * 1e9 / 8.0
    total = re.search(r"(\d{3,5})G/node", fabric)
    if total is not None:
        return float(total[1]) * 1e9 / 8.0
    eight = re.search(r"(\d+)x \w+ \((\d+)G\)", fabric)
    return float(eight[1]) * float(eight[2]) * 1e9 / 8.0 if eight else 8 * 400e9 / 8.0
