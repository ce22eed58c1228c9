"""Seconds that a step spends on what is kept in the host's memory: optimizer states and activations.

Optimizer states (ZeRO-Offload, Ren et al. 2021): a rank's gradients go down, the host's processors update,
new weights come up; nothing of it is hidden. Activations go down behind the forward pass and come up before
the backward pass, beside computing. Knows sizes and the host's link, no schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.memory_layers import layer_memory
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.strategy import Layouts
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.llm import LayerSpec, LlmSpec

USUAL_PCIE_BYTES_PER_S: Final = 32e9
"""Of a chip whose link to the host is not known: PCIe 4 x16."""

LINK_SHARE: Final = 0.8
"""Share of the link's rate that large copies from pinned memory reach (judgement)."""

HOST_BYTES_PER_S: Final = 300e9
"""Memory rate of a server's processors, shared by its chips (judgement: two sockets of eight channels)."""

UPDATE_BYTES: Final = 28.0
"""Adam on the host reads gradient, master weight and both moments in float32 and writes the last three."""


class HostTransfer:
    """What some layouts move between chips and hosts in one step.

    Args:
        model: what is trained.
        seq: tokens of a sequence.
        element_bytes: of one activation.
        cluster: where.
        layouts: N of them.
        layers: the kinds of layers of the model.
        optimizer_words: parameters whose optimizer state a rank updates, shape (N,).
    """

    def __init__(
        self,
        model: LlmSpec,
        seq: int,
        element_bytes: float,
        cluster: ClusterSpec,
        layouts: Layouts,
        layers: Sequence[LayerSpec],
        optimizer_words: FloatArray,
    ) -> None:
        pcie = cluster.chip.pcie_bytes_per_s or USUAL_PCIE_BYTES_PER_S
        self._link_bytes_per_s = LINK_SHARE * pcie
        self._host_bytes_per_s = HOST_BYTES_PER_S / cluster.server.num_chips
        self._layouts, self._words = layouts, optimizer_words
        self.any = bool(np.any(layouts.offload > 0))
        self._activation_bytes = np.zeros(len(layouts))
        if np.any(layouts.offloads_activations):
            kept = [
                layer_memory(model, kind, seq, layouts, MemoryProfile("any"), element_bytes).kept
                for kind in layers
            ]
            count = [model.layers.count(kind) for kind in layers]
            held = np.tensordot(np.array(count, dtype=np.float64), np.array(kept), axes=1)
            share = np.ceil(model.num_layers / layouts.pp) / model.num_layers
            self._activation_bytes = np.where(layouts.offloads_activations, held * share, 0.0)

    def optimizer_s(self, facts: StackProfile) -> FloatArray:
        """Seconds of gradients down, the update on the host, weights up; 0 where the chip keeps states."""
        moved = self._words * (facts.gradient_bytes + 2.0) / self._link_bytes_per_s
        updated = self._words * UPDATE_BYTES / self._host_bytes_per_s
        return np.where(self._layouts.offloads_optimizer, moved + updated, 0.0)

    def activations_s(self) -> FloatArray:
        """Seconds of activations down and up again, all micro-batches of the fullest stage, none hidden."""
        return 2.0 * self._activation_bytes * self._layouts.num_micro / self._link_bytes_per_s
