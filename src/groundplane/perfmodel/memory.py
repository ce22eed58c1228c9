"""Memory of one rank of the built-in trainer at its peak, by part.

It runs on processor cores, where eager autograd keeps what each operator saves for its backward pass. Layouts
of chips are priced in `memory_training`. Knows nothing of time.
"""

from __future__ import annotations

from groundplane.spec.job import LlamaShape, TrainSpec

RUNTIME_BYTES = 360e6
"""Interpreter, PyTorch and its thread pools before anything is trained (resident size of an idle rank)."""


def llama_tensors(model: LlamaShape) -> tuple[tuple[int, int], ...]:
    """(elements, count) of every parameter tensor of the built-in trainer's Llama."""
    kv = model.kv_heads * (model.hidden // model.heads)
    layer = (
        (model.hidden * model.hidden, 2 * model.layers),
        (model.hidden * kv, 2 * model.layers),
        (model.hidden * model.ffn, 3 * model.layers),
        (model.hidden, 2 * model.layers + 1),
    )
    return (*layer, (model.vocab * model.hidden, 1 if model.tied_embeddings else 2))


def llama_parameters(model: LlamaShape) -> int:
    """All parameters."""
    return sum(elements * count for elements, count in llama_tensors(model))


def llama_matrix_parameters(model: LlamaShape) -> int:
    """Parameters that take part in matrix products: all but norms and the embedding look-up."""
    norms = model.hidden * (2 * model.layers + 1)
    look_up = 0 if model.tied_embeddings else model.vocab * model.hidden
    return llama_parameters(model) - norms - look_up


def host_rank_memory(train: TrainSpec, ranks: int) -> dict[str, float]:
    """Peak bytes of one rank of the built-in trainer (see `estimate.MEMORY_PARTS`)."""
    model = train.model
    parameters = llama_parameters(model)
    shard = ranks if train.parallel == "fsdp2" else 1
    tokens = train.micro_batch * train.seq
    kv = model.kv_heads * (model.hidden // model.heads)
    element = 2 if train.precision == "bf16" else 4
    # Saved per token and layer: two norm inputs and outputs, q/k/v before and after rotation, repeated keys
    # and values, attention output twice, gate, up, silu(gate), their product.
    hidden_saved = 4 * model.hidden * 4
    heads_saved = (2 * model.hidden + 2 * kv + 2 * model.hidden + 2 * model.hidden) * element
    ffn_saved = 4 * model.ffn * element
    layers = tokens * model.layers * (hidden_saved + heads_saved + ffn_saved)
    # At the peak, the loss holds logits, log-probabilities and two gradients of that size in float32.
    logits = tokens * model.vocab * (4 * 4 + (element if element == 2 else 0))
    buckets = (
        4.0 * parameters if ranks > 1 and train.parallel == "ddp" else 4.0 * parameters / max(1, model.layers)
    )
    return {
        "weights": 4.0 * parameters / shard,
        "gradients": 4.0 * parameters / shard,
        "optimizer": 8.0 * parameters / shard,
        "activations": float(layers + logits),
        "buffers": buckets,
        "runtime": RUNTIME_BYTES,
    }
