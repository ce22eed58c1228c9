from __future__ import annotations

from control_hand import Hand, starts, timers

from groundplane.control.events import (
    NodeBack,
    NodeCordoned,
    NodeFenced,
    NodeSilent,
    NodeUncordoned,
)
from groundplane.control.views import node_views


def test_old_proof_does_not_touch_a_new_life(hand: Hand) -> None:
    hand.node("n0")
    hand.tell(NodeFenced("n0", 1))
    hand.node("n0", boot=2)
    hand.submit("j")
    assert hand.tell(NodeFenced("n0", 1)) == []
    assert hand.tell(NodeFenced("n0", 3)) == []  # nor does proof of a life that is not known
    assert hand.state("j") == "starting"


def test_a_fenced_node_comes_back_by_joining_only(hand: Hand) -> None:
    hand.node("n0")
    hand.tell(NodeFenced("n0", 1))
    hand.tell(NodeBack("n0"))
    hand.node("n0", boot=1)
    assert starts(hand.submit("j")) == []
    assert starts(hand.node("n0", boot=2)) == ["j.a1"]


def test_a_new_boot_is_proof_that_the_old_life_is_over(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j")
    assert timers(hand.node("n0", boot=2, at_s=3)) == {"j.backoff": 4.0}
    assert [view.holders for view in node_views(hand.core)] == [("", "", "", "")]


def test_a_node_that_comes_again_with_other_devices_is_not_taken(hand: Hand) -> None:
    hand.node("n0", devices=4)
    hand.node("n0", devices=8, boot=2)
    assert hand.core.state.nodes["n0"].num_devices == 4
    assert hand.core.state.ignored == {"node came again with another offer": 1}


def test_cordon_and_silence_are_independent(hand: Hand) -> None:
    hand.node("n0")
    hand.tell(NodeCordoned("n0"))
    hand.tell(NodeSilent("n0"))
    hand.submit("j")
    assert starts(hand.tell(NodeUncordoned("n0"))) == []
    assert starts(hand.tell(NodeBack("n0"))) == ["j.a1"]


def test_a_silent_node_can_be_fenced(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j")
    hand.tell(NodeSilent("n0"), 1)
    assert timers(hand.tell(NodeFenced("n0"), 2)) == {"j.backoff": 3.0}
