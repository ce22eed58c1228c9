"""The feed-forward part of a layer as one rank runs it: plain, gated, or experts with router and exchange.

Knows one layer's feed-forward part, nothing of the rest of the layer.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from groundplane.perfmodel.collectives import CollectiveKind, collective_time_s
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.passes import Linear, Pass, Rank
from groundplane.spec.llm import LayerSpec, MlpSpec, MoeSpec

MOE_KINDS: Final[tuple[CollectiveKind, ...]] = ("moe_dispatch", "moe_combine")


def add_feed_forward(rank: Rank, result: Pass, layer: LayerSpec, *, backward: bool) -> None:
    """Adds a layer's feed-forward part."""
    if layer.mlp is not None:
        rank.add_linears(result, _mlp_linears(rank, layer.mlp), backward=backward)
        _add_activation(
            rank, result, rank.tokens * layer.mlp.ffn / rank.layouts.tp, layer.mlp.gated, backward=backward
        )
    if layer.moe is not None:
        _add_experts(rank, result, layer.moe, backward=backward)


def _add_activation(rank: Rank, result: Pass, elements: FloatArray, gated: bool, *, backward: bool) -> None:
    passes = (3.0, 5.0)[backward] if gated else (2.0, 3.0)[backward]
    rank.stream(result, passes * elements * rank.precision.activation_bytes)
    result.operators += 1.0


def _add_experts(rank: Rank, result: Pass, moe: MoeSpec, *, backward: bool) -> None:
    layouts = rank.layouts
    rank.add_linears(result, _expert_linears(rank, moe), backward=backward)
    brought = rank.tokens * layouts.etp / layouts.tp
    routed = brought * moe.top_k
    _add_activation(rank, result, routed * moe.expert_ffn / layouts.etp, moe.gated, backward=backward)
    if moe.shared_ffn:
        shared = MlpSpec(moe.shared_ffn, moe.gated)
        rank.add_linears(result, _mlp_linears(rank, shared), backward=backward)
        _add_activation(rank, result, rank.tokens * moe.shared_ffn / layouts.tp, moe.gated, backward=backward)
    # Router, top-k, permutation there and back: each moves the routed tokens once in and once out.
    width = rank.model.hidden * rank.precision.activation_bytes
    rank.stream(result, 6.0 * routed * width + brought * moe.experts * 4.0 * 4.0)
    result.operators += 16.0
    inside = np.clip(rank.links.chips_per_domain / layouts.tp, 1.0, layouts.ep)
    domains = np.ceil(layouts.ep / inside)
    # Either every copy of a token is sent, or each rank and domain gets it once and passes it on.
    copies = collective_time_s(rank.links, "all_to_all", routed * width, inside, domains)
    once = [
        collective_time_s(rank.links, kind, brought * width, inside, domains, fan_out=moe.top_k)
        for kind in MOE_KINDS
    ]
    seconds = np.minimum(2.0 * copies, once[0] + once[1])
    result.expert += np.where(layouts.ep > 1, seconds, 0.0)


def _mlp_linears(rank: Rank, mlp: MlpSpec) -> list[Linear]:
    inner = mlp.ffn / rank.layouts.tp
    hidden = float(rank.model.hidden)
    return [rank.linear(inner * (2 if mlp.gated else 1), hidden), rank.linear(hidden, inner)]


def _expert_linears(rank: Rank, moe: MoeSpec) -> list[Linear]:
    layouts, hidden = rank.layouts, float(rank.model.hidden)
    local = np.maximum(moe.experts / layouts.ep, 1.0)
    inner = moe.expert_ffn / layouts.etp
    # Each rank of a stage brings its tokens; with tp > etp they are split over the tensor ranks first.
    brought = rank.tokens * layouts.etp / layouts.tp
    rows = brought * layouts.ep * moe.top_k / moe.experts
    return [
        Linear(inner * (2 if moe.gated else 1), np.full_like(rows, hidden), rows, local),
        Linear(np.full_like(rows, hidden), inner, rows, local),
    ]
