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
from typing import Final, Literal

import msgspec
import numpy as np

from groundplane.perfmodel import link_catalogue
from groundplane.perfmodel.curves import FloatArray, Numbers, smooth_max
from groundplane.perfmodel.evidence import Evidence, weaker
from groundplane.perfmodel.links import TierCurve
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.errors import unknown_name

CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv", "barrier"
]
KINDS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "send_recv",
    "barrier",
)
_TIER_SHARPNESS: Final = 4.0


class Links(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The two tiers of a cluster as collectives see them.

    `chips_per_domain` chips meet in a scale-up domain; `nic_bytes_per_s` is one card's rate and
    `domain_nic_bytes_per_s` that of all cards of a domain, one direction. `oversubscription` holds above
    `domains_per_leaf` domains (0: no limit known). `torus` is set where the scale-up fabric is one.
    """

    scaleup: TierCurve
    scaleout: TierCurve | None
    chips_per_domain: int
    nic_bytes_per_s: float = 0.0
    domain_nic_bytes_per_s: float = 0.0
    oversubscription: float = 1.0
    domains_per_leaf: int = 0
    torus: tuple[int, ...] = ()
    scaleup_evidence: Evidence = link_catalogue.DATA_SHEET
    scaleout_evidence: Evidence = link_catalogue.DATA_SHEET


def cluster_links(cluster: ClusterSpec) -> Links:
    """The links of a cluster, from its own measured points, fitted tables or data sheets, in this order."""
    return _links(cluster.name, _Cluster(cluster))


def collective_time_s(
    links: Links,
    kind: CollectiveKind,
    message_bytes: Numbers,
    ranks_per_domain: Numbers,
    num_domains: Numbers = 1,
    concurrent_groups: Numbers | None = None,
) -> FloatArray:
    """Seconds of one collective; arrays broadcast; groups of one rank take no time.

    Args:
        links: of the cluster, from `cluster_links`.
        kind: which collective; `send_recv` is one rank sending to one other (num_domains > 1: in another
        domain). message_bytes: the whole buffer of one rank, as nccl-tests count it. ranks_per_domain: ranks
        of the group in each domain. num_domains: domains that the group spans. concurrent_groups: groups of
        one domain that use the cards at the same time; by default all that fit
            into the domain, as in training, where every rank takes part in a group of the same kind.

    Raises:
        InputError: unknown collective.
    """
    if kind not in KINDS:
        raise unknown_name("collective", kind, KINDS)
    size = np.asarray(message_bytes, dtype=np.float64)
    inside = np.asarray(ranks_per_domain, dtype=np.float64)
    domains = np.asarray(num_domains, dtype=np.float64)
    ranks = inside * domains
    groups = (
        np.maximum(links.chips_per_domain / inside, 1.0)
        if concurrent_groups is None
        else np.asarray(concurrent_groups, dtype=np.float64)
    )
    scaleup_s, scaleup_latency_s = _scaleup(links, kind, size, inside, domains)
    if links.scaleout is None:
        total = scaleup_s + scaleup_latency_s
    else:
        scaleout_s, scaleout_latency_s = _scaleout(links, links.scaleout, kind, size, inside, domains, groups)
        # The tier that costs more latency hides most of the other's: pieces flow through both in a pipeline.
        latency = np.where(domains > 1, scaleout_latency_s, scaleup_latency_s)
        total = latency + smooth_max(scaleup_s, scaleout_s, _TIER_SHARPNESS)
    return np.asarray(np.where(ranks > 1, total, 0.0), dtype=np.float64)


def collective_evidence(links: Links, num_domains: int = 1) -> Evidence:
    """What stands behind a collective inside one domain, or over several."""
    if num_domains <= 1 or links.scaleout is None:
        return links.scaleup_evidence
    return weaker(links.scaleup_evidence, links.scaleout_evidence)


def bus_bytes(kind: CollectiveKind, size: FloatArray, ranks: FloatArray) -> FloatArray:
    """Bytes that every rank must send at least: message size times nccl-tests' bus factor."""
    share = (ranks - 1.0) / np.maximum(ranks, 1.0)
    if kind == "all_reduce":
        return 2.0 * share * size
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return share * size
    if kind == "barrier":
        return np.zeros_like(size * ranks)
    return np.where(ranks > 1, size, 0.0 * size)


def _scaleup(
    links: Links, kind: CollectiveKind, size: FloatArray, inside: FloatArray, domains: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Transfer and latency inside the domain. Between domains the inner part is the same collective over r ranks."""
    moved = bus_bytes(kind, size, inside)
    if kind == "all_to_all":
        moved = moved / domains
    if kind == "send_recv":
        moved = np.where(domains > 1, 0.0, size)
    if links.torus and kind == "all_to_all":
        # On a ring of K chips a byte crosses K/4 links on average; the links of a chip carry what all send.
        moved = moved * max(1.0, sum(length for length in links.torus if length > 1) / 4.0)
    curve = links.scaleup.curve(kind)
    transfer = curve.transfer_s(moved, links.scaleup.bytes_per_s)
    return np.where(inside > 1, transfer, 0.0), np.where(inside > 1, curve.latency(inside), 0.0)


def _scaleout(
    links: Links,
    tier: TierCurve,
    kind: CollectiveKind,
    size: FloatArray,
    inside: FloatArray,
    domains: FloatArray,
    groups: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Transfer and latency over the cards: bytes that leave a domain over the group's share of its cards."""
    moved = bus_bytes(kind, size, domains)
    if kind == "all_to_all":
        moved = moved * inside
    share = links.domain_nic_bytes_per_s / groups
    if kind == "send_recv":
        share = np.minimum(share, links.nic_bytes_per_s)
    # One rank drives one card: a group with few ranks in a domain cannot use all cards of it.
    share = np.minimum(share, np.maximum(inside * links.nic_bytes_per_s, 1.0))
    if links.oversubscription > 1.0 and links.domains_per_leaf > 0 and kind in ("all_to_all", "send_recv"):
        # Rings leave a leaf once, so only traffic between any two domains meets the thin links above it.
        above = np.maximum(1.0 - links.domains_per_leaf / domains, 0.0)
        share = share / (1.0 + above * (links.oversubscription - 1.0))
    curve = tier.curve(kind)
    transfer = curve.transfer_s(moved, np.maximum(share, 1.0))
    return np.where(domains > 1, transfer, 0.0), np.where(domains > 1, curve.latency(domains), 0.0)


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
    nic = 0.0 if server.nics is None else server.nics.rate_bytes_per_s
    limit = cluster.fabric.link_bytes_per_s
    if limit is not None:
        nic = min(nic, limit) if nic else limit
    cards_per_chip = 0.0 if server.nics is None else server.nics.count / server.num_chips
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
        torus=cluster.fabric.torus,
        scaleup_evidence=inside[1],
        scaleout_evidence=inside[1] if outside is None else outside[1],
    )
