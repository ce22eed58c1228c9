"""Pipelines: which layers a stage holds, and how long a step's micro-batches take to pass through all stages.

Knows stages and their times, nothing of what is in a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from groundplane.perfmodel.evidence import FloatArray


@dataclass(frozen=True)
class StageKind:
    """Stages of one pipeline that hold the same: how many there are, layers by kind, embedding and head."""

    count: int
    layers: tuple[int, ...]
    embedding: bool
    head: bool


def stage_kinds(
    kinds: tuple[int, ...],
    num_kinds: int,
    stages: int,
    weights: tuple[float, ...] | None = None,
    head: float = 0.0,
) -> list[StageKind]:
    """How layers are dealt to pipeline stages, in order.

    Without weights every stage gets as many layers as any other, the first ones one more where they do not
    divide. With weights (work of each layer) a stage takes layers until the work so far reaches its even
    share, the head counted in, as stacks that balance by work do.

    Args:
        kinds: kind of each layer, in order.
        num_kinds: how many kinds there are.
        stages: pipeline ranks.
        weights: work of each layer, or None.
        head: work of the head, in the same unit.
    """
    held: dict[tuple[tuple[int, ...], bool, bool], int] = {}
    for key in _held_in_order(kinds, num_kinds, stages, weights, head):
        held[key] = held.get(key, 0) + 1
    return [StageKind(count, *key) for key, count in held.items()]


def mirrored_kinds(
    kinds: tuple[int, ...],
    num_kinds: int,
    stages: int,
    weights: tuple[float, ...] | None = None,
    head: float = 0.0,
) -> list[tuple[int, int]]:
    """What ranks hold that keep a stage and its mirror (DualPipe): every different pair of `stage_kinds`, by
    their places there; arguments as there."""
    order = _held_in_order(kinds, num_kinds, stages, weights, head)
    places = {key: place for place, key in enumerate(dict.fromkeys(order))}
    pairs = ((places[one], places[mirror]) for one, mirror in zip(order, reversed(order), strict=True))
    return list(dict.fromkeys((min(pair), max(pair)) for pair in pairs))


def _held_in_order(
    kinds: tuple[int, ...],
    num_kinds: int,
    stages: int,
    weights: tuple[float, ...] | None,
    head: float,
) -> list[tuple[tuple[int, ...], bool, bool]]:
    """Of each stage in order: layers by kind, embedding, head."""
    owner = layer_owners(len(kinds), stages, weights, head)
    counts = [[0] * num_kinds for _ in range(stages)]
    for layer, kind in enumerate(kinds):
        counts[owner[layer]][kind] += 1
    return [(tuple(held), stage == 0, stage == owner[-1]) for stage, held in enumerate(counts)]


def layer_owners(
    num_layers: int, stages: int, weights: tuple[float, ...] | None = None, head: float = 0.0
) -> list[int]:
    """Stage of each layer and, last, of the head (see `stage_kinds`)."""
    if weights is None:
        return _owners_even(num_layers, stages)
    return _owners_by_work(weights, head, stages)


def _owners_even(num_layers: int, stages: int) -> list[int]:
    """Stage of each layer and, last, of the head."""
    base, more = divmod(num_layers, stages)
    owner = [stage for stage in range(stages) for _ in range(base + (1 if stage < more else 0))]
    return [*owner, stages - 1]


def _owners_by_work(weights: tuple[float, ...], head: float, stages: int) -> list[int]:
    blocks = np.array([*weights, head])
    passed = np.cumsum(blocks)
    limits = passed[-1] * (np.arange(stages) + 1.0) / stages
    owner, stage = [], 0
    for work in passed:
        owner.append(stage)
        if work >= limits[stage] and stage < stages - 1:
            stage += 1
    return owner


def pipeline_s(
    slowest: FloatArray, total: FloatArray, backward_share: FloatArray, pp: FloatArray, vpp: FloatArray,
    num_micro: FloatArray, schedule: FloatArray,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Seconds in which the slowest stage works, and the bubble beside it.

    1F1B waits for the other stages once: all stages' times but the slowest's (Narayanan et al. 2021, section
    2.2.1, for unequal stages). Interleaving v chunks divides that by v (section 2.2.2). Zero-bubble fills it
    with weight gradients, half of the backward pass: F + B - W of each stage is left (Qi et al. 2023,
    ZB-H1). DualPipe runs from both ends at once, so that a rank waits for half of the other stages
    (DeepSeek-V3, table 2): F + B - 1.5 W of each is left where passes run as soon as they can, which is a
    quarter less than in the fixed order of that table.

    Args:
        slowest: forward and backward of one micro-batch on the slowest stage; with DualPipe the mean of the
            two stages of a rank, as each direction brings half of the micro-batches.
        total: the same over all stages.
        backward_share: of the backward pass in `slowest`.
        pp, vpp, num_micro, schedule: as in `Layouts`.
    """
    work = num_micro * slowest
    wait = total - slowest
    weight_share = backward_share / 2.0
    interleaved = wait / np.maximum(vpp, 1.0)
    zero_bubble = wait * np.maximum(1.0 - 2.0 * weight_share, 0.0)
    dual = np.maximum(total / 2.0 - slowest, 0.0) * np.maximum(1.0 - 1.5 * weight_share, 0.0)
    bubble = np.select([schedule == 0, schedule == 1, schedule == 2], [wait, interleaved, zero_bubble], dual)
    return work, np.where(pp > 1, bubble, 0.0)
