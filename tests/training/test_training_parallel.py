"""The same step whatever the number format, the micro batch and the wrapping."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from training_runs import TINY_SHAPE

from groundplane.platform.training.model import Llama
from groundplane.platform.training.parallel import SpreadModel, whole

TOKENS = torch.randint(0, 400, (4, 32), generator=torch.Generator().manual_seed(2))


def spread(kind: Literal["ddp", "fsdp2"], precision: Literal["fp32", "bf16"] = "fp32") -> SpreadModel:
    model = Llama(TINY_SHAPE, 32)
    model.initialize(0)
    return SpreadModel(model, kind, precision)


def gradients(model: SpreadModel, micro_steps: int = 1) -> dict[str, torch.Tensor]:
    parts = TOKENS.chunk(micro_steps)
    for number, part in enumerate(parts):
        with model.accumulating(last=number == micro_steps - 1):
            (model.loss(part, part.roll(-1, 1)) / micro_steps).backward()
    return {
        name: whole(parameter.grad)
        for name, parameter in model.model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_micro_steps_add_up_to_the_whole_batch(alone: Any, kind: Literal["ddp", "fsdp2"]) -> None:
    at_once, in_parts = gradients(spread(kind)), gradients(spread(kind), micro_steps=4)
    assert len(at_once) == 20
    for name, gradient in at_once.items():
        torch.testing.assert_close(in_parts[name], gradient, rtol=1e-4, atol=1e-6)


def test_ddp_and_fsdp2_compute_the_same(alone: Any) -> None:
    first, second = gradients(spread("ddp")), gradients(spread("fsdp2"))
    for name, gradient in first.items():
        torch.testing.assert_close(second[name], gradient, rtol=1e-5, atol=1e-7)


def test_bf16_is_near_fp32_and_keeps_fp32_parameters(alone: Any) -> None:
    exact, short = spread("ddp"), spread("ddp", "bf16")
    losses = [float(model.loss(TOKENS, TOKENS.roll(-1, 1)).detach()) for model in (exact, short)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert {parameter.dtype for parameter in short.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_warm_up_leaves_no_gradient_and_the_same_parameters(
    alone: Any, kind: Literal["ddp", "fsdp2"]
) -> None:
    model = spread(kind)
    before = {name: whole(parameter).clone() for name, parameter in model.model.named_parameters()}
    model.warm_up(2, 32)
    assert all(parameter.grad is None for parameter in model.model.parameters())
    assert all(
        torch.equal(whole(parameter), before[name]) for name, parameter in model.model.named_parameters()
    )
