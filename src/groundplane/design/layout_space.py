"""All layouts of one training job on a number of chips that can be at all.

A layout is feasible when every size divides what it splits: heads over tensor ranks, the sequence over
context ranks, layers over pipeline chunks, the global batch over replicas and micro-batches, experts over
their ranks. Whether it fits into memory and how long it takes is for the search to find out. Layouts come in
blocks that share the sizes of the mesh.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.strategy import RECOMPUTE, SCHEDULES, Layouts
from groundplane.perfmodel.training import TrainingJob
from groundplane.spec.errors import InputError, unknown_name

RECOMPUTE_SHARES: Final = (0.25, 0.5, 0.75)
"""Shares of the layers that recompute of some layers is tried with."""

_VARIED: Final = ("tp", "cp", "pp", "vpp", "ep", "etp", "micro_batch", "zero", "shard", "sequence_parallel")
_INTERLEAVED: Final = SCHEDULES.index("interleaved")


@dataclass(frozen=True)
class LayoutSpace:
    """What a search may vary, and what is fixed.

    Attributes:
        job: model, sequence length, precision.
        num_chips: all of them are used.
        global_batch: sequences a step.
        fixed: fields of `Layouts` that the person fixed; `recompute` and `schedule` by code.
        max_tp: largest tensor-parallel group tried (None: up to the number of heads).
    """

    job: TrainingJob
    num_chips: int
    global_batch: int
    fixed: dict[str, float]
    max_tp: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("chips", self.num_chips), ("global batch", self.global_batch)):
            if value < 1:
                raise InputError("must be a positive integer", field=name, value=value)
        for name in self.fixed:
            if name not in (*_VARIED, "dp", "num_micro", "recompute", "recompute_share", "schedule"):
                raise unknown_name("part of a layout", name, _VARIED, field="layout")

    def meshes(self) -> list[tuple[int, int, int, int]]:
        """(tp, cp, pp, dp) of every block, all chips used, every rule of the mesh kept."""
        model, seq = self.job.model, self.job.seq
        heads = int(np.gcd.reduce([layer.attention.heads for layer in model.layers]))
        most = min(heads, self.max_tp or heads)
        found = []
        for tp in self._allowed("tp", [size for size in divisors(self.num_chips) if size <= most]):
            if heads % tp:
                continue
            for cp in self._allowed("cp", divisors(self.num_chips // tp)):
                # A context rank holds a front and a back piece, so that causal work is even.
                if cp > 1 and seq % (2 * cp):
                    continue
                for pp in self._allowed("pp", divisors(self.num_chips // (tp * cp))):
                    dp = self.num_chips // (tp * cp * pp)
                    if pp <= model.num_layers and self.global_batch % dp == 0 and self._is("dp", dp):
                        found.append((tp, cp, pp, dp))
        return found

    def block(self, mesh: tuple[int, int, int, int]) -> Layouts | None:
        """All layouts on one mesh, or None where there are none."""
        tp, cp, pp, dp = mesh
        micro = [size for size in divisors(self.global_batch // dp) if self._is("micro_batch", size)]
        parts = []
        for size in micro:
            num_micro = self.global_batch // (dp * size)
            if self._is("num_micro", num_micro):
                parts.append(self._rest(mesh, size, num_micro))
        parts = [part for part in parts if len(part["vpp"])]
        if not parts:
            return None
        fields = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return Layouts.of(tp=tp, cp=cp, pp=pp, dp=dp, **fields)

    def blocks(self) -> Iterator[Layouts]:
        """Every block that has any layout."""
        for mesh in self.meshes():
            block = self.block(mesh)
            if block is not None:
                yield block

    def _rest(
        self, mesh: tuple[int, int, int, int], micro_batch: int, num_micro: int
    ) -> dict[str, FloatArray]:
        """Every combination of what a mesh and a micro-batch leave open."""
        tp, cp, pp, dp = mesh
        options: dict[str, list[tuple[float, ...]]] = {
            "pipeline": self._pipelines(pp, num_micro),
            "experts": self._experts(tp, cp, dp),
            "sharding": self._shardings(cp * dp),
            "recompute": self._recomputes(),
            "sequence_parallel": [
                (float(flag),) for flag in self._allowed("sequence_parallel", self._sequence_parallel(tp, cp))
            ],
        }
        sizes = [len(option) for option in options.values()]
        count = int(np.prod(sizes))
        index = np.unravel_index(np.arange(count), sizes) if count else [np.zeros(0, dtype=int)] * len(sizes)
        columns: dict[str, FloatArray] = {
            "micro_batch": np.full(count, float(micro_batch)),
            "num_micro": np.full(count, float(num_micro)),
        }
        for place, (name, option) in zip(index, options.items(), strict=True):
            table = np.array(option, dtype=np.float64).reshape(len(option), len(_FIELDS_OF[name]))
            for column, field in enumerate(_FIELDS_OF[name]):
                columns[field] = table[place, column] if count else np.zeros(0)
        return columns

    def _pipelines(self, pp: int, num_micro: int) -> list[tuple[float, ...]]:
        """(vpp, schedule): chunks divide the layers, and interleaving needs micro-batches in rounds of pp."""
        layers = self.job.model.num_layers
        found: list[tuple[float, ...]] = []
        for schedule, name in enumerate(SCHEDULES):
            if not self._is("schedule", schedule) or (pp == 1 and name != "1f1b"):
                continue
            if name == "dualpipe" and (pp % 2 or num_micro < 2 * pp):
                continue
            chunks = [1]
            if schedule == _INTERLEAVED:
                whole = layers % pp == 0 and num_micro % pp == 0
                chunks = [size for size in divisors(layers // pp) if size > 1] if whole else []
            found += [(float(vpp), float(schedule)) for vpp in chunks if self._is("vpp", vpp)]
        return found

    def _experts(self, tp: int, cp: int, dp: int) -> list[tuple[float, ...]]:
        """(ep, etp): ranks over which experts are spread, and tensor parallelism inside them."""
        counts = [layer.moe.experts for layer in self.job.model.layers if layer.moe is not None]
        if not counts:
            return [(1.0, 1.0)] if self._is("ep", 1) else []
        experts = int(np.gcd.reduce(counts))
        found: list[tuple[float, ...]] = []
        for etp in sorted({1, tp}):
            ranks = tp * cp * dp // etp
            fits = [size for size in divisors(experts) if ranks % size == 0]
            found += [(float(ep), float(etp)) for ep in fits if self._is("ep", ep) and self._is("etp", etp)]
        return found

    def _shardings(self, replicas: int) -> list[tuple[float, ...]]:
        """(zero, shard): nothing, optimizer, gradients too; weights too over all replicas or fewer (HSDP)."""
        found: list[tuple[float, ...]] = [(0.0, float(replicas))]
        if replicas > 1:
            found += [(1.0, float(replicas)), (2.0, float(replicas))]
            found += [(3.0, float(size)) for size in divisors(replicas) if size > 1]
        return [(zero, shard) for zero, shard in found if self._is("zero", zero) and self._is("shard", shard)]

    def _recomputes(self) -> list[tuple[float, ...]]:
        """(recompute, share of the layers)."""
        found: list[tuple[float, ...]] = [
            (float(code), 0.0) for code, name in enumerate(RECOMPUTE) if name != "block"
        ]
        found += [(float(RECOMPUTE.index("block")), share) for share in RECOMPUTE_SHARES]
        if "recompute_share" in self.fixed:
            found = [(item[0], self.fixed["recompute_share"]) for item in found]
        return sorted({item for item in found if self._is("recompute", item[0])})

    def _sequence_parallel(self, tp: int, cp: int) -> list[int]:
        return [0, 1] if tp > 1 and self.job.seq % (tp * cp) == 0 else [0]

    def _allowed(self, name: str, values: list[int]) -> list[int]:
        return [value for value in values if self._is(name, value)]

    def _is(self, name: str, value: Any) -> bool:
        """Whether a value is what the person fixed, or nothing was."""
        return name not in self.fixed or float(self.fixed[name]) == float(value)


_FIELDS_OF: Final = {
    "pipeline": ("vpp", "schedule"),
    "experts": ("ep", "etp"),
    "sharding": ("zero", "shard"),
    "recompute": ("recompute", "recompute_share"),
    "sequence_parallel": ("sequence_parallel",),
}


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
