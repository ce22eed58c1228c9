"""What is kept in the host's memory: asked for by name, priced by hand, never searched unasked."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from groundplane.catalog.resolve import resolve_cluster, resolve_llm
from groundplane.design.layout_space import LayoutSpace
from groundplane.perfmodel.memory_layers import layer_memory
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.strategy import OFFLOAD, RECOMPUTE, Layouts, parse_layout
from groundplane.perfmodel.training import TrainingJob, price_training
from groundplane.spec.errors import InputError

JOB = TrainingJob(resolve_llm("llama-3.1-8b"), 8192)
CLUSTER = resolve_cluster("h100x8")
PROFILE = StackProfile("test", gradient_bytes=4.0, exposed_share=0.0)
FULL = RECOMPUTE.index("full")


def test_offload_is_named() -> None:
    assert parse_layout("offload") == {"offload": float(OFFLOAD.index("optimizer"))}
    assert parse_layout("offload=both") == {"offload": float(OFFLOAD.index("both"))}
    with pytest.raises(InputError, match=r"unknown offload.*optimizer"):
        parse_layout("offload=cpu")
    assert "offload=activations" in Layouts.of(offload=OFFLOAD.index("activations")).describe(0)


def test_an_offloaded_optimizer_by_hand() -> None:
    layouts = Layouts.of(dp=8, zero=1, num_micro=4, offload=[0, 1])
    stages = price_training(JOB, CLUSTER, layouts, PROFILE).stages_s
    words = JOB.model.parameters().total / 8
    # 4 bytes of gradient down and 2 of weight up over 0.8 of 64 GB/s; 28 bytes each in an eighth of 300 GB/s.
    expected = words * 6 / (0.8 * 64e9) + words * 28 / (300e9 / 8)
    assert stages["host_transfer"].tolist() == pytest.approx([0.0, expected], rel=1e-3)
    assert stages["optimizer"][1] == 0.0 < stages["optimizer"][0]


def test_offloaded_activations_travel_beside_computing() -> None:
    layouts = Layouts.of(dp=8, zero=3, num_micro=4, recompute=[FULL, 0], offload=2)
    prices = price_training(JOB, CLUSTER, layouts, PROFILE)
    # The inputs of all layers hide behind computing; all that is kept without recompute does not.
    assert prices.stages_s["host_transfer"][0] == 0.0
    kept = layer_memory(JOB.model, JOB.model.layers[0], 8192, layouts, MemoryProfile("any")).kept[1]
    moved_s = 2 * 32 * kept * 4 / (0.8 * 64e9)
    computing = sum(prices.stages_s[name][1] for name in ("matmul", "attention", "memory_bound"))
    assert prices.stages_s["host_transfer"][1] == pytest.approx(moved_s - computing, rel=1e-6)
    slow = msgspec.structs.replace(PROFILE, exposed_share=0.5)
    shown = price_training(JOB, CLUSTER, layouts, slow).stages_s["host_transfer"]
    assert 0.0 < shown[0] < shown[1]


def test_a_search_offloads_only_what_it_is_asked_to() -> None:
    assert np.all(LayoutSpace(JOB, 8, 16, {}).groups().offload == 0)
    asked = LayoutSpace(JOB, 8, 16, {"offload": 1.0})
    layouts, _ = asked.expand(asked.groups())
    assert np.all(layouts.offload == 1)
