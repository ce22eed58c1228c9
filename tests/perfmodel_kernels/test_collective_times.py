"""Times of collectives against bytes counted by hand, over one and two tiers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.catalog.resolve import resolve_cluster
from groundplane.perfmodel.collectives import (
    KINDS,
    Links,
    cluster_links,
    collective_evidence,
    collective_time_s,
    distinct_targets,
)
from groundplane.perfmodel.links import KindCurve, TierCurve
from groundplane.spec.cluster import CollectivePoint
from groundplane.spec.errors import InputError

CURVE = KindCurve(ranks=(2, 8), latencies_s=(1e-5, 3e-5), efficiencies=(1.0, 1.0), ramp_bytes=1e-30)
LINKS = Links(
    scaleup=TierCurve(100e9, {"all_reduce": CURVE}),
    scaleout=TierCurve(10e9, {"all_reduce": msgspec.structs.replace(CURVE, latencies_s=(1e-4, 1e-4))}),
    chips_per_domain=8,
    nic_bytes_per_s=10e9,
    domain_nic_bytes_per_s=80e9,
)
GB = 1e9


def seconds(kind: str, size: float, inside: int, domains: int = 1, **options: object) -> float:
    links = options.pop("links", LINKS)
    return float(collective_time_s(links, kind, size, inside, domains, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "moved_gb"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_recv", 1.0),
        ("barrier", 0.0),
        # Eight tokens' experts on eight ranks: 7 others, each missed with (7/8)^8.
        ("moe_dispatch", 7 * (1 - (7 / 8) ** 8)),
        ("moe_combine", 7 * (1 - (7 / 8) ** 8)),
    ],
)
def test_bytes_inside_a_domain(kind: str, moved_gb: float) -> None:
    assert seconds(kind, GB, 8) == pytest.approx(3e-5 + moved_gb * GB / 100e9, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "sent_gb"),
    [
        # Of a domain of eight, over 80 GB/s of cards, to three other domains.
        ("all_reduce", 2 * 3 / 4),
        ("all_gather", 3 / 4),
        ("reduce_scatter", 3 / 4),
        ("all_to_all", 8 * 3 / 4),
        ("broadcast", 1.0),
        ("moe_dispatch", 8 * 3 * (1 - (3 / 4) ** 8)),
    ],
)
def test_bytes_between_domains(kind: str, sent_gb: float) -> None:
    fast_inside = msgspec.structs.replace(LINKS, scaleup=TierCurve(1e15, {"all_reduce": CURVE}))
    expected = 1e-4 + sent_gb * GB / 80e9
    assert seconds(kind, GB, 8, 4, links=fast_inside) == pytest.approx(expected, rel=6e-3)


def test_send_to_another_domain_uses_one_card() -> None:
    assert seconds("send_recv", GB, 1, 2, concurrent_groups=1) == pytest.approx(1e-4 + GB / 10e9, rel=1e-6)


def test_groups_of_a_domain_share_its_cards() -> None:
    # Groups with two ranks in a domain: four of them fit and have two cards each, as one has when alone.
    shared = seconds("all_gather", GB, 2, 2)
    alone = seconds("all_gather", GB, 2, 2, concurrent_groups=1)
    assert shared == pytest.approx(alone, rel=1e-9)
    crowded = seconds("all_gather", GB, 2, 2, concurrent_groups=8)
    assert crowded == pytest.approx(1e-4 + 0.5 * GB / 10e9, rel=1e-3)


def test_thin_links_above_the_leaves_slow_only_what_crosses_them() -> None:
    thin = msgspec.structs.replace(LINKS, oversubscription=4.0, domains_per_leaf=4)
    assert seconds("all_reduce", GB, 8, 16, links=thin) == seconds("all_reduce", GB, 8, 16)
    # Three quarters of the peers are under other leaves: 1 + 3/4 x 3 times the time.
    ratio = seconds("all_to_all", GB, 8, 16, links=thin) / seconds("all_to_all", GB, 8, 16)
    assert ratio == pytest.approx(3.25, rel=1e-2)
    assert seconds("all_to_all", GB, 8, 4, links=thin) == seconds("all_to_all", GB, 8, 4)


def test_switches_that_add_send_every_byte_once() -> None:
    adding = msgspec.structs.replace(
        LINKS, in_network_reduction=True, scaleup=TierCurve(1e15, {"all_reduce": CURVE})
    )
    assert seconds("all_reduce", GB, 8, 16, links=adding) == pytest.approx(1e-4 + GB / 80e9, rel=1e-3)


def test_all_reduce_through_an_adding_switch_does_not_grow_with_the_group() -> None:
    adding = msgspec.structs.replace(CURVE, switch_adds=True, latencies_s=(3e-5, 3e-5))
    rack = msgspec.structs.replace(
        LINKS, scaleup=TierCurve(100e9, {"all_reduce": adding}), chips_per_domain=72
    )
    assert seconds("all_reduce", GB, 72, links=rack) == pytest.approx(
        seconds("all_reduce", GB, 8, links=rack)
    )


def test_torus() -> None:
    torus = msgspec.structs.replace(LINKS, torus=(4, 4, 4), chips_per_domain=64)
    # Four ranks lie along one dimension of three and use a third of the links.
    assert seconds("all_gather", GB, 4, links=torus) == pytest.approx(
        float(CURVE.latency_s(np.array(4.0))) + 0.75 * GB / (100e9 / 3), rel=1e-6
    )
    # In an all-to-all over 64 chips a byte crosses 1 + 1 + 1 links on average.
    assert seconds("all_to_all", GB, 64, links=torus) == pytest.approx(
        3e-5 + 3 * 63 / 64 * GB / 100e9, rel=1e-6
    )


def test_rings_wait_for_every_rank_and_trees_for_levels() -> None:
    slow = seconds("all_gather", 8, 8, 66) - seconds("all_gather", 8, 8, 2)
    assert slow == pytest.approx(64 * (8e-6 + 7 * 2.5e-6), rel=1e-3)
    assert seconds("all_reduce", 8, 8, 66) == pytest.approx(seconds("all_reduce", 8, 8, 2), rel=1e-3)


def test_long_way_adds_latency_for_every_round() -> None:
    far = msgspec.structs.replace(LINKS, extra_latency_s=1e-3)
    assert seconds("all_reduce", 8, 8, 8, links=far) - seconds("all_reduce", 8, 8, 8) == pytest.approx(6e-3)
    assert seconds("all_gather", 8, 8, 8, links=far) - seconds("all_gather", 8, 8, 8) == pytest.approx(3e-3)


def test_group_of_one_takes_no_time() -> None:
    assert [seconds(kind, GB, 1) for kind in KINDS] == [0.0] * len(KINDS)


def test_latency_between_and_beyond_known_sizes() -> None:
    curve = msgspec.structs.replace(CURVE, step_latency_s=5e-6)
    assert float(curve.latency_s(np.array(4.0))) == pytest.approx(2e-5)
    assert float(curve.latency_s(np.array(32.0))) == pytest.approx(3e-5 + 2 * 5e-6)


def test_ramp_halves_the_rate_at_its_size() -> None:
    curve = msgspec.structs.replace(CURVE, ramp_bytes=1e6)
    assert float(curve.transfer_s(np.array(1e6), np.array(8.0), 1e9)) == pytest.approx(2e-3)


def test_distinct_targets() -> None:
    assert float(distinct_targets(np.array(8.0), np.array(1.0))) == pytest.approx(7 / 8)
    assert float(distinct_targets(np.array(2.0), np.array(100.0))) == pytest.approx(1.0)


def test_unknown_collective() -> None:
    with pytest.raises(InputError, match="all_reduce") as error:
        seconds("allreduce", GB, 8)
    assert error.value.nearest == "all_reduce"


@given(
    st.sampled_from(KINDS),
    st.floats(1.0, 1e11),
    st.floats(1.0, 1e11),
    st.integers(1, 8),
    st.sampled_from((1, 2, 5, 64)),
)
def test_more_bytes_never_take_less(kind: str, one: float, other: float, inside: int, domains: int) -> None:
    small, large = sorted((one, other))
    assert seconds(kind, small, inside, domains) <= seconds(kind, large, inside, domains) * (1 + 1e-12)


@given(st.sampled_from(KINDS), st.floats(1.0, 1e11), st.integers(1, 8), st.sampled_from((2, 5, 64)))
def test_more_bandwidth_is_never_slower(kind: str, size: float, inside: int, domains: int) -> None:
    faster = msgspec.structs.replace(LINKS, nic_bytes_per_s=20e9, domain_nic_bytes_per_s=160e9)
    assert seconds(kind, size, inside, domains, links=faster) <= seconds(kind, size, inside, domains) * (
        1 + 1e-12
    )
    wider = msgspec.structs.replace(LINKS, scaleup=TierCurve(200e9, {"all_reduce": CURVE}))
    assert seconds(kind, size, inside, domains, links=wider) <= seconds(kind, size, inside, domains) * (
        1 + 1e-12
    )


def test_arrays_of_layouts_equal_single_ones() -> None:
    links = cluster_links(resolve_cluster("h100x1024"))
    inside, domains = np.array([8, 4, 1, 8]), np.array([1, 2, 16, 128])
    many = collective_time_s(links, "all_gather", np.array([1e6, 1e7, 1e8, 1e9]), inside, domains)
    single = [
        float(collective_time_s(links, "all_gather", size, a, b))
        for size, a, b in zip((1e6, 1e7, 1e8, 1e9), inside, domains, strict=True)
    ]
    assert many.tolist() == single


def test_large_all_reduce_on_known_hardware() -> None:
    # nccl-tests on eight H100: 434 to 450 GB/s of bus bandwidth at 512 MiB; two nodes: 440 to 470 at 2 GiB.
    links = cluster_links(resolve_cluster("h100x16"))
    size = 2.0**29
    assert 2 * 7 / 8 * size / seconds("all_reduce", size, 8, links=links) == pytest.approx(440e9, rel=0.1)
    size = 2.0**31
    assert 2 * 15 / 16 * size / seconds("all_reduce", size, 8, 2, links=links) == pytest.approx(
        440e9, rel=0.12
    )


def test_evidence_weakens_between_domains() -> None:
    links = cluster_links(resolve_cluster("h100x1024"))
    assert collective_evidence(links, 1).grade == "measured"
    assert collective_evidence(links, 16).grade in ("family", "data-sheet")
    one = cluster_links(resolve_cluster("tpu-v5p-hostx4"))
    assert collective_evidence(one).grade == "data-sheet"


def test_points_of_a_probed_cluster_win() -> None:
    cluster = resolve_cluster("h100x8")
    points = tuple(
        CollectivePoint("all_reduce", size, 8, 1e-3 + 1.75 * size / 2e9)
        for size in (1024, 2**20, 2**24, 2**28)
    )
    links = cluster_links(msgspec.structs.replace(cluster, collectives=points))
    assert collective_evidence(links).grade == "measured"
    for size in (4096.0, 2.0**22, 2.0**27):
        assert seconds("all_reduce", size, 8, links=links) == pytest.approx(1e-3 + 1.75 * size / 2e9, rel=0.1)
