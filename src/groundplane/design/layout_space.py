"""All layouts of one training job on a number of chips that can be at all.

A layout is feasible when every size divides what it splits: heads over tensor ranks, the sequence over
context ranks, layers over pipeline chunks, the global batch over replicas and micro-batches, experts over
their ranks. Whether it fits into memory and how long it takes is for the search to find out. Layouts come in
groups that differ only in how the pipeline is scheduled and how states are sharded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

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
        fixed: fields of `Layouts` that the person fixed; `recompute`, `schedule` and `offload` by code.
        max_tp: largest tensor-parallel group tried (None: up to the number of heads).
        schedules: of the pipeline, those that the software stack has.
    """

    job: TrainingJob
    num_chips: int
    global_batch: int
    fixed: dict[str, float]
    max_tp: int | None = None
    schedules: tuple[str, ...] = SCHEDULES
    _known: dict[tuple[int, int, int], FloatArray] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in (("chips", self.num_chips), ("global batch", self.global_batch)):
            if value < 1:
                raise InputError("must be a positive integer", field=name, value=value)
        if not self.schedules:
            raise InputError("must name one schedule at least", field="schedules")
        for name in self.schedules:
            if name not in SCHEDULES:
                raise unknown_name("schedule", name, SCHEDULES, field="schedules")
        for name in self.fixed:
            if name not in (
                *_VARIED,
                "dp",
                "num_micro",
                "recompute",
                "recompute_share",
                "schedule",
                "offload",
            ):
                raise unknown_name("part of a layout", name, _VARIED, field="layout")

    def meshes(self) -> list[tuple[int, int, int, int]]:
        """Every (tp, cp, pp, dp) that uses all chips and keeps the rules."""
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

    def groups(self) -> Layouts:
        """One layout for each group that a bound is taken of: everything but the pipeline and the sharding.

        Its pipeline is plain 1F1B and its weights are not sharded; `expand` gives all layouts of the group.

        Raises:
            InputError: nothing divides the chips, the batch and the model.
        """
        parts: list[FloatArray] = []
        for mesh in self.meshes():
            tp, cp, _, dp = mesh
            micro = [size for size in divisors(self.global_batch // dp) if self._is("micro_batch", size)]
            batches: list[tuple[float, ...]] = [
                (float(size), float(self.global_batch // (dp * size))) for size in micro
            ]
            options: list[list[tuple[float, ...]]] = [
                [item for item in batches if self._is("num_micro", item[1])],
                self._experts(tp, cp, dp),
                self._recomputes(),
                [
                    (float(flag),)
                    for flag in self._allowed("sequence_parallel", self._sequence_parallel(tp, cp))
                ],
            ]
            table = _product(options, len(_GROUP_FIELDS) - 4)
            parts.append(
                np.hstack([np.broadcast_to(np.array(mesh, dtype=np.float64), (len(table), 4)), table])
            )
        rows = np.concatenate(parts) if parts else np.zeros((0, len(_GROUP_FIELDS)))
        if not len(rows):
            raise InputError("no layout divides the chips, the batch and the model", field="layout")
        # States and activations stay on the chip unless a person asks: the host is what a search tries last.
        offload = self.fixed.get("offload", 0.0)
        return Layouts.of(**dict(zip(_GROUP_FIELDS, rows.T, strict=True)), offload=offload)

    def num_members(self, groups: Layouts) -> npt.NDArray[np.intp]:
        """How many layouts each group stands for."""
        tables, kind = self._tables(groups)
        return np.array([len(table) for table in tables], dtype=np.intp)[kind]

    def expand(self, groups: Layouts) -> tuple[Layouts, npt.NDArray[np.intp]]:
        """All layouts of some groups, group by group, and for each the place of its group."""
        tables, kind = self._tables(groups)
        sizes = np.array([len(table) for table in tables], dtype=np.intp)
        count = sizes[kind]
        own = np.repeat(np.arange(len(groups)), count)
        # The rows of a group's table lie one after another: where they begin, and the place within.
        first = (np.cumsum(sizes) - sizes)[kind]
        within = np.arange(len(own)) - np.repeat(np.cumsum(count) - count, count)
        rows = np.concatenate(tables)[first[own] + within]
        members = {name: rows[:, column] for column, name in enumerate(_MEMBER_FIELDS)}
        kept = {name: value[own] for name, value in vars(groups).items() if name not in members}
        return Layouts(**kept, **members), own

    def _tables(self, groups: Layouts) -> tuple[list[FloatArray], npt.NDArray[np.intp]]:
        """Every (vpp, schedule, zero, shard) of each kind of group, and which kind each group is."""
        keys = np.stack([groups.pp, groups.num_micro, groups.cp * groups.dp], axis=1)
        kinds, kind = np.unique(keys, axis=0, return_inverse=True)
        found = []
        for row in kinds:
            pp, num_micro, replicas = (int(value) for value in row)
            key = (pp, num_micro, replicas)
            if key not in self._known:
                self._known[key] = _product(
                    [self._pipelines(pp, num_micro), self._shardings(replicas)], len(_MEMBER_FIELDS)
                )
            found.append(self._known[key])
        return found, kind.reshape(-1)

    def _pipelines(self, pp: int, num_micro: int) -> list[tuple[float, ...]]:
        """(vpp, schedule): chunks divide the layers, and interleaving needs micro-batches in rounds of pp."""
        layers = self.job.model.num_layers
        found: list[tuple[float, ...]] = []
        for schedule, name in enumerate(SCHEDULES):
            if not self._is("schedule", schedule) or (pp == 1 and name != "1f1b"):
                continue
            if name not in self.schedules and "schedule" not in self.fixed and pp > 1:
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


_GROUP_FIELDS: Final = (
    "tp", "cp", "pp", "dp", "micro_batch", "num_micro", "ep", "etp", "recompute", "recompute_share",
    "sequence_parallel",
)  # fmt: skip
_MEMBER_FIELDS: Final = ("vpp", "schedule", "zero", "shard")


def _product(options: list[list[tuple[float, ...]]], width: int) -> FloatArray:
    """Every combination of one item of each list, side by side: shape (combinations, width)."""
    sizes = [len(option) for option in options]
    count = int(np.prod(sizes))
    if not count:
        return np.zeros((0, width))
    index = np.unravel_index(np.arange(count), sizes)
    return np.hstack([np.array(option)[place] for place, option in zip(index, options, strict=True)])


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
