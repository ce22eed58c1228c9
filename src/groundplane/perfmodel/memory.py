"""Memory of one rank at its peak, by part.

First cut: the built-in trainer on processor cores, whose eager autograd keeps what each operator saves for
its backward pass. Knows nothing of time.
"""

from __future__ import annotations

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.strategy import Layouts
from groundplane.spec.job import LlamaShape, TrainSpec
from groundplane.spec.llm import LayerSpec, LlmSpec

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


def rough_rank_bytes(model: LlmSpec, seq: int, layouts: Layouts) -> FloatArray:
    """Bytes of the first pipeline stage's rank in mixed precision, for choosing among layouts.

    States: 2 (weights) + 4 (gradients) + 12 (master weights and two moments) bytes a parameter, sharded as ZeRO
    says. Activations a layer: 34 s b h bytes, over the tensor ranks with sequence parallelism, else 10 + 24 / tp
    (Korthikanti et al. 2022, equations 2 to 4, attention fused); with full recompute 2 s b h. As many micro-batches
    are held as the pipeline has stages, at most.
    """
    count = model.parameters()
    experts = float(count.experts)
    dense = (count.total - experts) / (layouts.tp * layouts.pp)
    expert = experts / (layouts.ep * layouts.etp * layouts.pp)
    weights = np.where(layouts.zero >= 3, 2.0 / layouts.shard, 2.0)
    gradients = np.where(layouts.zero >= 2, 4.0 / layouts.shard, 4.0)
    optimizer = np.where(layouts.zero >= 1, 12.0 / layouts.shard, 12.0)
    expert_shard = np.maximum(layouts.shard * layouts.tp / layouts.ep, 1.0)
    expert_optimizer = np.where(layouts.zero >= 1, 12.0 / expert_shard, 12.0)
    states = dense * (weights + gradients + optimizer) + expert * (6.0 + expert_optimizer)
    tokens = layouts.micro_batch * seq / layouts.cp
    width = tokens * model.hidden
    split = np.where(layouts.sequence_parallel > 0, layouts.tp, 1.0)
    wide = np.mean([_activation_width(layer, model.hidden) for layer in model.layers])
    kept = width * (10.0 / split + wide / layouts.tp)
    per_layer = np.where(layouts.recompute == 2, 2.0 * width / split, kept)
    held = np.minimum(layouts.pp, layouts.num_micro) * model.num_layers / layouts.pp
    logits = tokens * model.vocab / layouts.tp * 6.0
    working = np.where(layouts.recompute == 2, kept, 0.0)
    return np.asarray(states + per_layer * held + np.maximum(logits, working) + 2e9)


def _activation_width(layer: LayerSpec, hidden: int) -> float:
    """Bytes kept a token between the tensor ranks' collectives, in hidden widths: 24 for a dense GPT layer."""
    attention = layer.attention
    heads = 2.0 * (2 * attention.heads * attention.head_dim + 2 * attention.kv_heads * attention.head_dim)
    ffn = 0.0
    if layer.mlp is not None:
        ffn += 2.0 * layer.mlp.ffn * (3 if layer.mlp.gated else 2)
    if layer.moe is not None:
        ffn += 2.0 * (layer.moe.top_k * layer.moe.expert_ffn + layer.moe.shared_ffn) * 3
        ffn += 4.0 * layer.moe.top_k * hidden
    return (heads + ffn) / hidden
