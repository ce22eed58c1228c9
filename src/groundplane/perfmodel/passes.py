"""What one pass of one rank consists of, for many layouts at once: seconds by kind, products, bytes streamed.

The parts that every operator of a layer is put together from. Knows shapes, chips and links, no layers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel import kernels
from groundplane.perfmodel.collectives import CollectiveKind, Links, collective_time_s
from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.strategy import Layouts
from groundplane.spec.cluster import ChipSpec
from groundplane.spec.llm import LlmSpec

SCALED_FORMATS: Final = ("fp8", "fp8_block", "fp4")
"""Formats whose operands are cast from bf16 before each product."""


class Precision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Number formats of a run: of linear layers, of attention and the head, and bytes of one activation
    element."""

    linear: str = "bf16"
    other: str = "bf16"
    activation_bytes: float = 2.0


@dataclass
class Pass:
    """Benchmark seconds of one pass of one micro-batch through a part of the model, by kind.

    `scaled` are products in formats with scales (fp8, fp4), `matmul` all others. `hidden` is one more read
    or write of the hidden state in each layer, which a stack may do several times; `operators` counts what
    the host launches. Communication is all of it, none hidden: `tensor` and `expert` are what a layer waits
    for, `hops` counts the ranks that tensor collectives go past, `beside` can run beside weight gradients,
    `context` beside attention.
    """

    matmul: FloatArray
    scaled: FloatArray
    attention: FloatArray
    memory_bound: FloatArray
    hidden: FloatArray
    operators: FloatArray
    tensor: FloatArray
    hops: FloatArray
    beside: FloatArray
    context: FloatArray
    expert: FloatArray

    @staticmethod
    def nothing(num: int) -> Pass:
        """A pass that takes no time."""
        return Pass(*(np.zeros(num) for _ in fields(Pass)))

    def plus(self, other: Pass, times: FloatArray | float = 1.0) -> Pass:
        """This pass and `times` another."""
        return Pass(*(getattr(self, f.name) + times * getattr(other, f.name) for f in fields(Pass)))

    def take(self, index: np.ndarray) -> Pass:
        """The pass at an index of layouts."""
        return Pass(*(getattr(self, f.name)[index] for f in fields(Pass)))


@dataclass(frozen=True)
class Linear:
    """A linear layer as one rank computes it: outputs, inputs, and products of that shape in one launch."""

    outputs: FloatArray
    inputs: FloatArray
    rows: FloatArray
    batch: FloatArray


_SHAPE_FIELDS: Final = ("tp", "cp", "ep", "etp", "micro_batch")
"""What the shapes of a rank's kernels depend on."""


class Rank:
    """One rank of each of some layouts: what it is given of a micro-batch, and what its operators take.

    Args:
        chip: what computes.
        links: of the cluster.
        model: whose layers are priced.
        seq: tokens of a sequence.
        precision: number formats.
        profile: the software stack.
        layouts: N of them; results have shape (N,).

    Attributes:
        tokens: of a micro-batch on this rank.
        hidden_bytes: of the hidden state outside of the tensor-parallel blocks.
        bytes_per_s: at which operators stream.
        hops_everywhere: where tensor collectives within a node cost as those beyond it (see `slow_gathers`).
    """

    def __init__(
        self,
        chip: ChipSpec,
        links: Links,
        model: LlmSpec,
        seq: int,
        precision: Precision,
        profile: StackProfile,
        layouts: Layouts,
    ) -> None:
        self.chip, self.links, self.model, self.seq = chip, links, model, float(seq)
        self.precision, self.profile, self.layouts = precision, profile, layouts
        self.tokens = layouts.micro_batch * self.seq / layouts.cp
        memory = kernels.memory_curve(chip)
        self.bytes_per_s = memory.memory_bytes_per_s * memory.efficiency
        split = np.where(layouts.sequence_parallel > 0, layouts.tp, 1.0)
        self.hidden_bytes = self.tokens * model.hidden * precision.activation_bytes / split
        several = layouts.num_chips > links.chips_per_domain
        self.hops_everywhere = several & profile.slow_gathers
        self._tensor_inside = np.minimum(layouts.tp, float(links.chips_per_domain))
        # Kernels of one shape are priced once, however many layouts run them.
        _, self.own_shape = layouts.unique_by(*_SHAPE_FIELDS)
        self.one_of_shape = np.unique(self.own_shape, return_index=True)[1]

    def stream(self, result: Pass, num_bytes: FloatArray) -> None:
        """Adds reading and writing so many bytes."""
        result.memory_bound += num_bytes / self.bytes_per_s

    def linear(self, outputs: FloatArray | float, inputs: FloatArray | float) -> Linear:
        """A product of all tokens."""
        one = np.ones(len(self.layouts))
        return Linear(one * outputs, one * inputs, self.tokens, one)

    def add_linears(
        self, result: Pass, linears: list[Linear], *, backward: bool, dtype: str | None = None
    ) -> None:
        """Adds products, forward, or the data and the weight gradient of each."""
        name = dtype or self.precision.linear
        passes: tuple[kernels.Which, ...] = ("data_gradient", "weight_gradient") if backward else ("forward",)
        for linear in linears:
            for which in passes:
                one = self.one_of_shape
                seconds = kernels.matmul_time_s(
                    self.chip, name, linear.rows[one], linear.outputs[one], linear.inputs[one],
                    linear.batch[one], which,
                )  # fmt: skip
                if name in SCALED_FORMATS:
                    result.scaled += seconds[self.own_shape]
                else:
                    result.matmul += seconds[self.own_shape]
                # Grouped products of experts are launched one by one.
                result.operators += linear.batch
            if name in SCALED_FORMATS:
                self._add_casts(result, linear, backward=backward)

    def _add_casts(self, result: Pass, linear: Linear, *, backward: bool) -> None:
        """Casts of the operands, row-wise and column-wise at once: read bf16, write two narrow copies."""
        rows = linear.rows * linear.batch
        if backward:
            elements = rows * linear.outputs
        else:
            weights = linear.inputs * linear.outputs * linear.batch
            elements = rows * linear.inputs + weights
        self.stream(result, elements * (2.0 + 2.0))
        result.operators += 2.0 * linear.batch

    def tensor_s(self, kind: CollectiveKind, size: FloatArray) -> FloatArray:
        """Seconds of a collective over the tensor ranks."""
        domains = np.ceil(self.layouts.tp / self._tensor_inside)
        return collective_time_s(self.links, kind, size, self._tensor_inside, domains)
