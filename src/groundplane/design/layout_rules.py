"""What a person fixed of a layout, held against the model, the chips and the batch: one rule at a time.

A search leaves out what does not divide; here the rule that fails is named, so that an empty search says why.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from groundplane.design.layout_space import LayoutSpace
from groundplane.perfmodel.strategy import RECOMPUTE, SCHEDULES
from groundplane.spec.errors import InputError

_MESH: Final = ("tp", "cp", "pp", "dp")


def check_fixed(space: LayoutSpace) -> None:
    """Refuses parts of a layout that cannot be, alone or together.

    Raises:
        InputError: the first rule that does not hold, with what was given and what it must divide.
    """
    size = {name: int(value) for name, value in space.fixed.items() if name != "recompute_share"}
    _check_mesh(space, size)
    _check_batch(space, size)
    _check_pipeline(space, size)
    _check_experts(space, size)
    _check_rest(space, size)


def _check_mesh(space: LayoutSpace, size: dict[str, int]) -> None:
    model, seq = space.job.model, space.job.seq
    heads = int(np.gcd.reduce([layer.attention.heads for layer in model.layers]))
    _divides(size, "tp", heads, "attention heads")
    cp = size.get("cp", 1)
    if cp > 1 and seq % (2 * cp):
        raise InputError(
            f"must divide half of the sequence of {seq} tokens (a rank holds two pieces)",
            field="layout.cp",
            value=cp,
        )
    if size.get("pp", 1) > model.num_layers:
        raise InputError(f"must not pass the {model.num_layers} layers", field="layout.pp", value=size["pp"])
    _divides(size, "dp", space.global_batch, "sequences of the global batch")
    product = 1
    for name in _MESH:
        product *= size.get(name, 1)
    given = " x ".join(name for name in _MESH if name in size)
    if all(name in size for name in _MESH) and product != space.num_chips:
        raise InputError(
            f"{given} must be the {space.num_chips} chips of the cluster", field="layout", value=product
        )
    if space.num_chips % product:
        raise InputError(
            f"{given} must divide the {space.num_chips} chips of the cluster", field="layout", value=product
        )


def _check_batch(space: LayoutSpace, size: dict[str, int]) -> None:
    names = [name for name in ("dp", "micro_batch", "num_micro") if name in size]
    product = 1
    for name in names:
        product *= size[name]
    batch = space.global_batch
    if len(names) == 3 and product != batch:
        raise InputError(
            f"dp x micro_batch x num_micro must be the global batch of {batch}", field="layout", value=product
        )
    if batch % product:
        raise InputError(
            f"{' x '.join(names)} must divide the global batch of {batch}", field="layout", value=product
        )
    if len([name for name in _MESH if name in size]) == 3 and "dp" not in size:
        dp = space.num_chips // (size["tp"] * size["cp"] * size["pp"])
        share = dp * size.get("micro_batch", 1)
        if batch % share:
            raise InputError(
                f"dp x micro_batch, here {dp} x {size.get('micro_batch', 1)}, must divide the global batch",
                field="global batch",
                value=batch,
            )


def _check_pipeline(space: LayoutSpace, size: dict[str, int]) -> None:
    layers = space.job.model.num_layers
    pp, vpp = size.get("pp", 0), size.get("vpp", 1)
    if vpp > 1:
        if layers % vpp or (pp and layers % (pp * vpp)):
            raise InputError(f"pp x vpp must divide the {layers} layers", field="layout.vpp", value=vpp)
        if pp == 1:
            raise InputError("needs a pipeline: pp of 2 or more", field="layout.vpp", value=vpp)
        if pp and "num_micro" in size and size["num_micro"] % pp:
            raise InputError(
                f"must come in rounds of pp = {pp} to interleave",
                field="layout.num_micro",
                value=size["num_micro"],
            )
    if "schedule" in size:
        name = SCHEDULES[size["schedule"]]
        if "vpp" in size and (vpp > 1) != (name == "interleaved"):
            rule = "needs vpp of 2 or more" if name == "interleaved" else f"cannot be with vpp={vpp}"
            raise InputError(rule, field="layout.schedule", value=name)
        if name == "dualpipe" and pp % 2:
            raise InputError("must be even for DualPipe", field="layout.pp", value=pp)
        if name != "1f1b" and pp == 1:
            raise InputError("needs a pipeline: pp of 2 or more", field="layout.schedule", value=name)


def _check_experts(space: LayoutSpace, size: dict[str, int]) -> None:
    counts = [layer.moe.experts for layer in space.job.model.layers if layer.moe is not None]
    for name in ("ep", "etp"):
        if size.get(name, 1) > 1 and not counts:
            raise InputError("is only for models with experts", field=f"layout.{name}", value=size[name])
    if not counts:
        return
    _divides(size, "ep", int(np.gcd.reduce(counts)), "experts")
    etp, tp, ep = size.get("etp", 1), size.get("tp", 0), size.get("ep", 1)
    if tp and etp not in (1, tp):
        raise InputError(f"must be 1 or tp, which is {tp}", field="layout.etp", value=etp)
    ranks = space.num_chips // size.get("pp", 1) // etp
    if ranks % ep:
        raise InputError(f"must divide the {ranks} ranks of a pipeline stage", field="layout.ep", value=ep)


def _check_rest(space: LayoutSpace, size: dict[str, int]) -> None:
    if space.fixed.get("recompute_share") and size.get("recompute") not in (None, RECOMPUTE.index("block")):
        raise InputError(
            "is only for recompute=block",
            field="layout.recompute_share",
            value=space.fixed["recompute_share"],
        )
    tp, cp = size.get("tp", 0), size.get("cp", 1)
    if size.get("sequence_parallel"):
        if tp == 1:
            raise InputError("needs tensor parallelism: tp of 2 or more", field="layout.sp", value=1)
        if tp and space.job.seq % (tp * cp):
            raise InputError(
                f"tp x cp = {tp * cp} must divide the sequence of {space.job.seq} tokens",
                field="layout.sp",
                value=1,
            )
    replicas = None
    if "tp" in size and "pp" in size:
        replicas = space.num_chips // (size["tp"] * size["pp"])
    if replicas is not None:
        _divides(size, "shard", replicas, "replicas (cp x dp)")
        if replicas == 1 and size.get("zero", 0) > 0:
            raise InputError("needs replicas: cp x dp of 2 or more", field="layout.zero", value=size["zero"])


def _divides(size: dict[str, int], name: str, whole: int, of: str) -> None:
    """The part `name` must divide `whole`; the largest divisor below it is named."""
    value = size.get(name, 1)
    if whole % value:
        near = max((part for part in range(1, min(value, whole) + 1) if whole % part == 0), default=1)
        raise InputError(
            f"must divide the {whole} {of}", field=f"layout.{name}", value=value, nearest=f"{name}={near}"
        )
