"""The choice of device for a part: the gradient by hand, and that it leaves less than the usual policies."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from devices_hand import H100, MIG_UNITS, PLAIN, Hand, fraction, mig

from groundplane.control.devices import UNUSED, most_instances, use_of, use_with, ways
from groundplane.control.events import DevicePart, Gang, JobCancelRequested
from groundplane.control.fragmentation import MIX_MEMORY, MIX_SHAPES, Mix
from groundplane.control.state import CoreState


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "shared_devices.py"
    spec = importlib.util.spec_from_file_location("shared_devices_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("mix", ["fractions", "small instances", "instances"])
def test_the_gradient_leaves_less_than_best_fit_first_fit_and_dot_product(
    benchmark: ModuleType, mix: str
) -> None:
    """Over three seeds together; single-node requests for parts until all compute was asked for."""
    left = {
        name: sum(benchmark.run(mix, rank, num_nodes=24, seed=seed).unallocated for seed in range(3))
        for name, rank in benchmark.policies().items()
    }
    assert left["gradient"] < min(left["best-fit"], left["first-fit"], left["dot-product"])


def test_the_rise_by_hand() -> None:
    """Seven tenths and three tenths are asked for alike: 0.7 goes where 0.3 is, and not beside 0.7."""
    mix = Mix(CoreState())
    for _ in range(10):
        mix.note(fraction(700))
        mix.note(fraction(300))
    three, seven = DevicePart(2100), DevicePart(4900)
    holds_three = use_with(UNUSED, next(ways(UNUSED, three, PLAIN)), PLAIN)
    both = use_with(holds_three, next(ways(holds_three, seven, PLAIN)), PLAIN)
    # Before: 0.7 is free, worth something to both shapes and nothing to the one whole device of every mix.
    assert mix.fragments(holds_three, PLAIN) == 4900
    assert mix.rise(holds_three, both, 0, PLAIN) == -4900
    # A fresh device of a node with one free: 0.3 is left, a fragment for 0.7; the free device is gone.
    holds_seven = use_with(UNUSED, next(ways(UNUSED, seven, PLAIN)), PLAIN)
    assert mix.rise(UNUSED, holds_seven, 1, PLAIN) == 10 * 2100 + 2100


def test_parts_go_together_so_that_whole_nodes_stay_free() -> None:
    hand = Hand(PLAIN)
    for number in range(3):
        hand.node(f"n{number}", 2, kind="plain")
    for number in range(4):
        hand.submit(f"w{number}", Gang(1, 2, 0), 0)
        hand.tell(JobCancelRequested(f"w{number}"))
        hand.gone(f"w{number}.a1", "stopped")
    for number in range(4):
        hand.submit(f"j{number}", fraction(250))
    assert len({hand.place(f"j{number}").node_id for number in range(4)}) == 1


def test_an_instance_lies_where_it_leaves_most() -> None:
    """3g at slice 4 leaves room for four 1g; at slice 0 for three."""
    hand = Hand(H100)
    hand.node("n0", 1)
    hand.submit("a", mig("3g.40gb"))
    placed = hand.place("a").part
    assert placed is not None
    assert placed.start == 4
    use = use_of([placed], H100)
    assert most_instances(use, DevicePart(MIG_UNITS["1g.10gb"], 0, "1g.10gb"), H100) == 4


def test_the_mix_is_small_and_forgets() -> None:
    state = CoreState()
    mix = Mix(state)
    for number in range(MIX_SHAPES + 10):
        mix.note(Gang(1, number + 1, 0))
    assert len(state.demands) == MIX_SHAPES
    for _ in range(2 * MIX_MEMORY):
        mix.note(Gang(1, 1, 0))
    assert sum(demand.count for demand in state.demands) < MIX_MEMORY
    again = Mix(state)
    again.note(Gang(1, 1, 0))
    assert len(state.demands) == MIX_SHAPES
