"""Attention as one rank runs it: its products, fused or with stored scores, and the ring of context ranks.

Knows one layer's attention, nothing of the rest of the layer.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from groundplane.perfmodel import kernels
from groundplane.perfmodel.collectives import collective_time_s
from groundplane.perfmodel.evidence import FloatArray, Numbers
from groundplane.perfmodel.passes import Linear, Pass, Rank
from groundplane.spec.llm import AttentionSpec

_SOFTMAX_GROUP: Final = 4
_ALIGNED: Final = 8
_UNALIGNED_COST: Final = 8.0
"""Batched products with a width that is no multiple of 16 bytes leave the tensor cores: a quarter of the
peak at half of the efficiency."""


def attention_linears(rank: Rank, attention: AttentionSpec) -> list[Linear]:
    """Products before and behind attention."""
    tp, hidden = rank.layouts.tp, float(rank.model.hidden)
    queries = attention.heads * attention.head_dim / tp
    values = attention.heads * attention.value_dim / tp
    if not attention.kv_rank:
        kv_heads = np.maximum(attention.kv_heads / tp, 1.0)
        outputs = queries + kv_heads * (attention.head_dim + attention.value_dim)
        return [rank.linear(outputs, hidden), rank.linear(hidden, values)]
    latent = float(attention.kv_rank + attention.rope_dim)
    inner = attention.heads * (attention.head_dim - attention.rope_dim + attention.value_dim) / tp
    linears = [rank.linear(latent, hidden), rank.linear(inner, float(attention.kv_rank))]
    if attention.q_rank:
        linears += [rank.linear(attention.q_rank, hidden), rank.linear(queries, attention.q_rank)]
    else:
        linears.append(rank.linear(queries, hidden))
    return [*linears, rank.linear(hidden, values)]


def add_attention(rank: Rank, result: Pass, attention: AttentionSpec, *, backward: bool) -> None:
    """Adds attention itself, without its products."""
    heads = np.maximum(attention.heads / rank.layouts.tp, 1.0)
    if rank.profile.fused_attention and not attention.sinks:
        result.attention += _fused(rank, attention, heads, backward=backward)
        result.operators += 2.0 if backward else 1.0
    else:
        _add_stored_scores(rank, result, attention, heads, backward=backward)
    if np.any(rank.layouts.cp > 1):
        _add_context(rank, result, attention, backward=backward)


def _fused(rank: Rank, attention: AttentionSpec, heads: FloatArray, *, backward: bool) -> FloatArray:
    one = rank.one_of_shape
    cp, heads, micro_batch = rank.layouts.cp[one], heads[one], rank.layouts.micro_batch[one]
    kv_heads = np.maximum(
        (attention.heads if attention.kv_rank else attention.kv_heads) / rank.layouts.tp[one], 1.0
    )
    context = attention.mean_context(int(rank.seq))
    whole = kernels.attention_time_s(
        rank.chip, rank.precision.other, micro_batch, rank.seq, rank.seq, heads, kv_heads,
        attention.head_dim, causal=True, backward=backward, value_dim=attention.value_dim,
    )  # fmt: skip
    windowed = attention.window is not None and attention.window < rank.seq
    if not windowed and not np.any(cp > 1):
        return whole[rank.own_shape]
    # A rank of a balanced ring holds a front and a back piece, so its queries see half of the keys on
    # average; of an unbalanced one the last rank sees all of them, all but half of its own piece.
    part = kernels.attention_time_s(
        rank.chip, rank.precision.other, micro_batch, rank.seq / cp, context, heads, kv_heads,
        attention.head_dim, causal=False, backward=backward, value_dim=attention.value_dim,
    )  # fmt: skip
    if not rank.profile.balances_ring:
        part = part * (2.0 - 1.0 / cp)
    return (part if windowed else np.where(cp > 1, part, whole))[rank.own_shape]


def _add_stored_scores(
    rank: Rank, result: Pass, attention: AttentionSpec, heads: FloatArray, *, backward: bool
) -> None:
    """Attention as products and a fused scale-mask-softmax with dropout, scores stored in 2 bytes.

    Forward reads and writes each score for softmax (2 + 2 bytes) and dropout (2 + 2 + 1 for the mask);
    backward for dropout (2 + 1 + 2) and softmax (2 + 2 + 2).
    """
    layouts = rank.layouts
    count = layouts.micro_batch * heads
    queries = rank.seq / layouts.cp
    shapes: tuple[tuple[Numbers, Numbers, Numbers], ...] = (
        (queries, rank.seq, float(attention.head_dim)),
        (queries, float(attention.value_dim), rank.seq),
    )
    for rows, columns, depth in shapes:
        products = [(rows, columns, depth)]
        if backward:
            products = [(rows, depth, columns), (depth, columns, rows)]
        for m, n, k in products:
            seconds = kernels.matmul_time_s(rank.chip, rank.precision.other, m, n, k, count)
            aligned = attention.head_dim % _ALIGNED == 0
            result.attention += seconds * (1.0 if aligned else _UNALIGNED_COST)
            result.operators += 1.0
    scores = count * queries * rank.seq
    # Stacks that store scores by choice drop some out as well; where sinks force it, softmax is all.
    passes = (9.0, 11.0) if not rank.profile.fused_attention else (4.0, 6.0)
    rank.stream(result, scores * passes[backward])
    result.operators += 3.0
    # Megatron's fused softmax works on four score matrices at a time; else it is scale, mask, cast and
    # softmax.
    alone = count % _SOFTMAX_GROUP != 0
    apart = Pass.nothing(len(layouts))
    rank.stream(apart, scores * 16.0)
    result.memory_bound += np.where(alone, apart.memory_bound, 0.0)
    result.operators += np.where(alone, 6.0 if not backward else 3.0, 0.0)


def _add_context(rank: Rank, result: Pass, attention: AttentionSpec, *, backward: bool) -> None:
    """Keys and values go round the ring; backward brings their gradients too."""
    layouts = rank.layouts
    width = (
        attention.heads * (attention.head_dim + attention.value_dim)
        if attention.kv_rank
        else attention.kv_heads * (attention.head_dim + attention.value_dim)
    )
    block = rank.tokens * width / layouts.tp * rank.precision.activation_bytes
    steps = layouts.cp - 1.0
    stride = layouts.tp
    inside = stride * layouts.cp <= rank.links.chips_per_domain
    hop = collective_time_s(
        rank.links, "send_recv", block, np.where(inside, 2.0, 1.0), np.where(inside, 1.0, 2.0)
    )
    ring = steps * hop * (2.0 if backward else 1.0)
    result.context += np.where(layouts.cp > 1, ring, 0.0)
    result.operators += np.where(layouts.cp > 1, 4.0 * steps, 0.0)
