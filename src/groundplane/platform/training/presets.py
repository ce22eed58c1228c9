"""Ready-made trainings and what a shape weighs; imports nothing heavy, for planners and the tour."""

from __future__ import annotations

from typing import Final

from groundplane.spec.job import LlamaShape, TrainSpec

TOUR: Final = TrainSpec(
    model=LlamaShape(layers=3, hidden=192, ffn=512, heads=6, kv_heads=3, vocab=2048),
    seq=256,
    global_batch=4,
    micro_batch=2,
    steps=450,
    learning_rate=4e-3,
    warmup_steps=30,
    checkpoint_every=50,
)
"""The tour's training: about a minute on two cores, one a rank, on the sources of Python's own library."""


def num_parameters(shape: LlamaShape) -> int:
    """Parameters of the model, counted from its shape."""
    head_width = shape.hidden // shape.heads
    attention = shape.hidden * head_width * 2 * (shape.heads + shape.kv_heads)
    layer = attention + 3 * shape.hidden * shape.ffn + 2 * shape.hidden
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied_embeddings else 2)
    return embeddings + shape.layers * layer + shape.hidden
