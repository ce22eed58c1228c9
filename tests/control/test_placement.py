from __future__ import annotations

import pytest
from control_hand import Hand, places, starts
from hypothesis import given, settings
from hypothesis import strategies as some

from groundplane.control.events import Gang, NodeCordoned, NodeSilent
from groundplane.control.placement import Pools
from groundplane.control.state import Node


def node(
    index: int,
    num_free: int,
    *,
    size: int = 8,
    memory: int = 100,
    kind: str = "gpu",
    topology: tuple[str, ...] = (),
) -> Node:
    free = tuple(range(num_free))
    return Node(f"n{index}", index, kind, size, memory, memory, 0, 1, 0, 0, free, topology)


def pools_of(*nodes: Node) -> Pools:
    pools = Pools()
    for each in nodes:
        pools.update(each)
    return pools


def where(pools: Pools, gang: Gang) -> list[str] | None:
    placement = pools.place(gang)
    return None if placement is None else [rank.node_id for rank in placement]


def test_one_node_that_is_left_fullest_wins() -> None:
    pools = pools_of(node(0, 8), node(1, 3), node(2, 4))
    assert where(pools, Gang(1, 3, 0)) == ["n1"]
    assert where(pools, Gang(4, 1, 0)) == ["n2"] * 4
    assert where(pools, Gang(1, 5, 0)) == ["n0"]


def test_ties_go_to_the_node_that_joined_first() -> None:
    assert where(pools_of(node(0, 2), node(1, 4), node(2, 4)), Gang(1, 4, 0)) == ["n1"]


def test_a_large_gang_takes_few_nodes_and_best_fit_for_its_rest() -> None:
    pools = pools_of(node(0, 3), node(1, 8), node(2, 2), node(3, 8))
    assert where(pools, Gang(9, 2, 0)) == ["n1"] * 4 + ["n3"] * 4 + ["n2"]


def test_all_or_nothing() -> None:
    pools = pools_of(node(0, 3), node(1, 3))
    assert where(pools, Gang(3, 2, 0)) is None
    assert where(pools, Gang(2, 2, 0)) == ["n0", "n1"]


def test_memory_counts() -> None:
    pools = pools_of(node(0, 8, memory=10), node(1, 8, memory=50))
    assert where(pools, Gang(2, 1, 20)) == ["n1", "n1"]
    assert where(pools, Gang(3, 1, 20)) is None
    assert where(pools, Gang(6, 1, 10)) == ["n0"] + ["n1"] * 5


def test_a_gang_stays_on_one_kind() -> None:
    pools = pools_of(node(0, 2, size=2, kind="a"), node(1, 2, size=2, kind="b"))
    assert where(pools, Gang(3, 1, 0)) is None
    assert where(pools, Gang(2, 1, 0)) == ["n0", "n0"]


def test_what_does_not_count_stays_free() -> None:
    kept = {"n1": (4, 0), "n0": (1, 90)}
    pools = Pools(
        lambda node: node.num_free - kept[node.node_id][0], lambda node: kept[node.node_id][1]
    )  # fmt: skip
    for each in (node(0, 8), node(1, 4)):
        pools.update(each)
    assert where(pools, Gang(1, 4, 0)) == ["n0"]
    assert where(pools, Gang(2, 4, 0)) is None
    assert where(pools, Gang(1, 4, 10)) == ["n0"]
    assert where(pools, Gang(1, 4, 11)) is None


def test_closed_nodes_take_nothing(hand: Hand) -> None:
    hand.node("n0")
    hand.tell(NodeCordoned("n0"))
    hand.node("n1")
    hand.tell(NodeSilent("n1"))
    assert starts(hand.submit("j")) == []
    assert places(hand.node("n2")) == [("n2", (0,))]


@settings(deadline=None)
@given(
    free=some.lists(some.integers(0, 8), min_size=1, max_size=12),
    ranks=some.integers(1, 20),
    per_rank=some.integers(1, 8),
)
def test_a_placement_is_found_exactly_when_there_is_room(free: list[int], ranks: int, per_rank: int) -> None:
    pools = pools_of(*(node(i, num) for i, num in enumerate(free)))
    placement = pools.place(Gang(ranks, per_rank, 0))
    assert (placement is not None) == (sum(num // per_rank for num in free) >= ranks)
    if placement is not None:
        used = [(rank.node_id, index) for rank in placement for index in rank.devices]
        assert len(placement) == ranks
        assert len(used) == len(set(used)) == ranks * per_rank
        assert all(index < free[int(node_id[1:])] for node_id, index in used)
        whole = sorted((num // per_rank for num in free), reverse=True)
        fewest = next(n for n in range(1, len(whole) + 1) if sum(whole[:n]) >= ranks)
        assert len({rank.node_id for rank in placement}) == fewest


@pytest.mark.parametrize("num_nodes", [1, 64, 65, 1000])
def test_the_index_follows_every_change(num_nodes: int) -> None:
    nodes = [node(i, 8) for i in range(num_nodes)]
    pools = pools_of(*nodes)
    nodes[-1].free = nodes[-1].free[1:]
    pools.update(nodes[-1])
    assert where(pools, Gang(1, 7, 0)) == [f"n{num_nodes - 1}"]
    nodes[-1].is_cordoned = True
    pools.update(nodes[-1])
    assert [pool.num_free for pool in pools] == [8 * (num_nodes - 1)]


def racks(*free: list[int]) -> Pools:
    """Racks of nodes with so many free devices each, two racks a spine."""
    nodes = [
        (rack, num_free) for rack, of_rack in enumerate(free) for num_free in of_rack
    ]  # fmt: skip
    return pools_of(
        *(
            node(index, num_free, topology=(f"spine{rack // 2}", f"rack{rack}"))
            for index, (rack, num_free) in enumerate(nodes)
        )
    )


def test_a_gang_stays_in_the_rack_that_it_leaves_fullest() -> None:
    pools = racks([8, 8, 8], [8, 8, 0], [8, 8, 8, 8])
    assert where(pools, Gang(2, 8, 0)) == ["n3", "n4"]
    assert where(pools, Gang(3, 8, 0)) == ["n0", "n1", "n2"]
    assert where(pools, Gang(4, 8, 0)) == ["n6", "n7", "n8", "n9"]


def test_what_fits_no_rack_stays_under_one_spine() -> None:
    pools = racks([8, 8, 8], [8, 8, 0], [8, 8, 8, 8])
    # Nine nodes are free; five fit under spine 0 only: a whole rack, and the best fit for the rest.
    assert where(pools, Gang(5, 8, 0)) == ["n0", "n1", "n2", "n3", "n4"]
    assert len(where(pools, Gang(9, 8, 0)) or []) == 9
    assert where(pools, Gang(10, 8, 0)) is None


def test_topology_is_a_preference_where_memory_stands_in_the_way() -> None:
    """By devices either rack has room for two; by memory only one node of each has."""
    pools = pools_of(
        *(
            node(index, 8, memory=100 if index % 2 else 1, topology=(f"rack{index // 2}",))
            for index in range(4)
        )
    )
    assert where(pools, Gang(1, 8, 50)) == ["n1"]
    assert sorted(where(pools, Gang(2, 8, 50)) or []) == ["n1", "n3"]


@settings(deadline=None)
@given(
    free=some.lists(some.lists(some.integers(0, 8), min_size=1, max_size=4), min_size=1, max_size=5),
    ranks=some.integers(1, 20),
    per_rank=some.integers(1, 8),
)
def test_with_topology_too_a_placement_is_found_exactly_when_there_is_room(
    free: list[list[int]], ranks: int, per_rank: int
) -> None:
    flat = [num for of_rack in free for num in of_rack]
    placement = racks(*free).place(Gang(ranks, per_rank, 0))
    assert (placement is not None) == (sum(num // per_rank for num in flat) >= ranks)
    if placement is not None:
        used = [(rank.node_id, index) for rank in placement for index in rank.devices]
        assert len(used) == len(set(used)) == ranks * per_rank
        assert all(index < flat[int(node_id[1:])] for node_id, index in used)
