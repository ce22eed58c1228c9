"""Pipelines: who holds which layer, and bubbles known from the papers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.perfmodel.pipeline import mirrored_kinds, pipeline_s, stage_kinds


def seconds(pp: int, vpp: int, num_micro: int, schedule: int, stage_s: float = 3.0) -> tuple[float, float]:
    one = np.ones(1)
    work, bubble = pipeline_s(
        stage_s * one, pp * stage_s * one, one * 2 / 3, one * pp, one * vpp, one * num_micro, one * schedule
    )
    return float(work[0]), float(bubble[0])


def test_1f1b_waits_for_the_other_stages_once() -> None:
    assert seconds(4, 1, 8, 0) == (24.0, 9.0)


def test_interleaving_divides_the_bubble() -> None:
    assert seconds(4, 3, 8, 1)[1] == pytest.approx(3.0)


def test_zero_bubble_keeps_a_third_when_forward_is_a_third() -> None:
    # F = 1, B = 1, W = 1: (pp - 1) (F + B - W) = 3 of 9.
    assert seconds(4, 1, 8, 2)[1] == pytest.approx(3.0)


def test_one_stage_has_no_bubble() -> None:
    for schedule in range(4):
        assert seconds(1, 1, 8, schedule)[1] == 0.0


def test_even_stages_take_the_rest_at_the_front() -> None:
    kinds = stage_kinds((0,) * 10, 1, 4)
    assert sorted((kind.layers[0], kind.embedding, kind.head, kind.count) for kind in kinds) == [
        (2, False, False, 1),
        (2, False, True, 1),
        (3, False, False, 1),
        (3, True, False, 1),
    ]


def test_a_head_as_heavy_as_two_layers_gets_a_lighter_last_stage() -> None:
    kinds = stage_kinds((0,) * 16, 1, 2, weights=(1.0,) * 16, head=4.0)
    last = next(kind for kind in kinds if kind.head)
    first = next(kind for kind in kinds if kind.embedding)
    assert last.layers[0] < first.layers[0]
    assert last.layers[0] + first.layers[0] == 16


def test_ranks_of_two_stages_hold_a_stage_and_its_mirror() -> None:
    # 3, 3, 2 and 2 layers, embedding at the front and head at the back: kinds in order are 0, 1, 2, 3.
    assert mirrored_kinds((0,) * 10, 1, 4) == [(0, 3), (1, 2)]
    # All but the ends hold the same.
    assert mirrored_kinds((0,) * 12, 1, 6) == [(0, 2), (1, 1)]


@given(
    layers=st.lists(st.integers(0, 1), min_size=1, max_size=80),
    stages=st.integers(1, 16),
    by_work=st.booleans(),
)
def test_every_layer_is_held_once(layers: list[int], stages: int, by_work: bool) -> None:
    weights = tuple(1.0 + kind for kind in layers) if by_work else None
    kinds = stage_kinds(tuple(layers), 2, stages, weights, 1.5)
    assert sum(kind.count for kind in kinds) == stages
    for which in (0, 1):
        assert sum(kind.count * kind.layers[which] for kind in kinds) == layers.count(which)
    assert sum(kind.count for kind in kinds if kind.head) == 1
    assert sum(kind.count for kind in kinds if kind.embedding) == 1
