"""The nodes of a simulated cluster: how many devices each has, and which domains it stands in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.topology import read_topology


class SiteNode(NamedTuple):
    """One node. `topology` names the domains around it, the widest first."""

    node_id: str
    num_devices: int
    topology: tuple[str, ...] = ()


Site = Sequence[SiteNode]


def equal_site(
    num_nodes: int, devices_per_node: int, *, nodes_per_leaf: int = 0, leaves_per_spine: int = 0
) -> list[SiteNode]:
    """Equal nodes, in leaves and spine blocks of the sizes given (0: none)."""

    def path(number: int) -> tuple[str, ...]:
        if not nodes_per_leaf:
            return ()
        leaf = number // nodes_per_leaf
        return (f"spine{leaf // leaves_per_spine}", f"leaf{leaf}") if leaves_per_spine else (f"leaf{leaf}",)

    return [SiteNode(f"n{number}", devices_per_node, path(number)) for number in range(num_nodes)]


def site_of(cluster: ClusterSpec) -> list[SiteNode]:
    """The nodes of a described cluster: where its topology's file says, else leaves and NVLink domains as its
    fabric and servers have them.

    Raises:
        InputError: the topology's file is wrong.
    """
    devices = cluster.server.num_chips
    if cluster.topology is not None:
        topology = read_topology(cluster.topology.file, cluster.topology.format)
        if len(topology.hosts) == cluster.num_nodes:
            pairs = zip(topology.hosts, topology.paths(), strict=True)
            return [SiteNode(host.name, devices, path) for host, path in pairs]
    per_leaf = cluster.fabric.nodes_per_leaf or 0
    per_domain = cluster.scaleup_size // devices if cluster.scaleup_size > devices else 0
    nodes = []
    for number in range(cluster.num_nodes):
        path: tuple[str, ...] = ()
        if per_leaf:
            path += (f"leaf{number // per_leaf}",)
        if per_domain:
            domain = f"domain{number // per_domain}"
            path = (*path, domain) if not per_leaf or per_domain <= per_leaf else (domain, *path)
        nodes.append(SiteNode(f"n{number}", devices, path))
    return nodes
