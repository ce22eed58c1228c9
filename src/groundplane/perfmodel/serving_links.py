"""Links as a serving engine uses them: its ranks share a server, also where only PCIe joins the chips."""

from __future__ import annotations

import msgspec

from groundplane.perfmodel.collectives import Links, cluster_links
from groundplane.spec.cluster import ClusterSpec


def serving_links(cluster: ClusterSpec) -> Links:
    """The cluster's links; chips of a server without a scale-up fabric form a domain over PCIe.

    Training libraries price such a server's chips as nodes of the network; engines place their tensor ranks
    in one server, whose traffic never meets a card. The tier inside has PCIe's rate and the curve of `pcie`
    (`link_catalogue`): about 10 GB/s of 32 in the tables of eight L40S.
    """
    links = cluster_links(cluster)
    chips = min(cluster.server.num_chips, cluster.num_chips)
    if links.chips_per_domain > 1 or chips == 1:
        return links
    return msgspec.structs.replace(
        links, chips_per_domain=chips, domain_nic_bytes_per_s=links.domain_nic_bytes_per_s * chips
    )
