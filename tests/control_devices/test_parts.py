"""Parts of devices in the core: legal places, caps, accounts, plans, quotas, and release only on proof."""

from __future__ import annotations

import itertools

import pytest
from devices_hand import GIB, H100, MIG_UNITS, PLAIN, Hand, S, fraction, mig, starts
from hypothesis import given, settings
from hypothesis import strategies as some

from groundplane.control import events as ev
from groundplane.control.actions import StopWork
from groundplane.control.devices import UNUSED, fits, overlaps, use_of, use_with, ways
from groundplane.control.events import UNITS_PER_DEVICE, DevicePart, Gang, QueueRule
from groundplane.spec.errors import InputError, InvariantError


def part(name: str) -> DevicePart:
    return DevicePart(MIG_UNITS[name], 0, name)


@pytest.mark.parametrize(
    ("names", "do_fit"),
    [
        (["1g.10gb"] * 7, True),
        (["1g.10gb"] * 8, False),
        (["3g.40gb", "3g.40gb"], True),
        (["3g.40gb", "3g.40gb", "1g.10gb"], False),  # no memory slice is left, though one compute slice is
        (["4g.40gb", "3g.40gb"], True),
        (["4g.40gb", "4g.40gb"], False),
        (["4g.40gb", "2g.20gb", "1g.10gb"], True),
        (["2g.20gb", "2g.20gb", "2g.20gb", "1g.10gb"], True),
        (["2g.20gb"] * 4, False),
        (["1g.20gb"] * 4, True),
        (["1g.20gb"] * 5, False),
        (["7g.80gb"], True),
        (["7g.80gb", "1g.10gb"], False),
        (["1g.10gb+me", "1g.10gb"], True),
        (["1g.10gb+me", "1g.10gb+me"], False),
    ],
)
def test_instances_coexist_exactly_as_the_published_table_says(names: list[str], do_fit: bool) -> None:
    """Some choice of starts fits them all, or none does."""
    uses = {UNUSED}
    for name in names:
        uses = {use_with(use, placed, H100) for use in uses for placed in ways(use, part(name), H100)}
    assert bool(uses) == do_fit


def test_the_full_layouts_of_an_h100() -> None:
    """Which multisets of 1g, 2g, 3g, 4g, 7g cannot be extended, as NVIDIA draws them."""
    names = ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    reached = {UNUSED: frozenset({()})}
    frontier = {UNUSED}
    while frontier:
        following = set()
        for use in frontier:
            for name in names:
                for placed in ways(use, part(name), H100):
                    after = use_with(use, placed, H100)
                    more = {tuple(sorted((*found, name))) for found in reached[use]}
                    if not more <= reached.get(after, frozenset()):
                        reached[after] = reached.get(after, frozenset()) | more
                        following.add(after)
        frontier = following
    full = {
        found
        for use, all_found in reached.items()
        if not any(fits(use, part(name), H100) for name in names)
        for found in all_found
    }
    short = {"".join(name[0] for name in found) for found in full}
    assert short == {
        "7",
        "34",
        "124",
        "1114",
        "33",
        "123",
        "1113",
        "223",
        "1123",
        "11113",
        "1222",
        "11122",
        "111112",
        "1111111",
    }


def test_a_job_gets_an_instance_and_the_next_ones_fill_the_device() -> None:
    hand = Hand(H100)
    hand.node("n0", 2)
    for index, name in enumerate(["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]):
        assert starts(hand.submit(f"j{index}", mig(name))) == [f"j{index}.a1"]
    assert {hand.place(f"j{index}").devices for index in range(4)} == {(0,)}
    slots = sorted(
        (hand.place(f"j{index}").part.start, hand.place(f"j{index}").part.profile) for index in range(4)
    )
    assert len({start for start, _ in slots}) == 4
    assert hand.core.state.nodes["n0"].free == (1,)
    assert starts(hand.submit("whole", Gang(1, 1, 0))) == ["whole.a1"]
    assert hand.place("whole").devices == (1,)
    assert starts(hand.submit("late", mig("3g.40gb"))) == []
    assert starts(hand.gone("whole.a1", "succeeded")) == ["late.a1"]


def test_fractions_share_compute_and_memory_and_stay_apart_from_instances() -> None:
    hand = Hand(PLAIN, H100)
    hand.node("n0", 1, kind="plain")
    assert starts(hand.submit("a", fraction(500, 16))) == ["a.a1"]
    assert starts(hand.submit("c", fraction(250, 4))) == ["c.a1"]
    # 25 of 24 GiB: the cap counts, though there is compute.
    assert starts(hand.submit("b", fraction(250, 5, kinds=("plain",)))) == []
    assert starts(hand.submit("d", mig("1g.10gb"))) == []
    hand.node("n1", 1, kind="h100")
    assert hand.place("d").node_id == "n1"
    assert starts(hand.submit("e", fraction(100, 1, kinds=("h100",)))) == []


def test_a_kind_that_nobody_described_is_not_shared() -> None:
    hand = Hand()
    hand.node("n0", 4)
    assert starts(hand.submit("a", fraction(500))) == []
    assert starts(hand.tell(PLAIN)) == []
    assert starts(hand.tell(H100)) == ["a.a1"]


def test_a_gang_runs_on_the_first_of_its_kinds_that_has_room() -> None:
    hand = Hand()
    hand.node("n0", 4, kind="slow")
    hand.node("n1", 4, kind="fast")
    assert starts(hand.submit("a", Gang(1, 4, 0, ("fast", "slow")))) == ["a.a1"]
    assert hand.place("a").node_id == "n1"
    assert starts(hand.submit("b", Gang(1, 4, 0, ("fast",)))) == []
    assert starts(hand.submit("c", Gang(1, 4, 0, ("fast", "slow")))) == ["c.a1"]
    assert hand.place("c").node_id == "n0"


def test_accounts_of_parts_are_counted_by_units_and_sum_exactly() -> None:
    hand = Hand(H100)
    hand.node("n0", 1, 0)
    hand.submit("a", mig("3g.40gb"), 0)
    hand.submit("b", mig("3g.40gb"), 0)
    hand.started("a.a1", 7)
    hand.gone("a.a1", "failed", 14)  # 7 s of start-up and 7 s lost, of three sevenths each
    books = hand.accounts("n0")
    assert books["wasted_by_failure"] == pytest.approx(3.0)
    assert books["fragmentation"] == pytest.approx(2.0)  # the seventh slice could be given to nobody
    assert books["allocated_idle"] == pytest.approx(3.0 + 6.0)
    hand.gone("b.a1", "succeeded", 14)
    assert hand.core.state.nodes["n0"].shared == []
    assert hand.core.state.nodes["n0"].free == (0,)
    assert sum(hand.accounts("n0").values()) == pytest.approx(14.0)


def test_parts_return_only_on_proof() -> None:
    hand = Hand(PLAIN)
    hand.node("n0", 1, kind="plain")
    hand.submit("a", fraction(1000))
    hand.submit("b", fraction(1000))
    hand.tell(ev.NodeSilent("n0"))
    hand.tell(ev.JobCancelRequested("a"))
    hand.tell(ev.WorkGone("a.a1", hand.fence("a.a1") - 1 or 99, "failed"))
    assert hand.core.state.nodes["n0"].holders() == ["a.a1"]
    hand.tell(ev.NodeBack("n0"))
    assert hand.state("b") == "queued"
    hand.tell(ev.NodeFenced("n0"))
    assert hand.core.state.nodes["n0"].holders() == []
    assert hand.state("a") == "cancelled"


def test_a_part_that_waits_first_gets_a_plan_and_nobody_overtakes_it() -> None:
    hand = Hand(PLAIN)
    hand.node("n0", 1, kind="plain")
    hand.submit("a", fraction(600), 0, predicted_s=100)
    hand.submit("b", fraction(800), 1)
    hand.submit("c", fraction(300), 2)  # would fit now, and would keep b out after a is gone
    assert hand.state("c") == "queued"
    assert hand.core.scheduler.plan().start_ns == 100 * S
    hand.submit("d", fraction(300), 3, predicted_s=50)
    assert hand.state("d") == "starting"
    assert starts(hand.gone("a.a1", "succeeded", 60)) == []
    assert starts(hand.gone("d.a1", "succeeded", 61)) == ["b.a1"]


def test_a_whole_gang_waits_for_the_last_part_and_later_parts_do_not_delay_it() -> None:
    hand = Hand(PLAIN)
    hand.node("n0", 2, kind="plain")
    hand.submit("a", fraction(300), 0, predicted_s=100)
    hand.submit("big", Gang(1, 2, 0), 1)
    hand.submit("b", fraction(300), 2)
    assert [hand.state(job) for job in ("a", "big", "b")] == ["starting", "queued", "queued"]
    assert starts(hand.gone("a.a1", "succeeded", 50)) == ["big.a1"]


def test_limits_and_shares_count_parts_by_their_units() -> None:
    hand = Hand(PLAIN)
    hand.node("n0", 4, kind="plain")
    hand.tell(ev.PolicySet((QueueRule("q", "", 1, 0, 1),)))
    for index in range(3):
        hand.submit(f"j{index}", fraction(400), queue="q")
    assert [hand.state(f"j{index}") for index in range(3)] == ["starting", "starting", "queued"]
    usage = hand.core.state.usage["q"]
    assert (usage.num_devices, usage.units) == (0, {"plain": 5600})
    hand.submit("whole", Gang(1, 1, 0), queue="q", priority=1)
    assert hand.state("whole") == "queued"  # 0.8 of a device and one more pass the limit of one
    hand.gone("j0.a1", "succeeded")
    assert hand.core.state.usage["q"].units["plain"] == 2800


def test_replicas_take_parts() -> None:
    hand = Hand(PLAIN)
    hand.node("n0", 2, kind="plain")
    assert len(starts(hand.deploy("s", fraction(250), 4))) == 4
    assert hand.core.state.nodes["n0"].free == (1,)
    hand.submit("never", Gang(1, 2, 0))
    assert starts(hand.submit("other", Gang(1, 1, 0))) == ["other.a1"]  # waiting for replicas helps nobody


def test_a_description_that_contradicts_what_is_held_is_ignored() -> None:
    hand = Hand(H100)
    hand.node("n0", 1)
    hand.submit("a", mig("2g.20gb"))
    hand.tell(ev.KindDescribed("h100", 80 * GIB))
    assert hand.core.state.kinds["h100"] == H100


def test_what_no_request_may_say() -> None:
    with pytest.raises(InputError):
        DevicePart(0)
    with pytest.raises(InputError):
        DevicePart(UNITS_PER_DEVICE + 1)
    with pytest.raises(InputError):
        Gang(2, 1, 0, (), DevicePart(1))


def test_the_ledger_refuses_a_part_that_is_held() -> None:
    hand = Hand(H100)
    hand.node("n0", 1)
    hand.submit("a", mig("4g.40gb"))
    work = hand.core.state.works["a.a1"]
    other = hand.core.state.works["a.a1"].__class__(
        work_id="x.a1", kind="attempt", owner_id="a", number=1, state="starting", gang=mig("4g.40gb")
    )
    before = hand.core.digest()
    with pytest.raises(InvariantError):
        hand.core.ledger.lease(other, work.placement, 1)
    assert hand.core.digest() == before


@settings(deadline=None, max_examples=60)
@given(some.data())
def test_whatever_comes_and_goes_nothing_is_held_twice_and_the_books_close(data: some.DataObject) -> None:
    """`Hand.tell` checks the books after every event."""
    hand = Hand(H100, PLAIN)
    hand.node("n0", 2)
    hand.node("n1", 2, kind="plain")
    names = list(MIG_UNITS)
    numbers = itertools.count()
    for _ in range(data.draw(some.integers(1, 25))):
        hand.now_s += data.draw(some.sampled_from([0, 0.123456789, 1.5]))
        works = list(hand.core.state.works)
        what = data.draw(some.sampled_from(["mig", "fraction", "whole", "gone", "started", "fence"]))
        if what == "mig":
            hand.submit(f"j{next(numbers)}", mig(data.draw(some.sampled_from(names))))
        elif what == "fraction":
            hand.submit(f"j{next(numbers)}", fraction(data.draw(some.integers(1, 1000)), 4))
        elif what == "whole":
            hand.submit(f"j{next(numbers)}", Gang(1, data.draw(some.integers(1, 2)), 0))
        elif what == "fence":
            node = hand.core.state.nodes["n0"]
            hand.tell(ev.NodeFenced("n0", node.boot))
            hand.tell(ev.NodeJoined("n0", "h100", 2, 1000, node.boot + 1))
        elif works:
            work_id = data.draw(some.sampled_from(works))
            if what == "started":
                hand.started(work_id)
            else:
                hand.gone(work_id, data.draw(some.sampled_from(["succeeded", "failed"])))
        for node in hand.core.state.nodes.values():
            kind = hand.core.state.kinds[node.device_kind]
            for shared in node.shared:
                assert shared.parts
                assert not overlaps(shared.parts.values(), kind)
                assert use_of(shared.parts.values(), kind).units <= UNITS_PER_DEVICE
            whole = [index for devices in node.leases.values() for index in devices]
            cut = [shared.device for shared in node.shared]
            assert sorted([*node.free, *whole, *cut]) == list(range(node.num_devices))


def test_a_part_of_higher_priority_takes_a_device_from_a_job_that_may_be_preempted() -> None:
    hand = Hand(PLAIN)
    hand.node("n0", 1, 0, kind="plain")
    hand.tell(ev.PolicySet((), preemption=ev.PreemptionRules(min_run_ns=0, checkpoint_wait_ns=0)))
    hand.submit("low", Gang(1, 1, 0), 0)
    hand.started("low.a1", 1)
    actions = hand.submit("high", fraction(250), 10, priority=5)
    assert [action.work_id for action in actions if isinstance(action, StopWork)] == ["low.a1"]
    assert starts(hand.gone("low.a1", "stopped", 11)) == ["high.a1"]
    assert hand.core.state.jobs["low"].restarts_used == 0
    assert starts(hand.submit("beside", fraction(750), 12, priority=5)) == ["beside.a1"]


def test_parts_start_in_the_reservation_of_their_queue_only() -> None:
    hand = Hand(PLAIN)
    hand.node("n0", 1, 0, kind="plain")
    hand.tell(ev.PolicySet((QueueRule("own"),)))
    hand.tell(ev.WindowSet("w", ("n0",), 10 * S, 100 * S, "own"), 0)
    hand.timer("window.w.begin", 10)
    hand.submit("other", fraction(250), 11, queue="else")
    hand.submit("mine", fraction(250), 12, queue="own")
    hand.submit("more", fraction(250), 13, queue="own")
    assert [hand.state(job) for job in ("other", "mine", "more")] == ["queued", "starting", "starting"]
    hand.timer("window.w.end", 100)
    assert hand.state("other") == "starting"
