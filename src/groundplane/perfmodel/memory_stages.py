"""Pipeline stages as memory sees them: what each holds, and how many micro-batches are in flight on it.

Only stages that can be the fullest are kept: of stages that hold the same, the earliest has most in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.pipeline import layer_owners
from groundplane.perfmodel.strategy import SCHEDULES, Layouts

_INTERLEAVED, _ZERO_BUBBLE, _DUALPIPE = (
    float(SCHEDULES.index(name)) for name in ("interleaved", "zero-bubble", "dualpipe")
)


@dataclass(frozen=True)
class Stage:
    """One pipeline stage: its place, layers by kind, embedding and head."""

    place: int
    layers: tuple[int, ...]
    embedding: bool
    head: bool


def all_stages(
    kinds: tuple[int, ...],
    num_kinds: int,
    stages: int,
    weights: tuple[float, ...] | None = None,
    head: float = 0.0,
) -> list[Stage]:
    """Every stage in order (see `pipeline.layer_owners` for how layers are dealt)."""
    owner = layer_owners(len(kinds), stages, weights, head)
    counts = np.zeros((stages, num_kinds), dtype=np.int64)
    np.add.at(counts, (owner[:-1], kinds), 1)
    return [
        Stage(place, tuple(int(count) for count in counts[place]), place == 0, place == owner[-1])
        for place in range(stages)
    ]


def full_stages(stages: list[Stage]) -> list[Stage]:
    """The earliest stage of each content: no other can be the fullest."""
    found: dict[tuple[tuple[int, ...], bool, bool], Stage] = {}
    for stage in stages:
        found.setdefault((stage.layers, stage.embedding, stage.head), stage)
    return list(found.values())


def micro_batches_in_flight(place: int, layouts: Layouts) -> FloatArray:
    """Micro-batches whose activations a stage holds at most, in units of all of its layers.

    1F1B: the stages behind it and itself (Narayanan et al. 2021, section 2.2.1). Interleaved:
    2 (p - place - 1) + (v - 1) p + 1 chunks of a v-th of the layers (as Megatron warms up). Zero-bubble keeps
    p everywhere (Qi et al. 2023: ZB-H1 delays weight gradients by as much). DualPipe: p + 1 chunks of the two
    that a rank holds (DeepSeek-V3, table 2), so half of that for both.

    Args:
        place: of the stage, from 0.
        layouts: N of them, `pp` above `place`.
    """
    pp, vpp, num_micro = layouts.pp, np.maximum(layouts.vpp, 1.0), layouts.num_micro
    plain = np.minimum(pp - place, num_micro)
    chunks = np.minimum(2.0 * (pp - place - 1.0) + (vpp - 1.0) * pp + 1.0, num_micro * vpp)
    zero_bubble = np.minimum(pp, num_micro)
    dual = np.minimum((pp + 1.0) / 2.0, num_micro)
    conditions = [
        (layouts.schedule == _INTERLEAVED) & (vpp > 1),
        layouts.schedule == _ZERO_BUBBLE,
        layouts.schedule == _DUALPIPE,
    ]
    flying = np.select(conditions, [chunks / vpp, zero_bubble, dual], plain)
    return np.where(pp > 1, flying, 1.0)


def holds_two_stages(layouts: Layouts) -> FloatArray:
    """2 where a rank holds a stage and its mirror (DualPipe), else 1."""
    return np.where((layouts.schedule == _DUALPIPE) & (layouts.pp > 1), 2.0, 1.0)
