"""The layouts that a published run may have had: one where its row states all, else every one that it allows.

What is left open is marked; of several layouts the fastest that fits in memory counts, as a publisher who
tuned would have it. Does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from groundplane.perfmodel.published_model import Row, whole
from groundplane.perfmodel.sources import batch_is_split, shards_optimizer, splits_sequence
from groundplane.perfmodel.strategy import RECOMPUTE
from groundplane.spec.errors import InputError
from groundplane.spec.llm import LlmSpec

_MICRO_BATCHES: Final = (1, 2, 4, 8, 16)
_TENSOR_RANKS: Final = (1, 2, 4, 8)
"""Tried where a row leaves them open: within a server, as tensor parallelism is."""


def published_layouts(
    shared: Row, model: LlmSpec, num_chips: int, stack: str, opened: list[str]
) -> tuple[float, list[dict[str, float]]]:
    """The global batch of a run and the layouts that its row allows.

    Args:
        shared: the row.
        model: what was trained.
        num_chips: on which it ran.
        stack: its software, which settles what a row does not say of sharding.
        opened: gets the names of what the row leaves open.

    Raises:
        InputError: no batch, or parts that do not divide.
    """
    fixed = _fixed_layout(shared, num_chips, stack, opened)
    batch = float(_batch(shared, fixed))
    micro = whole(shared, "micro_batch")
    if micro is None:
        opened.append("micro_batch")
    recompute = _recompute(shared["recompute"])
    if recompute is None:
        opened.append("recompute")
    ways = _RECOMPUTE_WAYS if recompute is None else ({"recompute": float(recompute)},)
    if recompute is None and "layout" in opened:
        ways = tuple(way for way in ways if "recompute_share" not in way)
    if model.is_moe and "ep" not in fixed:
        opened.append("expert parallelism")
    found = [
        mesh | {"micro_batch": size, "num_micro": batch / (size * mesh["dp"])} | way
        for mesh in _meshes(fixed, model, num_chips)
        for size in _sizes(micro, batch, mesh, stack)
        for way in ways
    ]
    if not found:
        replicas = f"{fixed['dp']:.0f} replicas" if "dp" in fixed else f"any layout of {num_chips} chips"
        raise InputError(f"a global batch of {batch:.0f} does not feed {replicas}")
    return batch, found


def _sizes(micro: int | None, batch: float, mesh: Mapping[str, float], stack: str) -> list[float]:
    """Micro-batches that feed all replicas of a mesh evenly."""
    replicas = mesh["dp"]
    if micro is not None:
        split = batch_is_split(stack) and batch == micro * replicas and mesh.get("pp", 1.0) > 1
        size = 1.0 if split else float(micro)
        return [size] if batch >= size * replicas else []
    return [float(size) for size in _MICRO_BATCHES if batch % (size * replicas) == 0]


def _meshes(fixed: dict[str, float], model: LlmSpec, num_chips: int) -> Iterator[dict[str, float]]:
    """The parts that a row states, with every way to fill those that it does not."""
    heads, layers = model.layers[0].attention.heads, model.num_layers
    cp = fixed.get("cp", 1.0)
    for tp in _stated(fixed, "tp", [tp for tp in _TENSOR_RANKS if heads % tp == 0]):
        for pp in _stated(fixed, "pp", [pp for pp in range(1, layers + 1) if layers % pp == 0]):
            if (
                num_chips % (tp * cp * pp)
                or fixed.get("dp", num_chips / (tp * cp * pp)) * tp * cp * pp != num_chips
            ):
                continue
            dp = num_chips / (tp * cp * pp)
            for ep in _expert_ranks(fixed, model, tp * cp * dp):
                yield fixed | {"tp": tp, "pp": pp, "dp": dp} | ep


def _stated(fixed: Mapping[str, float], name: str, tried: list[int]) -> list[float]:
    return [fixed[name]] if name in fixed else [float(size) for size in tried]


def _expert_ranks(fixed: Mapping[str, float], model: LlmSpec, ranks: float) -> list[dict[str, float]]:
    experts = next((layer.moe.experts for layer in model.layers if layer.moe is not None), 0)
    if "ep" in fixed or not experts:
        return [{}]
    return [{"ep": float(ep)} for ep in range(1, experts + 1) if experts % ep == 0 and ranks % ep == 0]


def _fixed_layout(shared: Row, num_chips: int, stack: str, opened: list[str]) -> dict[str, float]:
    """What the row states of the layout; data parallelism follows from the rest where that is stated."""
    given = {name: whole(shared, name) for name in ("tp", "cp", "pp", "vpp", "ep", "dp")}
    if given["tp"] is None or given["pp"] is None:
        if shared["fsdp_or_zero"].upper().startswith("FSDP") and given["dp"] is None:
            given["tp"], given["pp"] = given["tp"] or 1, given["pp"] or 1
        else:
            opened.append("layout")
    fixed = {name: float(value) for name, value in given.items() if value is not None}
    model_ranks = fixed.get("tp", 1.0) * fixed.get("cp", 1.0) * fixed.get("pp", 1.0)
    if "layout" not in opened:
        if num_chips % model_ranks:
            raise InputError(f"tp x cp x pp = {model_ranks:.0f} does not divide its {num_chips} chips")
        stated = fixed.get("dp")
        fixed["dp"] = num_chips / model_ranks
        if stated is not None and stated != fixed["dp"]:
            raise InputError(f"tp x cp x pp x dp is not its {num_chips} chips")
    zero = shared["fsdp_or_zero"].lower()
    if "fsdp" in zero or "zero-3" in zero:
        fixed["zero"] = 2.0 if "shard_grad_op" in zero else 3.0
    elif "zero-2" in zero:
        fixed["zero"] = 2.0
    elif "zero-1" in zero or "distributed optimizer" in zero or (not zero and shards_optimizer(stack)):
        fixed["zero"] = 1.0
    group = re.search(r"(?:group|within|fsdp=)\s*(\d+)", zero)
    if group and "layout" not in opened:
        fixed["shard"] = min(float(group[1]), fixed["dp"] * fixed.get("cp", 1.0))
    sp = shared["sp"].lower()
    if sp == "yes" or (not sp and splits_sequence(stack)):
        fixed["sequence_parallel"] = 1.0
    return fixed


def _batch(shared: Row, fixed: Mapping[str, float]) -> float:
    """Sequences a step: stated, or micro-batch x replicas x accumulation."""
    stated = whole(shared, "global_batch")
    micro = whole(shared, "micro_batch")
    match = re.search(r"(?:grad accum|micro_num|mbc=)\s*(\d+)", shared["notes"])
    if stated is not None:
        return float(stated)
    if micro is None:
        raise InputError("states no batch")
    if "dp" not in fixed:
        raise InputError("states no batch (a micro-batch, but not how many replicas take one)")
    return micro * fixed["dp"] * (int(match[1]) if match else 1)


_RECOMPUTE_WAYS: Final = (
    {"recompute": float(RECOMPUTE.index("none"))},
    {"recompute": float(RECOMPUTE.index("selective"))},
    *(
        {"recompute": float(RECOMPUTE.index("block")), "recompute_share": eighths / 8}
        for eighths in range(1, 8)
    ),
    {"recompute": float(RECOMPUTE.index("full"))},
)
"""What a publisher who tuned may have tried: as little as fits."""


def _recompute(text: str) -> int | None:
    low = text.lower()
    if low.startswith("full"):
        return 2
    if low.startswith("selective"):
        return 1
    return 0 if low in ("none", "no") else None
