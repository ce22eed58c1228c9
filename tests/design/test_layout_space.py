"""The space of layouts: nothing impossible in it, nothing possible left out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.design.layout_space import LayoutSpace, divisors
from groundplane.perfmodel.strategy import RECOMPUTE, SCHEDULES, Layouts, check_layout
from groundplane.perfmodel.training import TrainingJob
from groundplane.spec.errors import InputError
from groundplane.spec.huggingface import llm_from_config

DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "vocab_size": 100,
}
MIXTURE = {
    **DENSE,
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 8,
}


def _all(space: LayoutSpace) -> Layouts:
    return space.expand(space.groups())[0]


def _space(config: dict[str, Any] = DENSE, chips: int = 8, batch: int = 12, **fixed: float) -> LayoutSpace:
    return LayoutSpace(TrainingJob(llm_from_config(config), 32), chips, batch, fixed)


@settings(deadline=None)
@given(st.integers(min_value=1, max_value=5000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [size for size in range(1, number + 1) if number % size == 0]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([DENSE, MIXTURE]),
    st.sampled_from([1, 2, 4, 6, 8, 12, 16, 24]),
    st.sampled_from([1, 8, 12, 16, 48]),
)
def test_every_layout_keeps_every_rule(config: dict[str, Any], chips: int, batch: int) -> None:
    space = _space(config, chips, batch)
    layouts = _all(space)
    assert np.all(layouts.num_chips == chips)
    assert np.all(layouts.global_batch == batch)
    for index in range(0, len(layouts), max(1, len(layouts) // 50)):
        fields = {
            name: float(getattr(layouts, name)[index])
            for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "dp", "micro_batch")
        }
        check_layout(fields, space.job.model, chips, batch)


def test_no_layout_comes_twice_and_the_count_is_right() -> None:
    space = _space(MIXTURE, 16, 16)
    groups = space.groups()
    layouts, own = space.expand(groups)
    rows = np.stack(list(vars(layouts).values()), axis=1)
    assert len({tuple(row) for row in rows}) == len(layouts)
    assert list(np.bincount(own, minlength=len(groups))) == list(space.num_members(groups))
    for name in ("tp", "pp", "micro_batch", "ep", "recompute", "sequence_parallel"):
        assert np.all(getattr(layouts, name) == getattr(groups, name)[own])


def test_the_meshes_are_all_there_are() -> None:
    found = set(_space(DENSE, 12, 12).meshes())
    counted = {
        (tp, cp, pp, dp)
        for tp, cp, pp, dp in itertools.product(range(1, 13), repeat=4)
        if tp * cp * pp * dp == 12
        and 8 % tp == 0
        and 12 % dp == 0
        and pp <= 6
        and (cp == 1 or 32 % (2 * cp) == 0)
    }
    assert found == counted


def test_one_mesh_counted_by_hand() -> None:
    # tp 2, pp 2, dp 2 on 8 chips, batch 8: micro-batch 1, 2, 4 with 4, 2, 1 micro-batches.
    space = _space(DENSE, 8, 8, tp=2, cp=1, pp=2)
    # With 4 micro-batches all schedules (interleaved: vpp 3), with 2 no DualPipe, with 1 no interleaving.
    pipelines = 4 + 3 + 2
    shardings = 4  # nothing, ZeRO-1, ZeRO-2, ZeRO-3 over both
    recomputes = 3 + 3
    assert len(_all(space)) == pipelines * shardings * recomputes * 2


def test_what_is_fixed_stays() -> None:
    space = _space(
        MIXTURE,
        16,
        16,
        tp=2,
        ep=4,
        zero=1,
        recompute=RECOMPUTE.index("full"),
        schedule=SCHEDULES.index("1f1b"),
    )
    layouts = _all(space)
    assert set(layouts.tp) == {2.0}
    assert set(layouts.ep) == {4.0}
    assert set(layouts.zero) == {1.0}
    assert set(layouts.recompute) == {float(RECOMPUTE.index("full"))}
    assert set(layouts.schedule) == {0.0}


def test_experts_only_where_there_are_any() -> None:
    with pytest.raises(InputError, match="no layout divides"):
        _space(DENSE, 8, 8, ep=2).groups()
    assert len(_space(MIXTURE, 8, 8, ep=2).groups())


def test_refusals() -> None:
    with pytest.raises(InputError, match="positive integer"):
        _space(chips=0)
    with pytest.raises(InputError, match="positive integer"):
        _space(batch=0)
    with pytest.raises(InputError, match="unknown part of a layout"):
        _space(tpp=2)


def test_the_largest_tensor_group_can_be_bounded() -> None:
    space = LayoutSpace(TrainingJob(llm_from_config(DENSE), 32), 8, 8, {}, max_tp=2)
    assert {mesh[0] for mesh in space.meshes()} == {1, 2}
