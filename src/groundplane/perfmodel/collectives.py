"""What one collective costs over the links of a cluster.

A group has `ranks_per_domain` ranks in each of `num_domains` scale-up domains (NVLink islands, torus slices,
or single servers). Inside a domain the bytes that the algorithm moves cross the scale-up links; between
domains they cross the network cards, which all groups of a domain that communicate at the same time share.
Both tiers work at once on different pieces of the buffer, so their times join as a smooth maximum; latencies
add.

Message sizes are those of nccl-tests: the whole buffer of one rank (the gathered result of an all-gather, the
input of a reduce-scatter, all that a rank holds for an all-to-all). Bytes moved follow from counting (Thakur,
Rabenseifner, Gropp 2005; NCCL's own `PERFORMANCE.md` for bus bandwidth). Knows nothing of jobs or models.
"""

from __future__ import annotations

import functools
from typing import Final, Literal, get_args

import msgspec
import numpy as np

from groundplane.perfmodel import link_catalogue
from groundplane.perfmodel.curves import smooth_max
from groundplane.perfmodel.evidence import Evidence, FloatArray, Numbers, weaker
from groundplane.perfmodel.links import TierCurve
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.errors import unknown_name

CollectiveKind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "send_recv",
    "barrier",
    "moe_dispatch",
    "moe_combine",
]
KINDS: Final[tuple[str, ...]] = get_args(CollectiveKind)
_TIER_SHARPNESS: Final = 4.0

_RING_NET_HOP_S: Final = 8e-6
_RING_CHIP_HOP_S: Final = 2.5e-6
"""One step of a ring over the network and inside a domain: between NCCL's own figures for its LL128 (4.0 and
1.9 us) and Simple protocols (14 and 3.4 us), `src/graph/tuning.cc`."""

_PEER_S: Final = 5e-7
"""Posting one message of an all-to-all; an assumption."""


class Links(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The two tiers of a cluster as collectives see them.

    `chips_per_domain` chips meet in a scale-up domain; `nic_bytes_per_s` is one card's rate and
    `domain_nic_bytes_per_s` that of all cards of a domain, one direction. `oversubscription` holds above
    `domains_per_leaf` domains (0: no limit known). `torus` is the shape of a domain whose links form one.
    `in_network_reduction`: switches add up, so that every byte of an all-reduce goes up once (SHARP).
    `extra_latency_s` is what the network's one-way latency exceeds that of the fabrics that were measured.
    """

    scaleup: TierCurve
    scaleout: TierCurve | None
    chips_per_domain: int
    nic_bytes_per_s: float = 0.0
    domain_nic_bytes_per_s: float = 0.0
    oversubscription: float = 1.0
    domains_per_leaf: int = 0
    torus: tuple[int, ...] = ()
    in_network_reduction: bool = False
    extra_latency_s: float = 0.0
    scaleup_evidence: Evidence = link_catalogue.DATA_SHEET
    scaleout_evidence: Evidence = link_catalogue.DATA_SHEET


def cluster_links(cluster: ClusterSpec, *, in_network_reduction: bool = False) -> Links:
    """The links of a cluster, from its own measured points, fitted tables or data sheets, in this order.

    Args:
        cluster: the cluster.
        in_network_reduction: reduce in the switches, where they can; off by default, as libraries have it.
    """
    links = _links(cluster.name, _Cluster(cluster))
    if in_network_reduction and cluster.fabric.in_network_reduction:
        return msgspec.structs.replace(links, in_network_reduction=True)
    return links


def collective_time_s(
    links: Links,
    kind: CollectiveKind,
    message_bytes: Numbers,
    ranks_per_domain: Numbers,
    num_domains: Numbers = 1,
    concurrent_groups: Numbers | None = None,
    fan_out: Numbers = 8,
) -> FloatArray:
    """Seconds of one collective; arrays broadcast; groups of one rank take no time.

    Args:
        links: of the cluster, from `cluster_links`.
        kind: which collective. `send_recv`: one rank to one other (in another domain if num_domains > 1).
            `moe_dispatch`, `moe_combine`: tokens to and from their experts, each sent once to every rank (and
            once over the cards to every domain) that holds one of them, experts drawn evenly.
        message_bytes: the whole buffer of one rank, as nccl-tests count it; for the two of MoE, tokens of one
            rank x hidden size x bytes, before they fan out.
        ranks_per_domain: ranks of the group in each domain.
        num_domains: domains that the group spans.
        concurrent_groups: groups of one domain that use the cards at the same time; by default all that fit
            into the domain, as in training, where every rank takes part in a group of the same kind.
        fan_out: experts a token goes to (only for MoE).

    Raises:
        InputError: unknown collective.
    """
    if kind not in KINDS:
        raise unknown_name("collective", kind, KINDS)
    size = np.asarray(message_bytes, dtype=np.float64)
    inside = np.asarray(ranks_per_domain, dtype=np.float64)
    domains = np.asarray(num_domains, dtype=np.float64)
    experts = np.asarray(fan_out, dtype=np.float64)
    inner = links.scaleup.curve(kind)
    counted = np.minimum(inside, float(inner.ranks[-1])) if inner.switch_adds else inside
    moved = _scaleup_bytes(links, kind, size, counted, domains, experts)
    inner_rate = links.scaleup.bytes_per_s * _torus_share(links, inside)
    scaleup_s = np.where(inside > 1, inner.transfer_s(moved, inside, inner_rate), 0.0)
    total = (inner.latency_s(inside) + scaleup_s) * inner.corrected(size)
    if links.scaleout is not None:
        groups = (
            np.maximum(links.chips_per_domain / inside, 1.0)
            if concurrent_groups is None
            else np.asarray(concurrent_groups, dtype=np.float64)
        )
        outer = links.scaleout.curve(kind)
        sent, share = _scaleout_bytes(links, kind, size, inside, domains, groups, experts)
        scaleout_s = outer.transfer_s(sent, domains, share)
        # Pieces flow through both tiers in a pipeline: the slower one shows, and the cards' latency.
        latency_s = outer.latency_s(domains) + _ring_latency_s(kind, inside, domains)
        latency_s = latency_s + links.extra_latency_s * _rounds(kind, domains)
        across = latency_s + smooth_max(scaleup_s, scaleout_s, _TIER_SHARPNESS)
        total = np.where(domains > 1, across * outer.corrected(size), total)
    return np.asarray(np.where(inside * domains > 1, total, 0.0), dtype=np.float64)


def collective_evidence(links: Links, num_domains: int = 1) -> Evidence:
    """What stands behind a collective inside one domain, or over several."""
    if num_domains <= 1 or links.scaleout is None:
        return links.scaleup_evidence
    return weaker(links.scaleup_evidence, links.scaleout_evidence)


def bus_bytes(kind: str, size: FloatArray, ranks: FloatArray) -> FloatArray:
    """Bytes that every rank must send at least: message size times nccl-tests' bus factor."""
    share = (ranks - 1.0) / np.maximum(ranks, 1.0)
    if kind == "all_reduce":
        return 2.0 * share * size
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return share * size
    if kind == "barrier":
        return np.zeros_like(size * ranks)
    return np.where(ranks > 1, size, 0.0 * size)


def distinct_targets(ranks: FloatArray, fan_out: FloatArray) -> FloatArray:
    """Other ranks of `ranks` that a token sent to `fan_out` random experts reaches, on average."""
    holds = 1.0 - (1.0 - 1.0 / ranks) ** fan_out
    return (ranks - 1.0) * holds


def _scaleup_bytes(
    links: Links, kind: str, size: FloatArray, inside: FloatArray, domains: FloatArray, fan_out: FloatArray
) -> FloatArray:
    """Bytes a rank sends inside the domain, where the same collective runs over the ranks there."""
    if kind in ("moe_dispatch", "moe_combine"):
        # What comes over the cards is passed on inside the domain, so all deliveries cross these links.
        return size * distinct_targets(inside * domains, fan_out)
    moved = bus_bytes(kind, size, inside)
    if kind == "all_to_all":
        moved = moved / domains
        if links.torus:
            # On a ring of K chips a byte crosses K/4 links on average; a chip's links carry what all send.
            moved = moved * max(1.0, sum(length for length in links.torus if length > 1) / 4.0)
    if kind == "send_recv":
        moved = np.where(domains > 1, 0.0, size)
    return moved


def _scaleout_bytes(
    links: Links,
    kind: str,
    size: FloatArray,
    inside: FloatArray,
    domains: FloatArray,
    groups: FloatArray,
    fan_out: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Bytes of the group that leave each domain, and the group's share of the domain's cards (bytes/s)."""
    if kind in ("moe_dispatch", "moe_combine"):
        moved = size * inside * distinct_targets(domains, fan_out)
    elif kind == "all_to_all":
        moved = bus_bytes(kind, size, domains) * inside
    elif kind == "all_reduce" and links.in_network_reduction:
        moved = np.minimum(bus_bytes(kind, size, domains), size)
    else:
        moved = bus_bytes(kind, size, domains)
    # One rank drives one card: a group with few ranks in a domain cannot use all cards of it.
    driven = links.nic_bytes_per_s * (np.ones_like(inside) if kind == "send_recv" else inside)
    share = np.minimum(links.domain_nic_bytes_per_s / groups, driven)
    if links.oversubscription > 1.0 and links.domains_per_leaf > 0 and kind not in _RINGS:
        # Rings leave a leaf once, so only traffic between any two domains meets the thin links above it.
        above = np.maximum(1.0 - links.domains_per_leaf / domains, 0.0)
        share = share / (1.0 + above * (links.oversubscription - 1.0))
    return moved, np.maximum(share, 1.0)


_RINGS: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "barrier")


def _torus_share(links: Links, inside: FloatArray) -> FloatArray | float:
    """Share of a chip's links that a group uses: those of the dimensions it spans, filled one by one."""
    if len(links.torus) < 2:
        return 1.0
    reach = np.cumprod(np.sort(np.asarray(links.torus, dtype=np.float64))[::-1])
    spanned = np.searchsorted(reach, np.minimum(inside, reach[-1])) + 1.0
    return np.asarray(spanned / len(links.torus), dtype=np.float64)


def _ring_latency_s(kind: str, inside: FloatArray, domains: FloatArray) -> FloatArray:
    """What a ring adds to the latency for every domain beyond the second: a message passes every rank.

    All-reduce and broadcast go up and down trees instead; an all-to-all opens a message to every other rank.
    """
    more = np.maximum(domains - 2.0, 0.0)
    if kind in ("all_gather", "reduce_scatter"):
        return more * (_RING_NET_HOP_S + (inside - 1.0) * _RING_CHIP_HOP_S)
    if kind == "all_to_all":
        return more * inside * _PEER_S
    return np.zeros_like(more)


def _rounds(kind: str, domains: FloatArray) -> FloatArray:
    """One-way trips between domains, one after the other, that a collective takes at least."""
    up = np.ceil(np.log2(np.maximum(domains, 1.0)))
    return 2.0 * up if kind in ("all_reduce", "barrier") else np.maximum(np.minimum(up, domains - 1.0), 0.0)


class _Cluster:
    """A cluster as a cache key: specs hold dicts and cannot be hashed, but never change."""

    __slots__ = ("spec",)

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec

    def __hash__(self) -> int:
        return hash((self.spec.name, self.spec.num_nodes))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cluster) and (self.spec is other.spec or self.spec == other.spec)


@functools.lru_cache(maxsize=256)
def _links(name: str, key: _Cluster) -> Links:  # noqa: ARG001
    cluster = key.spec
    server = cluster.server
    inside = link_catalogue.scaleup_tier(cluster)
    outside = link_catalogue.scaleout_tier(cluster)
    limit = cluster.fabric.link_bytes_per_s
    if server.nics is not None:
        nic = min(server.nics.rate_bytes_per_s, limit or server.nics.rate_bytes_per_s)
    else:
        nic = limit or link_catalogue.PLAIN_CARD_BYTES_PER_S
    cards_per_chip = (1 if server.nics is None else server.nics.count) / server.num_chips
    servers_per_domain = max(1.0, cluster.scaleup_size / server.num_chips)
    per_leaf = cluster.fabric.nodes_per_leaf or 0
    return Links(
        scaleup=inside[0],
        scaleout=None if outside is None else outside[0],
        chips_per_domain=cluster.scaleup_size,
        nic_bytes_per_s=nic * max(1.0, cards_per_chip),
        domain_nic_bytes_per_s=nic * cards_per_chip * cluster.scaleup_size,
        oversubscription=cluster.fabric.oversubscription,
        domains_per_leaf=int(per_leaf // servers_per_domain),
        torus=server.scaleup_torus or cluster.fabric.torus,
        extra_latency_s=max(0.0, cluster.fabric.latency_s - link_catalogue.USUAL_LATENCY_S),
        scaleup_evidence=inside[1],
        scaleout_evidence=inside[1] if outside is None else outside[1],
    )
