"""The model against Hugging Face's own, its parameter count, and its learning rate."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from training_runs import TINY_SHAPE, tiny_spec

from groundplane.platform.training.loop import learning_rate
from groundplane.platform.training.model import Llama, hugging_face_config
from groundplane.platform.training.presets import num_parameters
from groundplane.spec.errors import InputError
from groundplane.spec.job import LlamaShape

SHAPES = [
    TINY_SHAPE,
    LlamaShape(
        layers=1, hidden=48, ffn=80, heads=3, kv_heads=3, vocab=300, tied_embeddings=False, rope_theta=500.0
    ),
    LlamaShape(layers=3, hidden=64, ffn=96, heads=8, kv_heads=1, vocab=300, norm_epsilon=1e-3),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_those_of_transformers(shape: LlamaShape) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers, a test dependency")
    ours = Llama(shape, 24)
    ours.initialize(3)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**hugging_face_config(shape, 24)))
    missing = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert set(missing.missing_keys) <= ({"lm_head.weight"} if shape.tied_embeddings else set())
    assert not missing.unexpected_keys
    theirs.tie_weights()
    tokens = torch.randint(0, shape.vocab, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(input_ids=tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_parameters_are_counted_from_the_shape(shape: LlamaShape) -> None:
    model = Llama(shape, 8)
    assert num_parameters(shape) == sum(parameter.numel() for parameter in model.parameters())


def test_loss_begins_at_the_logarithm_of_the_vocabulary() -> None:
    model = Llama(TINY_SHAPE, 32)
    model.initialize(0)
    tokens = torch.randint(0, 400, (8, 32), generator=torch.Generator().manual_seed(1))
    assert abs(float(model(tokens, tokens.roll(-1, 1)).detach()) - 5.99) < 0.15


def test_the_first_token_sees_nothing_after_it() -> None:
    model = Llama(TINY_SHAPE, 8)
    model.initialize(0)
    one, other = torch.tensor([[5, 6, 7]]), torch.tensor([[5, 9, 9]])
    assert torch.equal(model(one)[0, 0], model(other)[0, 0])
    assert not torch.equal(model(one)[0, 2], model(other)[0, 2])


def test_learning_rate_rises_then_falls_to_a_tenth() -> None:
    spec = tiny_spec(Path(), steps=104, warmup_steps=4, learning_rate=1.0)
    assert [learning_rate(spec, step) for step in (0, 1, 3, 4)] == [0.25, 0.5, 1.0, 1.0]
    assert learning_rate(spec, 54) == pytest.approx(0.55)
    assert learning_rate(spec, 104) == pytest.approx(0.1)


@pytest.mark.parametrize(("field", "value"), [("heads", 3), ("heads", 64), ("kv_heads", 3)])
def test_shapes_that_cannot_be_are_refused(field: str, value: int) -> None:
    data = msgspec.to_builtins(TINY_SHAPE) | {field: value}
    with pytest.raises((InputError, msgspec.ValidationError)):
        msgspec.convert(data, LlamaShape)
