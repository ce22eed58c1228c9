"""Communication between replicas: gradients and weights, plain, sharded by ZeRO, or gathered layer by layer
(FSDP).

Knows how large each rank's share is and how long the collectives take; what of it shows follows from a
profile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from groundplane.perfmodel.collectives import CollectiveKind, Links, collective_time_s
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.strategy import Layouts

if TYPE_CHECKING:
    from groundplane.perfmodel.training import TrainingJob


class Exchange:
    """What replicas exchange in one step, at benchmark speed.

    Attributes:
        optimizer_words: parameters whose optimizer state a rank updates.
    """

    def __init__(self, job: TrainingJob, links: Links, layouts: Layouts, facts: StackProfile) -> None:
        self._links, self._layouts = links, layouts
        dense, experts = self._stage_parameters(job)
        dense_rank, expert_rank = dense / layouts.tp, experts / (layouts.ep * layouts.etp)
        sharded = np.where(layouts.zero >= 1, layouts.shard, 1.0)
        replicas = np.maximum(layouts.tp * layouts.cp * layouts.dp / (layouts.ep * layouts.etp), 1.0)
        expert_shard = np.where(layouts.zero >= 1, np.minimum(sharded, replicas), 1.0)
        self.optimizer_words = dense_rank / sharded + expert_rank / expert_shard
        gradient, weight = facts.gradient_bytes, 4.0 if facts.gathers_in_fp32 else 2.0
        whole = layouts.cp * layouts.dp
        group = np.where(layouts.zero >= 1, np.minimum(layouts.shard, whole), whole)
        copies = np.maximum(whole / group, 1.0)
        self._gathered_s = self._both("all_gather", dense_rank, expert_rank, weight, group)
        self._spread_s = self._both("all_gather", dense_rank, expert_rank, gradient, whole)
        scattered = self._both("reduce_scatter", dense_rank, expert_rank, gradient, group)
        # Where only part of the replicas shard (HSDP), each rank adds up its shard with those of other parts.
        stride = np.minimum(layouts.tp * group, float(links.chips_per_domain))
        summed = self._over("all_reduce", dense_rank * gradient / group, copies, stride)
        self._reduced_s = scattered + np.where(copies > 1, summed, 0.0)

    def exposed_s(self, profile: StackProfile, free_s: FloatArray) -> FloatArray:
        """Seconds that show, beside `free_s` of computing in the step that may cover them."""
        layouts = self._layouts
        reduced = self._reduced_s / profile.link_share
        gathered = self._gathered_s / profile.link_share
        spread = self._spread_s / profile.link_share
        # Gradients are complete in the last micro-batch only, so its backward pass is what can cover them.
        last = free_s * (2.0 / 3.0) / layouts.num_micro
        plain = np.where(
            layouts.zero >= 1,
            _shown(reduced, last, profile.overlaps_backward, profile.exposed_share)
            + _shown(gathered, last / 2.0, profile.gathers_ahead, profile.exposed_share),
            _shown(reduced + spread, last, profile.overlaps_backward, profile.exposed_share),
        )
        # FSDP gathers for every micro-batch, forward and backward, and reduces in each backward pass.
        gathers = layouts.num_micro * (1.0 + (layouts.zero >= 3)) * gathered
        reduces = layouts.num_micro * reduced
        hidden = gathers * profile.gathers_ahead + reduces * profile.overlaps_backward
        fsdp = gathers + reduces - hidden + _shown(hidden, free_s, True, profile.exposed_share)
        return np.asarray(np.where(layouts.zero >= 2, fsdp, plain))

    def _stage_parameters(self, job: TrainingJob) -> tuple[FloatArray, FloatArray]:
        """Parameters of the fullest pipeline stage, those of experts apart."""
        model, pp = job.model, self._layouts.pp
        count = model.parameters()
        experts = float(count.experts)
        table = float(model.vocab * model.hidden)
        tables = 1.0 if model.tied_embeddings else 2.0
        layers = float(count.total) - experts - table * tables
        share = np.ceil(model.num_layers / pp) / model.num_layers
        # A stage at an end holds one table; without a pipeline one rank holds both, unless they are the same.
        return layers * share + np.where(pp > 1, table, table * tables), experts * share

    def _both(
        self,
        kind: CollectiveKind,
        dense: FloatArray,
        experts: FloatArray,
        element_bytes: float,
        group: FloatArray,
    ) -> FloatArray:
        """A collective over groups of replicas of dense weights, and another over those of experts."""
        layouts = self._layouts
        seconds = self._over(kind, dense * element_bytes, group, layouts.tp)
        expert_replicas = np.maximum(layouts.tp * layouts.cp * layouts.dp / (layouts.ep * layouts.etp), 1.0)
        expert_replicas = np.minimum(expert_replicas, group * layouts.tp)
        stride = np.minimum(layouts.ep * layouts.etp, float(self._links.chips_per_domain))
        return np.where(
            experts > 0, seconds + self._over(kind, experts * element_bytes, expert_replicas, stride), seconds
        )

    def _over(
        self, kind: CollectiveKind, size: FloatArray, replicas: FloatArray, stride: FloatArray
    ) -> FloatArray:
        """A collective over ranks that lie `stride` apart, as replicas do."""
        inside = np.clip(np.floor(self._links.chips_per_domain / stride), 1.0, replicas)
        return collective_time_s(self._links, kind, size, inside, np.ceil(replicas / inside))


def _shown(seconds: FloatArray, cover: FloatArray, overlaps: bool, exposed_share: float) -> FloatArray:
    """What shows of communication beside computing that could cover it."""
    if not overlaps:
        return seconds
    covered = np.minimum(seconds, cover)
    return np.asarray(seconds - covered + exposed_share * covered)
