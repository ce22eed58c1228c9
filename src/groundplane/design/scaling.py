"""How a training job scales over chips, and what would relieve it: searches over changed clusters.

Every point is the best layout of its own search, so a curve shows what a good operator reaches at each size
and not one layout stretched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import msgspec

from groundplane.design.layout_space import LayoutSpace
from groundplane.design.parallelism import SearchResult, search
from groundplane.design.training_search import JUDGED, TrainingPricer
from groundplane.perfmodel.evidence import Evidence
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.strategy import RECOMPUTE, SCHEDULES, Layouts
from groundplane.perfmodel.training import TrainingJob
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.errors import InputError

Mode = Literal["strong", "weak"]


@dataclass(frozen=True)
class ScalingPoint:
    """The best layout on some number of chips.

    `efficiency` is tokens/s a chip against the first point that fits; `layout` is None where nothing fits.
    """

    num_chips: int
    global_batch: int
    layout: Layouts | None
    step_s: float
    tokens_per_s: float
    mfu: float
    efficiency: float
    memory_bytes: float


@dataclass(frozen=True)
class WhatIf:
    """The job after one change: the old best layout as it is, and the best layout found anew.

    `gain` is the old step time over the new best one: 1.1 is 10 % more tokens/s.
    """

    name: str
    same_layout_s: float
    best_s: float
    gain: float
    layout: Layouts | None


@dataclass(frozen=True)
class Study:
    """What is studied: a job under a stack on clusters of one kind, with parts of the layout given.

    Attributes:
        job: model, sequence length, precision.
        cluster_of: the cluster of so many chips.
        profile: how the software stack spends time.
        memory: how it spends memory.
        fixed: parts of the layout that are given, as `LayoutSpace.fixed`.
        schedules: of the pipeline, those that may be used.
        residuals: of the stack's whole steps.
    """

    job: TrainingJob
    cluster_of: Callable[[int], ClusterSpec]
    profile: StackProfile
    memory: MemoryProfile
    fixed: dict[str, float] = field(default_factory=dict)
    schedules: tuple[str, ...] = SCHEDULES
    residuals: Evidence = JUDGED

    def pricer(self, cluster: ClusterSpec) -> TrainingPricer:
        """The prices of layouts on a cluster."""
        return TrainingPricer(self.job, cluster, self.profile, self.memory, self.residuals)

    def search(
        self,
        cluster: ClusterSpec,
        global_batch: int,
        *,
        fixed: dict[str, float] | None = None,
        top: int = 1,
        objective: str = "step_time",
    ) -> SearchResult:
        """The best layouts on all chips of a cluster; `fixed` in place of the study's own."""
        given = self.fixed if fixed is None else fixed
        space = LayoutSpace(self.job, cluster.num_chips, global_batch, given, schedules=self.schedules)
        return search(space, self.pricer(cluster), top=top, objective=objective)


def model_flops(job: TrainingJob, global_batch: int) -> float:
    """Useful FLOPs of a step: three times the forward pass, every query seeing all keys, no recompute.

    The convention of PaLM (Chowdhery et al. 2022, appendix B), which most published MFU figures follow.
    """
    return 3.0 * job.model.forward_flops_per_token(job.seq, causal=False).total * global_batch * job.seq


def scaling_curve(
    study: Study, sizes: Sequence[int], global_batch: int, *, mode: Mode = "strong"
) -> list[ScalingPoint]:
    """The best layout at each size.

    Args:
        study: what is trained, where and how.
        sizes: chips, ascending.
        global_batch: sequences of a step; with mode "weak" at the first size, growing with the chips.
        mode: "strong" keeps the batch, "weak" keeps the batch of a chip.

    Raises:
        InputError: sizes that do not ascend, or a weak batch that is not whole.
    """
    if not sizes or any(second <= first for first, second in pairwise(sizes)):
        raise InputError("must ascend", field="chips", value=list(sizes))
    points: list[ScalingPoint] = []
    for size in sizes:
        batch = global_batch
        if mode == "weak":
            if global_batch * size % sizes[0]:
                rule = "must grow to a whole batch at every size"
                raise InputError(rule, field="global batch", value=global_batch)
            batch = global_batch * size // sizes[0]
        cluster = study.cluster_of(size)
        points.append(_point(study.job, cluster, batch, study.search(cluster, batch), points))
    return points


def what_ifs(study: Study, num_chips: int, global_batch: int, best: Layouts) -> list[WhatIf]:
    """What each change would give, the most helpful first.

    Changes: twice the network cards, the scale-up links, the memory, its bandwidth, the peaks; a network
    without oversubscription; and each way to recompute. `best` is the layout to compare with, alone.
    """
    cluster = study.cluster_of(num_chips)
    before_s = float(study.pricer(cluster).step_times(best).step_s[0])
    cases = [(name, changed, study.fixed) for name, changed in changed_clusters(cluster)]
    if "recompute" not in study.fixed:
        now = int(best.recompute[0])
        cases += [
            (f"recompute {name}", cluster, {**study.fixed, "recompute": float(code)})
            for code, name in enumerate(RECOMPUTE)
            if code != now
        ]
    found = []
    for name, changed, fixed in cases:
        result = study.search(changed, global_batch, fixed=fixed)
        same_s = float(study.pricer(changed).step_times(best).step_s[0])
        best_s = float(result.best.step_s[0]) if len(result.best) else float("inf")
        layout = result.best.layouts if len(result.best) else None
        found.append(WhatIf(name, same_s, best_s, before_s / best_s, layout))
    return sorted(found, key=lambda item: -item.gain)


def changed_clusters(cluster: ClusterSpec) -> list[tuple[str, ClusterSpec]]:
    """The cluster with one thing better, for each thing that it has."""
    chip, server, fabric = cluster.chip, cluster.server, cluster.fabric
    changes: list[tuple[str, ClusterSpec]] = []
    replace = msgspec.structs.replace
    if server.nics is not None and cluster.scaleup_size < cluster.num_chips:
        nics = replace(server.nics, rate_bytes_per_s=2.0 * server.nics.rate_bytes_per_s)
        link = None if fabric.link_bytes_per_s is None else 2.0 * fabric.link_bytes_per_s
        faster = replace(
            cluster, server=replace(server, nics=nics), fabric=replace(fabric, link_bytes_per_s=link)
        )
        changes.append(("network cards twice as fast", faster))
    if fabric.oversubscription > 1.0:
        changes.append(
            ("no oversubscription", replace(cluster, fabric=replace(fabric, oversubscription=1.0)))
        )
    chips = [
        ("twice the memory", replace(chip, memory_bytes=2 * chip.memory_bytes)),
        ("memory twice as fast", replace(chip, memory_bytes_per_s=2.0 * chip.memory_bytes_per_s)),
        (
            "twice the peak of every format",
            replace(
                chip, peak_flops_per_s={name: 2.0 * peak for name, peak in chip.peak_flops_per_s.items()}
            ),
        ),
    ]
    if chip.scaleup_bytes_per_s is not None and cluster.scaleup_size > 1:
        peer = chip.scaleup_per_peer_bytes_per_s
        wider = replace(
            chip,
            scaleup_bytes_per_s=2.0 * chip.scaleup_bytes_per_s,
            scaleup_per_peer_bytes_per_s=None if peer is None else 2.0 * peer,
        )
        chips.append(("scale-up links twice as fast", wider))
    changes += [(name, replace(cluster, server=replace(server, chip=better))) for name, better in chips]
    return changes


def _point(
    job: TrainingJob,
    cluster: ClusterSpec,
    global_batch: int,
    result: SearchResult,
    before: list[ScalingPoint],
) -> ScalingPoint:
    num_chips = cluster.num_chips
    if not len(result.best):
        return ScalingPoint(
            num_chips, global_batch, None, float("inf"), 0.0, 0.0, 0.0, result.least_memory_bytes
        )
    step_s = float(result.best.step_s[0])
    tokens_per_s = global_batch * job.seq / step_s
    peak = cluster.chip.peak(job.precision.linear.split("_", maxsplit=1)[0])
    mfu = model_flops(job, global_batch) / (step_s * num_chips * peak)
    first = next((point for point in before if point.layout is not None), None)
    efficiency = 1.0
    if first is not None:
        efficiency = tokens_per_s / num_chips / (first.tokens_per_s / first.num_chips)
    return ScalingPoint(
        num_chips,
        global_batch,
        result.best.layouts,
        step_s,
        tokens_per_s,
        mfu,
        efficiency,
        float(result.best.memory_bytes[0]),
    )
