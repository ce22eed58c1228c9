"""The space of layouts: nothing impossible in it, nothing possible left out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.design.layout_space import LayoutSpace, divisors
from groundplane.perfmodel.strategy import RECOMPUTE, SCHEDULES, check_layout
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


def _space(config: dict[str, Any] = DENSE, chips: int = 8, batch: int = 12, **fixed: float) -> LayoutSpace:
    return LayoutSpace(TrainingJob(llm_from_config(config), 32), chips, batch, fixed)


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
    for block in space.blocks():
        assert np.all(block.num_chips == chips)
        assert np.all(block.global_batch == batch)
        for index in range(0, len(block), max(1, len(block) // 7)):
            fields = {
                name: float(getattr(block, name)[index])
                for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "dp", "micro_batch")
            }
            check_layout(fields, space.job.model, chips, batch)


def test_no_layout_comes_twice() -> None:
    seen = set()
    names = list(vars(next(_space(MIXTURE).blocks())))
    total = 0
    for block in _space(MIXTURE, 16, 16).blocks():
        rows = np.stack([getattr(block, name) for name in names], axis=1)
        seen |= {tuple(row) for row in rows}
        total += len(block)
    assert len(seen) == total


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


def test_one_block_counted_by_hand() -> None:
    # tp 2, pp 2, dp 2 on 8 chips, batch 8: micro-batch 1, 2, 4 with 4, 2, 1 micro-batches.
    space = LayoutSpace(TrainingJob(llm_from_config(DENSE), 32), 8, 8, {"cp": 1.0})
    block = space.block((2, 1, 2, 2))
    assert block is not None
    # With 4 micro-batches all schedules (interleaved: vpp 3), with 2 no DualPipe, with 1 no interleaving.
    pipelines = 4 + 3 + 2
    shardings = 4  # nothing, ZeRO-1, ZeRO-2, ZeRO-3 over both
    recomputes = 3 + 3
    assert len(block) == pipelines * shardings * recomputes * 2


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
    blocks = list(space.blocks())
    assert blocks
    for block in blocks:
        assert set(block.tp) == {2.0}
        assert set(block.ep) == {4.0}
        assert set(block.zero) == {1.0}
        assert set(block.recompute) == {float(RECOMPUTE.index("full"))}
        assert set(block.schedule) == {0.0}


def test_experts_only_where_there_are_any() -> None:
    assert not list(_space(DENSE, 8, 8, ep=2).blocks())
    assert list(_space(MIXTURE, 8, 8, ep=2).blocks())


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
