"""How a training job is laid out over chips: many layouts at once, one array a field.

Order of ranks, innermost first: tensor, context, data (experts within it), pipeline. Knows what a layout is
and what makes one impossible; knows no time and no memory.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from groundplane.perfmodel.evidence import FloatArray
from groundplane.spec.errors import InputError, nearest_name, unknown_name
from groundplane.spec.llm import LlmSpec

RECOMPUTE: Final = ("none", "selective", "full", "block")
"""What is computed again in the backward pass: nothing, the attention core, every layer, or a share of
layers."""

SCHEDULES: Final = ("1f1b", "interleaved", "zero-bubble", "dualpipe")

OFFLOAD: Final = ("none", "optimizer", "activations", "both")
"""What is kept in the host's memory: optimizer states, which the host's processors then update, activations
between forward and backward pass, or both."""


@dataclass(frozen=True)
class Layouts:
    """N layouts; every field is a float64 array of shape (N,), codes and flags included.

    Attributes:
        tp, cp, pp, dp: ranks of tensor, context, pipeline and data parallelism; their product is the chips.
        vpp: model chunks a pipeline rank (1: plain 1F1B).
        ep: ranks over which experts are spread, a divisor of cp x dp x tp / etp.
        etp: tensor parallelism inside experts.
        micro_batch: sequences of one micro-batch of one data-parallel rank.
        num_micro: micro-batches of a step.
        zero: 0 plain, 1 optimizer sharded, 2 gradients too, 3 weights too (FSDP).
        shard: ranks over which ZeRO or FSDP shards; fewer than dp x cp is HSDP.
        sequence_parallel: 1 where norms and residuals are split over the tensor ranks.
        recompute: index into `RECOMPUTE`.
        recompute_share: share of layers recomputed, for "block".
        schedule: index into `SCHEDULES`.
        offload: index into `OFFLOAD`.
    """

    tp: FloatArray
    cp: FloatArray
    pp: FloatArray
    vpp: FloatArray
    ep: FloatArray
    etp: FloatArray
    dp: FloatArray
    micro_batch: FloatArray
    num_micro: FloatArray
    zero: FloatArray
    shard: FloatArray
    sequence_parallel: FloatArray
    recompute: FloatArray
    recompute_share: FloatArray
    schedule: FloatArray
    offload: FloatArray

    @staticmethod
    def of(**fields: npt.ArrayLike) -> Layouts:
        """Layouts from the fields given, which broadcast; the rest is 1 (sizes), 0 (codes) or follows.

        `shard` is by default all replicas (cp x dp), `schedule` interleaved where vpp > 1.

        Raises:
            InputError: a name that is no field.
        """
        names = [field.name for field in dataclasses.fields(Layouts)]
        for name in fields:
            if name not in names:
                raise unknown_name("part of a layout", name, names, field="layout")
        arrays = {name: np.asarray(value, dtype=np.float64) for name, value in fields.items()}
        for name in names:
            if name not in arrays:
                arrays[name] = np.zeros(()) if name in _CODES else np.ones(())
        if "shard" not in fields:
            arrays["shard"] = arrays["cp"] * arrays["dp"]
        if "schedule" not in fields:
            arrays["schedule"] = np.where(arrays["vpp"] > 1, 1.0, 0.0)
        shape = np.broadcast_shapes(*(array.shape for array in arrays.values())) or (1,)
        return Layouts(**{name: np.broadcast_to(arrays[name], shape).copy() for name in names})

    def __len__(self) -> int:
        return int(self.tp.size)

    def take(self, index: npt.NDArray[Any]) -> Layouts:
        """The layouts at an index or under a mask."""
        return Layouts(**{field.name: getattr(self, field.name)[index] for field in dataclasses.fields(self)})

    @property
    def offloads_optimizer(self) -> npt.NDArray[np.bool_]:
        """Where optimizer states live in the host's memory."""
        return np.isin(self.offload, [OFFLOAD.index("optimizer"), OFFLOAD.index("both")])

    @property
    def offloads_activations(self) -> npt.NDArray[np.bool_]:
        """Where activations wait in the host's memory."""
        return np.isin(self.offload, [OFFLOAD.index("activations"), OFFLOAD.index("both")])

    @property
    def num_chips(self) -> FloatArray:
        """Chips that each layout takes."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def global_batch(self) -> FloatArray:
        """Sequences of one step."""
        return self.micro_batch * self.num_micro * self.dp

    def unique_by(self, *names: str) -> tuple[Layouts, npt.NDArray[np.intp]]:
        """One layout for each different combination of some fields, and for each layout which one is its own.

        What depends on these fields only is priced once for each combination.
        """
        if len(self) == 1:
            return self, np.zeros(1, dtype=np.intp)
        code, count = np.zeros(len(self), dtype=np.int64), 1
        for name in names:
            place, different = _places(getattr(self, name))
            code, count = code * different + place, count * different
        first, own = _first_of_each(code, count)
        return self.take(first), own

    def describe(self, index: int) -> str:
        """One layout as `parse_layout` reads it: "tp=8 pp=4 dp=16 micro_batch=1 ..."."""
        parts = []
        for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "dp", "micro_batch", "num_micro", "zero"):
            value = int(getattr(self, name)[index])
            if value != 1 or name in ("tp", "pp", "dp", "micro_batch", "zero"):
                parts.append(f"{name}={value}")
        if self.shard[index] != self.cp[index] * self.dp[index]:
            parts.append(f"shard={int(self.shard[index])}")
        if self.sequence_parallel[index]:
            parts.append("sp")
        recompute = RECOMPUTE[int(self.recompute[index])]
        parts.append(f"recompute={recompute}")
        if recompute == "block":
            parts.append(f"recompute_share={self.recompute_share[index]:g}")
        schedule = SCHEDULES[int(self.schedule[index])]
        if schedule not in ("1f1b", "interleaved"):
            parts.append(f"schedule={schedule}")
        if self.offload[index]:
            parts.append(f"offload={OFFLOAD[int(self.offload[index])]}")
        return " ".join(parts)


_MOST_COUNTED: Final = 1 << 20
"""Values up to which equal ones are found by counting; sorting is slower."""


def _places(column: FloatArray) -> tuple[npt.NDArray[np.int64], int]:
    """Of each value its place among the different values, and how many these are."""
    whole = column.astype(np.int64)
    if np.array_equal(whole, column) and int(whole.min()) >= 0 and int(whole.max()) < _MOST_COUNTED:
        there = np.zeros(int(whole.max()) + 1, dtype=np.int64)
        there[whole] = 1
        return (np.cumsum(there) - 1)[whole], int(there.sum())
    values, place = np.unique(column, return_inverse=True)
    return place.reshape(-1).astype(np.int64), len(values)


def _first_of_each(
    code: npt.NDArray[np.int64], count: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Where each different code, in ascending order, comes first, and of each code its place among these."""
    if count > _MOST_COUNTED:
        _, first, own = np.unique(code, return_index=True, return_inverse=True)
        return first, own.reshape(-1)
    where = np.full(count, -1, dtype=np.intp)
    # Of equal codes the last assignment stays: backwards that is the first.
    where[code[::-1]] = np.arange(len(code), dtype=np.intp)[::-1]
    there = np.flatnonzero(where >= 0)
    place = np.zeros(count, dtype=np.intp)
    place[there] = np.arange(len(there))
    return where[there], place[code]


_CODES: Final = ("zero", "sequence_parallel", "recompute", "recompute_share", "schedule", "offload")
"""Fields that are codes or shares: 0 where they are not given; all others are sizes."""


def parse_layout(text: str) -> dict[str, float]:
    """Fields of one layout from "tp=8,pp=16,sp,recompute=full"; commas or blanks between its parts.

    Raises:
        InputError: an unknown name, one given twice, no number, or a number out of range.
    """
    known = {
        "tp": "tp", "cp": "cp", "pp": "pp", "vpp": "vpp", "ep": "ep", "etp": "etp", "dp": "dp",
        "mb": "micro_batch", "micro": "micro_batch", "micro_batch": "micro_batch", "num_micro": "num_micro",
        "zero": "zero", "shard": "shard", "sp": "sequence_parallel", "schedule": "schedule",
        "recompute": "recompute", "recompute_share": "recompute_share", "offload": "offload",
    }  # fmt: skip
    fields: dict[str, float] = {}
    for part in filter(None, re.split(r"[,\s]+", text)):
        name, _, value = part.partition("=")
        if name not in known:
            raise InputError(
                f"unknown part of a layout; known: {', '.join(known)}",
                field="layout",
                value=name,
                nearest=nearest_name(name, known),
            )
        if known[name] in fields:
            raise InputError("is given twice", field=f"layout.{name}", value=value)
        fields[known[name]] = _field_value(name, value)
    return fields


def _field_value(name: str, value: str) -> float:
    names = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "offload": OFFLOAD}.get(name)
    if name == "offload" and not value:
        return float(OFFLOAD.index("optimizer"))
    if names is not None:
        if value not in names:
            raise unknown_name(name, value, names, field=f"layout.{name}")
        return float(names.index(value))
    if name == "sp" and not value:
        return 1.0
    if name == "recompute_share":
        try:
            share = float(value)
        except ValueError:
            raise InputError("must be a number", field=f"layout.{name}", value=value) from None
        if not 0.0 < share <= 1.0:
            raise InputError("must be above 0 and at most 1", field=f"layout.{name}", value=value)
        return share
    most = {"zero": 3, "sp": 1}.get(name)
    least = 1 if most is None else 0
    if not re.fullmatch(r"\d{1,9}", value) or int(value) < least:
        raise InputError(f"must be a whole number of at least {least}", field=f"layout.{name}", value=value)
    if most is not None and int(value) > most:
        raise InputError(f"must be at most {most}", field=f"layout.{name}", value=value)
    return float(value)


def check_layout(fields: Mapping[str, float], model: LlmSpec, num_chips: int, global_batch: int) -> None:
    """Refuses a layout that cannot be: each rule is named with what was asked and what there is.

    Args:
        fields: as `parse_layout` gives them, `dp` and `micro_batch` included.
        model: what is trained.
        num_chips: of the cluster.
        global_batch: sequences a step.

    Raises:
        InputError: the first rule that does not hold.
    """
    size = {
        name: int(fields.get(name, 1)) for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "dp", "micro_batch")
    }
    chips = size["tp"] * size["cp"] * size["pp"] * size["dp"]
    if chips != num_chips:
        raise InputError(
            f"tp x cp x pp x dp must be the {num_chips} chips of the cluster", field="layout", value=chips
        )
    attention = model.layers[0].attention
    if attention.heads % size["tp"]:
        raise InputError(f"must divide the {attention.heads} heads", field="layout.tp", value=size["tp"])
    if size["pp"] * size["vpp"] > model.num_layers:
        raise InputError(
            f"pp x vpp must not pass the {model.num_layers} layers",
            field="layout.pp",
            value=size["pp"] * size["vpp"],
        )
    share = size["dp"] * size["micro_batch"]
    if global_batch % share:
        raise InputError(
            f"dp x micro_batch must divide the global batch of {global_batch}", field="layout", value=share
        )
    if size["ep"] > 1 and not model.is_moe:
        raise InputError("is only for models with experts", field="layout.ep", value=size["ep"])
    experts = next((layer.moe.experts for layer in model.layers if layer.moe is not None), 1)
    if experts % size["ep"]:
        raise InputError(f"must divide the {experts} experts", field="layout.ep", value=size["ep"])
    replicas = size["dp"] * size["cp"] * size["tp"] // size["etp"]
    if size["ep"] > 1 and replicas % size["ep"]:
        raise InputError(f"must divide the {replicas} ranks of a stage", field="layout.ep", value=size["ep"])
