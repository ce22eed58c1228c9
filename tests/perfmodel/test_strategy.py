"""Layouts: written as text, checked against model and cluster, and taken apart into unique combinations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.catalog.resolve import resolve_llm
from groundplane.perfmodel.strategy import RECOMPUTE, Layouts, check_layout, parse_layout
from groundplane.spec.errors import InputError


def test_text_becomes_fields() -> None:
    assert parse_layout("tp=8, pp=16,sp,recompute=full,mb=2") == {
        "tp": 8.0,
        "pp": 16.0,
        "sequence_parallel": 1.0,
        "recompute": float(RECOMPUTE.index("full")),
        "micro_batch": 2.0,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recompte=none", "unknown part of a layout.*did you mean 'recompute'"),
        ("tp=0", "whole number of at least 1"),
        ("tp=x", "whole number"),
        ("recompute=ful", "unknown recompute.*did you mean 'full'"),
        ("recompute_share=most", "must be a number"),
    ],
)
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_layout(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tp": 8, "dp": 16}, "must be the 64 chips"),
        ({"tp": 64, "dp": 1, "pp": 1, "micro_batch": 1}, None),
        ({"tp": 1, "pp": 64, "dp": 1, "micro_batch": 1}, None),
        ({"tp": 1, "pp": 32, "vpp": 4, "dp": 2, "micro_batch": 1}, "must not pass the 80 layers"),
        ({"tp": 8, "dp": 8, "micro_batch": 3}, "must divide the global batch of 256"),
        ({"tp": 8, "dp": 8, "ep": 8, "micro_batch": 1}, "only for models with experts"),
    ],
)
def test_layouts_that_cannot_be_are_refused_by_rule(fields: dict[str, float], message: str | None) -> None:
    model = resolve_llm("llama-3.1-70b")
    if message is None:
        check_layout(fields, model, 64, 256)
        return
    with pytest.raises(InputError, match=message):
        check_layout(fields, model, 64, 256)


def test_heads_and_experts_must_divide() -> None:
    with pytest.raises(InputError, match="divide the 128 heads"):
        check_layout({"tp": 3, "dp": 1}, resolve_llm("deepseek-v3"), 3, 16)
    with pytest.raises(InputError, match="divide the 256 experts"):
        check_layout({"dp": 24, "ep": 24}, resolve_llm("deepseek-v3"), 24, 24)


def test_replicas_are_what_shards_by_default() -> None:
    layouts = Layouts.of(tp=[1, 2], cp=2, dp=[4, 2], zero=3)
    assert layouts.shard.tolist() == [8.0, 4.0]
    assert layouts.num_chips.tolist() == [8.0, 8.0]
    assert layouts.schedule.tolist() == [0.0, 0.0]
    assert Layouts.of(vpp=4, pp=2).schedule.tolist() == [1.0]


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(InputError, match="unknown part of a layout"):
        Layouts.of(tpp=2)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 64)), min_size=1, max_size=30))
def test_unique_combinations_stand_for_all(rows: list[tuple[int, int, int]]) -> None:
    tp, pp, dp = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    layouts = Layouts.of(tp=tp, pp=pp, dp=dp)
    few, own = layouts.unique_by("tp", "pp")
    assert len(few) == len({(t, p) for t, p, _ in rows})
    assert np.array_equal(few.tp[own], tp)
    assert np.array_equal(few.pp[own], pp)
