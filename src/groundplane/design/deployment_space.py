"""Which engines a deployment may be made of: layouts of a model over a cluster's chips, by number format.

Knows what fits; nothing of load, time or price.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from groundplane.perfmodel.serving_layout import (
    CacheCapacity,
    ServingFormats,
    ServingLayout,
    cache_capacity,
    formats_of,
)
from groundplane.sim.serving.described import layout_of
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.errors import InputError
from groundplane.spec.llm import LlmSpec

MAX_RANKS: Final = 64
"""Most chips of one engine: wider expert parallelism was never measured."""

MAX_TENSOR: Final = 16
"""Most tensor-parallel ranks; they stay inside a scale-up domain."""

_PIPELINES: Final = (2, 4, 8)


@dataclass(frozen=True)
class EngineChoice:
    """One engine: on which cluster (its place in the question), by what, in which formats and layout."""

    cluster: int
    engine: str
    weights: str
    cache: str
    layout: ServingLayout
    formats: ServingFormats
    capacity: CacheCapacity


def engine_choices(
    model: LlmSpec,
    cluster: ClusterSpec,
    place: int,
    *,
    engines: tuple[str, ...],
    weights: tuple[str, ...],
    caches: tuple[str, ...],
    longest: int,
) -> list[EngineChoice]:
    """All engines that hold the model and at least two of the longest requests.

    Args:
        model, cluster: what is served where.
        place: the cluster's place in the question.
        engines, weights, caches: what may be chosen.
        longest: tokens of the longest request.
    """
    found: list[EngineChoice] = []
    for weight in weights:
        for cache in caches:
            formats = formats_of(model, weight, cache)
            fitting = [
                (layout, capacity)
                for layout in layouts(model, cluster)
                if (capacity := cache_capacity(cluster.chip, model, layout, formats)).num_sequences(longest)
                >= 2
            ]
            # Pipelines are for models that no scale-up domain holds: their stages are not overlapped here.
            if all(layout.pp > 1 for layout, _ in fitting):
                chosen = fitting
            else:
                chosen = [one for one in fitting if one[0].pp == 1]
            found += [
                EngineChoice(place, engine, weight, cache, layout, formats, capacity)
                for engine in engines
                for layout, capacity in chosen
            ]
    return found


def layouts(model: LlmSpec, cluster: ClusterSpec) -> list[ServingLayout]:
    """Layouts that the model allows: tensor ranks inside a domain, data-parallel attention for mixtures."""
    domain = cluster.scaleup_size if cluster.scaleup_size > 1 else min(cluster.server.num_chips, MAX_TENSOR)
    tensor = [degree for degree in _powers(min(domain, MAX_TENSOR)) if _divides(model, degree)]
    found: list[ServingLayout] = []
    for tp in tensor:
        found.append(layout_of(model, tp, 1, 1, 1))
        if model.is_moe and tp > 1:
            found.append(layout_of(model, tp, 1, 1, tp))
        if model.is_moe:
            for ranks in _powers(min(cluster.num_chips, MAX_RANKS)):
                if ranks > tp:
                    found.append(layout_of(model, tp, 1, ranks // tp, ranks))
    for pp in _PIPELINES:
        if tensor and pp * tensor[-1] <= cluster.num_chips and pp <= model.num_layers:
            found.append(layout_of(model, tensor[-1], pp, 1, 1))
    return [layout for layout in found if _fits(layout, model, cluster)]


def _divides(model: LlmSpec, degree: int) -> bool:
    return all(layer.attention.heads % degree == 0 for layer in model.layers)


def _fits(layout: ServingLayout, model: LlmSpec, cluster: ClusterSpec) -> bool:
    if layout.num_chips > cluster.num_chips:
        return False
    experts = min((layer.moe.experts for layer in model.layers if layer.moe is not None), default=0)
    if experts and (layout.expert_ep > experts or experts % layout.expert_ep):
        return False
    try:
        layout.checked(model)
    except InputError:
        return False
    return True


def _powers(most: int) -> list[int]:
    return [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most]
