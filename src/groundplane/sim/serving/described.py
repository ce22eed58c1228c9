"""From a deployment file to what the simulator runs: layouts, caches, iteration tables, links, cold starts.

Everything is computed from the catalogue and the performance model; what had to be assumed is written down
beside the result. Knows nothing of requests.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from groundplane.catalog.resolve import is_file_name, resolve_cluster
from groundplane.perfmodel.serving import IterationPricer
from groundplane.perfmodel.serving_layout import (
    CacheCapacity,
    ServingFormats,
    ServingLayout,
    cache_capacity,
    formats_of,
    weight_bytes_per_chip,
)
from groundplane.perfmodel.serving_links import serving_links
from groundplane.perfmodel.serving_models import serving_llm
from groundplane.perfmodel.serving_profiles import serving_calibration
from groundplane.sim.serving.checkpoint_format import native_weights
from groundplane.sim.serving.deployment import (
    AutoscaleSpec,
    CacheSpec,
    ColdStart,
    Deployment,
    LinkSpec,
    PoolSpec,
    ReplicaFailure,
    RoutingSpec,
    SchedulerKind,
    SchedulerSpec,
)
from groundplane.sim.serving.engine_table import engine_table
from groundplane.sim.serving.iteration import IterationTable
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.deployment import DeploymentSpec, ReplicaPool
from groundplane.spec.errors import InputError
from groundplane.spec.llm import LlmSpec

_SCHEDULERS: Final[dict[str, SchedulerKind]] = {"vllm": "vllm-v1", "sglang": "sglang", "trtllm": "trtllm"}
"""How an engine of the calibration fills its iterations, by the beginning of its name."""

_DISK_BYTES_PER_S: Final = 5e9
"""Reading weights where neither storage nor disk is described; an assumption that the result states."""

_LINK_SHARE: Final = 0.8
"""Share of a card's rate that a cache on its way reaches; an assumption."""

_LINK_LATENCY_NS: Final = 200_000

_TYPICAL_SEQUENCES: Final = 16
_TYPICAL_PROMPT: Final = 512
"""A middling iteration, to say how long a token takes outside the engine's own count."""

MAX_CONTEXT: Final = 1 << 20
"""Longest context that tables are made for."""


@dataclass(frozen=True)
class BuiltPool:
    """One pool as it is simulated.

    `num_chips` are those of one replica of the description; the simulator has `attention_dp` replicas (ranks)
    for each, with `rank_chips` each.
    """

    spec: ReplicaPool
    engine: str
    model: LlmSpec
    layout: ServingLayout
    formats: ServingFormats
    capacity: CacheCapacity
    pricer: IterationPricer

    @property
    def kind(self) -> tuple[str, str, str]:
        """Model, chip and format of weights, as the calibration knows them."""
        weights = self.formats.experts if self.model.is_moe else self.formats.linear
        return self.model.name, self.pricer.chip.name, weights

    @property
    def rank_chips(self) -> int:
        """Chips of one replica of the simulator."""
        return self.layout.num_chips // self.layout.attention_dp


@dataclass(frozen=True)
class BuiltDeployment:
    """A deployment ready to simulate, with what it was made of."""

    spec: DeploymentSpec
    cluster: ClusterSpec
    pools: tuple[BuiltPool, ...]
    models: tuple[str, ...]
    simulated: Deployment
    assumptions: tuple[str, ...]

    @property
    def num_chips(self) -> int:
        """Chips of all pools at their greatest."""
        return sum(pool.spec.num_chips * pool.spec.max_replicas for pool in self.pools)


def build_deployment(
    spec: DeploymentSpec,
    *,
    folder: Path | None = None,
    cluster: ClusterSpec | None = None,
    max_context: int = 131072,
) -> BuiltDeployment:
    """What the simulator needs for a deployment.

    Args:
        spec: the deployment as written.
        folder: what its file names are relative to.
        cluster: instead of the one the spec names.
        max_context: longest prompt and output together that will come.

    Raises:
        InputError: unknown names, more chips than the cluster has, a layout that does not fit the model, no
            memory left for the cache, or pools that do not serve each other.
    """
    found = cluster or resolve_cluster(_located(spec.cluster, folder))
    models = tuple(spec.models)
    pools: list[BuiltPool] = []
    for index, pool in enumerate(spec.pools):
        try:
            pools.append(_built(spec, pool, found, folder))
        except InputError as error:
            inner = f"pools[{index}].{error.field}" if error.field else f"pools[{index}]"
            raise InputError(error.rule, field=inner, value=error.value, nearest=error.nearest) from None
    needed = sum(pool.spec.num_chips * pool.spec.max_replicas for pool in pools)
    if needed > found.num_chips:
        raise InputError(
            f"need {needed} chips at most, and {found.name} has {found.num_chips}", field="pools"
        )
    context = min(max(max_context, 1024), MAX_CONTEXT)
    assumptions: list[str] = []
    simulated = Deployment(
        pools=tuple(_simulated_pool(pool, models, found, spec, context, assumptions) for pool in pools),
        routing=RoutingSpec(spec.routing, spec.prompt_permille),
        failures=tuple(_failures(spec, pools)),
        on_failure=spec.on_failure,
        max_waiting=spec.max_waiting or 1 << 30,
    ).checked()
    return BuiltDeployment(spec, found, tuple(pools), models, simulated, tuple(dict.fromkeys(assumptions)))


def _located(name: str, folder: Path | None) -> str | Path:
    """A file that a spec names, relative to the spec's own folder; names of the catalogue as they are."""
    if folder is not None and is_file_name(name) and not Path(name).is_absolute():
        return folder / name
    return name


def _built(spec: DeploymentSpec, pool: ReplicaPool, cluster: ClusterSpec, folder: Path | None) -> BuiltPool:
    name = str(_located(pool.model or spec.model, folder))
    model = serving_llm(name)
    engine = pool.engine or spec.engine
    serving_calibration().profile(engine)
    weights = pool.weights or spec.weights or native_weights(name)
    formats = formats_of(model, weights, pool.cache or spec.cache)
    layout = layout_of(model, pool.tp, pool.pp, pool.attention_dp, pool.ep).checked(model)
    capacity = cache_capacity(
        cluster.chip, model, layout, formats, memory_share=pool.memory_share, block_tokens=pool.block_tokens
    )
    if capacity.num_blocks < 1:
        needed, chip = capacity.weight_bytes / 1e9, cluster.chip
        raise InputError(
            f"leaves no memory for the cache: weights take {needed:.1f} GB of a {chip.name} with "
            f"{chip.memory_bytes / 1e9:.1f} GB",
            field="tp",
            value=pool.tp,
        )
    pricer = IterationPricer(cluster.chip, serving_links(cluster), model, layout, formats, engine=engine)
    return BuiltPool(pool, engine, model, layout, formats, capacity, pricer)


def layout_of(model: LlmSpec, tp: int, pp: int, attention_dp: int, ep: int) -> ServingLayout:
    """The layout of those degrees: experts that are not spread are split."""
    if not model.is_moe:
        return ServingLayout(tp, pp, attention_dp)
    return ServingLayout(tp, pp, attention_dp, tp * attention_dp // ep, ep)


def _simulated_pool(
    pool: BuiltPool, models: tuple[str, ...], cluster: ClusterSpec, spec: DeploymentSpec, max_context: int,
    assumptions: list[str],
) -> PoolSpec:  # fmt: skip
    written, ranks = pool.spec, pool.layout.attention_dp
    profile = serving_calibration().profile(pool.engine, pool.pricer.chip.name)
    if ranks > 1:
        assumptions.append(
            "ranks of data-parallel attention are priced in lock step and take requests of their own"
        )
    if pool.layout.pp > 1:
        assumptions.append("pipeline stages of a replica work one after the other, none overlaps another")
    kinds = [kind for name, kind in _SCHEDULERS.items() if pool.engine.startswith(name)]
    kind: SchedulerKind = kinds[0] if kinds else "vllm-v1"
    table = iteration_table(pool, max_context)
    # Engines send the first token with some more behind it, and a prompt passes the server's own steps.
    typical_ns = table.iteration_ns(_TYPICAL_SEQUENCES, _TYPICAL_SEQUENCES * _TYPICAL_PROMPT, [])
    prompt_token_ps = 1000.0 * table.iteration_ns(0, 0, [(_TYPICAL_PROMPT, 0)]) / _TYPICAL_PROMPT
    return PoolSpec(
        name=written.name,
        table=table,
        cache=_cache(pool, cluster, spec.prefix_cache),
        scheduler=SchedulerSpec(
            kind, written.max_sequences, written.max_batched_tokens, preemption=written.preemption
        ),
        count=written.replicas * ranks,
        model=models.index(written.model or spec.model),
        role=written.role,
        max_queue=written.max_queue or 1 << 30,
        link=_link(pool, cluster),
        cold_start=_cold_start(pool, cluster, assumptions),
        autoscale=_autoscale(written, ranks),
        outside_ns=round(profile.request_s * 1e9) + round(profile.first_tokens * typical_ns),
        outside_token_ps=round(profile.request_token_s * 1e12) + round(profile.echo * prompt_token_ps),
    )


def iteration_table(pool: BuiltPool, max_context: int) -> IterationTable:
    """The iteration table of one pool, made once for equal pools."""
    return _table(
        _Priced(pool.pricer, pool.engine),
        pool.spec.max_sequences,
        pool.spec.max_batched_tokens,
        max_context,
        measured_factor(pool),
    )


def measured_factor(pool: BuiltPool) -> float:
    """What iterations are multiplied by: how far runs of the model on the chip were from their prediction.

    Only where the chip was measured with the model: a factor of another chip says more of that chip's
    kernels than of the model. All formats of a model on a chip share the model's own factor, so that none
    looks better for not having been measured.
    """
    calibration = serving_calibration()
    model, chip, weights = pool.kind
    known = f"{pool.engine}/{model}/{chip}/"
    if not any(key.startswith(known) for key in calibration.corrections):
        return 1.0
    return calibration.correction(pool.engine, model, chip, weights).tpot


class _Priced:
    """A pricer that compares by what it prices, so that equal pools share one table."""

    def __init__(self, pricer: IterationPricer, engine: str) -> None:
        self.pricer, self.engine = pricer, engine
        self._key = (engine, pricer.chip.name, pricer.model.name, pricer.layout, pricer.formats)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Priced) or self._key != other._key:
            return False
        mine, theirs = self.pricer, other.pricer
        return mine.chip == theirs.chip and mine.model == theirs.model and mine.links is theirs.links


@functools.lru_cache(maxsize=64)
def _table(
    priced: _Priced, max_sequences: int, max_batched_tokens: int, max_context: int, factor: float
) -> IterationTable:
    table = engine_table(
        priced.pricer,
        serving_calibration().profile(priced.engine, priced.pricer.chip.name),
        max_sequences=max_sequences,
        max_batched_tokens=max_batched_tokens,
        max_context=max_context,
    )
    return scaled_table(table, factor)


def scaled_table(table: IterationTable, factor: float) -> IterationTable:
    """The table with every time `factor` times as long."""
    if factor == 1.0:
        return table
    changed: dict[str, Any] = {
        name: np.ascontiguousarray(np.rint(getattr(table, name) * factor), dtype=np.int64)
        for name in table.__dataclass_fields__
        if name.endswith("_ns")
    }
    return dataclasses.replace(table, **changed)


# Memory and links
# ----------------------------------------------------------------------------------------------------


def _block_bytes(pool: BuiltPool) -> float:
    """Bytes of one block of the cache on one chip."""
    return max(pool.capacity.bytes_per_token, 1.0) * pool.capacity.block_tokens


def _cache(pool: BuiltPool, cluster: ClusterSpec, prefix: bool) -> CacheSpec:
    block = _block_bytes(pool)
    pcie = cluster.chip.pcie_bytes_per_s or 32e9
    disk = cluster.server.disk
    per_chip = disk.read_bytes_per_s / cluster.server.num_chips if disk is not None else _DISK_BYTES_PER_S / 8
    rank_chips = pool.rank_chips
    host_blocks = int(pool.spec.host_cache_bytes / rank_chips // block)
    return CacheSpec(
        num_blocks=pool.capacity.num_blocks,
        block_tokens=pool.capacity.block_tokens,
        prefix=prefix,
        host_blocks=host_blocks,
        host_block_ns=round(block / pcie * 1e9),
        disk_blocks=int(pool.spec.disk_cache_bytes / rank_chips // block),
        disk_block_ns=round(block / per_chip * 1e9),
        swap_blocks=host_blocks if pool.spec.preemption == "swap" else 0,
        swap_block_ns=round(block / pcie * 1e9),
    )


def _link(pool: BuiltPool, cluster: ClusterSpec) -> LinkSpec:
    """Caches go from every chip over its own card; inside one server over the scale-up links."""
    chip, server = cluster.chip, cluster.server
    card = server.nic_bytes_per_s / server.num_chips
    inside = chip.scaleup_bytes_per_s or chip.pcie_bytes_per_s or 32e9
    rate = card if cluster.num_nodes > 1 and card > 0 else inside
    return LinkSpec(round(_block_bytes(pool) / (rate * _LINK_SHARE) * 1e9), _LINK_LATENCY_NS)


def _cold_start(pool: BuiltPool, cluster: ClusterSpec, assumptions: list[str]) -> ColdStart:
    cold = pool.spec.cold_start
    size = weight_bytes_per_chip(pool.model, pool.layout, pool.formats) * pool.layout.num_chips
    nodes = max(1, -(-pool.layout.num_chips // cluster.server.num_chips))
    rate = cold.weights_bytes_per_s
    if rate is None and cluster.storage is not None:
        per_node = cluster.storage.per_node_bytes_per_s
        rate = min(cluster.storage.read_bytes_per_s, per_node * nodes if per_node else float("inf"))
    elif rate is None and cluster.server.disk is not None:
        rate = cluster.server.disk.read_bytes_per_s * nodes
    if rate is None:
        rate = _DISK_BYTES_PER_S
        assumptions.append(f"weights are read at {rate / 1e9:.0f} GB/s at a cold start: no storage described")
    return ColdStart(round(cold.image_s * 1e9), round(size / rate * 1e9), round(cold.warmup_s * 1e9))


def _autoscale(pool: ReplicaPool, ranks: int) -> AutoscaleSpec | None:
    scale = pool.autoscale
    if scale is None:
        return None
    return AutoscaleSpec(
        scale.min_replicas * ranks,
        scale.max_replicas * ranks,
        max(scale.target_requests // ranks, 1),
        max(round(scale.interval_s * 1e9), 1),
        round(scale.up_patience_s * 1e9),
        round(scale.down_patience_s * 1e9),
    )


def _failures(spec: DeploymentSpec, pools: list[BuiltPool]) -> list[ReplicaFailure]:
    """A lost replica loses all its ranks."""
    found = []
    for index, loss in enumerate(spec.losses):
        place = next(i for i, pool in enumerate(pools) if pool.spec.name == loss.pool)
        pool, ranks = pools[place].spec, pools[place].layout.attention_dp
        if loss.replica >= pool.max_replicas:
            raise InputError(
                f"must be a replica of {loss.pool}: 0 to {pool.max_replicas - 1}",
                field=f"losses[{index}].replica",
                value=loss.replica,
            )
        for rank in range(ranks):
            found.append(
                ReplicaFailure(
                    place, loss.replica * ranks + rank, round(loss.at_s * 1e9), round(loss.down_s * 1e9)
                )
            )
    return found
