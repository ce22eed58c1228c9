"""Benchmark time of the operators of one layer, forward and backward, for many layouts at once.

Each operator is listed from the architecture: its products by shape, attention, what memory-bound operators
read and write, how many operators the host launches, and the communication that a layer waits for. Shapes
are those of one rank. Knows nothing of pipelines, steps or data parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel import kernels
from groundplane.perfmodel.collectives import CollectiveKind, Links, collective_time_s
from groundplane.perfmodel.evidence import FloatArray, Numbers
from groundplane.perfmodel.profiles import StackProfile
from groundplane.perfmodel.strategy import RECOMPUTE, Layouts
from groundplane.spec.cluster import ChipSpec
from groundplane.spec.llm import AttentionSpec, LayerSpec, LlmSpec, MlpSpec, MoeSpec

SCALED_FORMATS: Final = ("fp8", "fp8_block", "fp4")
"""Formats whose operands are cast from bf16 before each product."""


MOE_KINDS: Final[tuple[CollectiveKind, ...]] = ("moe_dispatch", "moe_combine")

_SOFTMAX_GROUP: Final = 4
_ALIGNED: Final = 8
_UNALIGNED_COST: Final = 8.0
"""Batched products with a width that is no multiple of 16 bytes leave the tensor cores: a quarter of the
peak at half of the efficiency."""


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
class _Linear:
    """A linear layer as one rank computes it: outputs, inputs, and products of that shape in one launch."""

    outputs: FloatArray
    inputs: FloatArray
    rows: FloatArray
    batch: FloatArray


_SHAPE_FIELDS: Final = ("tp", "cp", "ep", "etp", "micro_batch")
"""What the shapes of a rank's kernels depend on."""


class LayerPricer:
    """Prices layers of one model on one chip under one stack, for some layouts.

    Args:
        chip: what computes.
        links: of the cluster.
        model: whose layers are priced.
        seq: tokens of a sequence.
        precision: number formats.
        profile: the software stack.
        layouts: N of them; results have shape (N,).
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
        self._rate = memory.memory_bytes_per_s * memory.efficiency
        split = np.where(layouts.sequence_parallel > 0, layouts.tp, 1.0)
        self._hidden_bytes = self.tokens * model.hidden * precision.activation_bytes / split
        several = layouts.num_chips > links.chips_per_domain
        self._hops_everywhere = several & profile.slow_gathers
        self._tensor_inside = np.minimum(layouts.tp, float(links.chips_per_domain))
        # Kernels of one shape are priced once, however many layouts run them.
        _, self._own_shape = layouts.unique_by(*_SHAPE_FIELDS)
        self._one_of_shape = np.unique(self._own_shape, return_index=True)[1]

    def forward(self, layer: LayerSpec) -> Pass:
        """One layer forward."""
        result = Pass.nothing(len(self.layouts))
        self._add_linears(result, self._attention_linears(layer.attention), backward=False)
        self._add_attention(result, layer.attention, backward=False)
        self._add_block(result, layer, backward=False)
        self._add_hidden(result, layer, backward=False)
        self._add_tensor(result, layer, backward=False)
        return result

    def backward(self, layer: LayerSpec) -> Pass:
        """One layer backward, with what is computed again."""
        result = Pass.nothing(len(self.layouts))
        self._add_linears(result, self._attention_linears(layer.attention), backward=True)
        self._add_attention(result, layer.attention, backward=True)
        self._add_block(result, layer, backward=True)
        self._add_hidden(result, layer, backward=True)
        self._add_tensor(result, layer, backward=True)
        again = self.forward(layer)
        full = self.layouts.recompute == RECOMPUTE.index("full")
        some = self.layouts.recompute == RECOMPUTE.index("block")
        result = result.plus(again, np.where(full, 1.0, np.where(some, self.layouts.recompute_share, 0.0)))
        core = Pass.nothing(len(self.layouts))
        if not self.profile.fused_attention or layer.attention.sinks:
            self._add_attention(core, layer.attention, backward=False)
        if self.profile.selective_linears > 0:
            core.matmul += self.profile.selective_linears * again.matmul
            core.scaled += self.profile.selective_linears * again.scaled
            core.memory_bound += again.memory_bound
            core.hidden += again.hidden
            core.operators += again.operators
        selective = self.layouts.recompute == RECOMPUTE.index("selective")
        return result.plus(core, np.where(selective, 1.0, 0.0))

    def head(self) -> tuple[Pass, Pass]:
        """Final norm, head and loss, forward and backward."""
        forward, backward = Pass.nothing(len(self.layouts)), Pass.nothing(len(self.layouts))
        one = np.ones(len(self.layouts))
        vocab = np.ceil(self.model.vocab / self.layouts.tp)
        head = _Linear(vocab, one * self.model.hidden, self.tokens, one)
        logits = self.tokens * vocab * 4.0
        for result, passes in ((forward, (1.5, 9.0)), (backward, (1.0, 6.5))):
            self._add_linears(result, [head], backward=result is backward, dtype=self.precision.other)
            self._stream(
                result, logits * passes[0 if self.profile.fused_loss else 1] + 4 * self._hidden_bytes
            )
            result.operators += 4.0 if self.profile.fused_loss else 10.0
        if_split = self.layouts.tp > 1
        forward.tensor += np.where(if_split, 3.0 * self._tensor_s("all_reduce", self.tokens * 4.0), 0.0)
        size = self.tokens * self.model.hidden * self.precision.activation_bytes
        backward.tensor += np.where(if_split, self._tensor_s("all_reduce", size), 0.0)
        return forward, backward

    def embedding(self) -> tuple[Pass, Pass]:
        """Looking up embeddings, and adding up their gradient."""
        forward, backward = Pass.nothing(len(self.layouts)), Pass.nothing(len(self.layouts))
        size = self.tokens * self.model.hidden * self.precision.activation_bytes
        self._stream(forward, 3.0 * size)
        self._stream(backward, 4.0 * size)
        forward.operators += 3.0
        backward.operators += 3.0
        forward.tensor += np.where(self.layouts.tp > 1, self._tensor_s("all_reduce", size), 0.0)
        return forward, backward

    # Products
    # ------------------------------------------------------------------------------------------------

    def _attention_linears(self, attention: AttentionSpec) -> list[_Linear]:
        tp, hidden = self.layouts.tp, float(self.model.hidden)
        queries = attention.heads * attention.head_dim / tp
        values = attention.heads * attention.value_dim / tp
        if not attention.kv_rank:
            kv_heads = np.maximum(attention.kv_heads / tp, 1.0)
            outputs = queries + kv_heads * (attention.head_dim + attention.value_dim)
            return [self._linear(outputs, hidden), self._linear(hidden, values)]
        latent = float(attention.kv_rank + attention.rope_dim)
        inner = attention.heads * (attention.head_dim - attention.rope_dim + attention.value_dim) / tp
        linears = [self._linear(latent, hidden), self._linear(inner, float(attention.kv_rank))]
        if attention.q_rank:
            linears += [self._linear(attention.q_rank, hidden), self._linear(queries, attention.q_rank)]
        else:
            linears.append(self._linear(queries, hidden))
        return [*linears, self._linear(hidden, values)]

    def _mlp_linears(self, mlp: MlpSpec) -> list[_Linear]:
        inner = mlp.ffn / self.layouts.tp
        hidden = float(self.model.hidden)
        return [self._linear(inner * (2 if mlp.gated else 1), hidden), self._linear(hidden, inner)]

    def _expert_linears(self, moe: MoeSpec) -> list[_Linear]:
        layouts, hidden = self.layouts, float(self.model.hidden)
        local = np.maximum(moe.experts / layouts.ep, 1.0)
        inner = moe.expert_ffn / layouts.etp
        # Each rank of a stage brings its tokens; with tp > etp they are split over the tensor ranks first.
        brought = self.tokens * layouts.etp / layouts.tp
        rows = brought * layouts.ep * moe.top_k / moe.experts
        return [
            _Linear(inner * (2 if moe.gated else 1), np.full_like(rows, hidden), rows, local),
            _Linear(np.full_like(rows, hidden), inner, rows, local),
        ]

    def _linear(self, outputs: FloatArray | float, inputs: FloatArray | float) -> _Linear:
        one = np.ones(len(self.layouts))
        return _Linear(one * outputs, one * inputs, self.tokens, one)

    def _add_linears(
        self, result: Pass, linears: list[_Linear], *, backward: bool, dtype: str | None = None
    ) -> None:
        name = dtype or self.precision.linear
        passes: tuple[kernels.Which, ...] = ("data_gradient", "weight_gradient") if backward else ("forward",)
        for linear in linears:
            for which in passes:
                one = self._one_of_shape
                seconds = kernels.matmul_time_s(
                    self.chip, name, linear.rows[one], linear.outputs[one], linear.inputs[one],
                    linear.batch[one], which,
                )  # fmt: skip
                if name in SCALED_FORMATS:
                    result.scaled += seconds[self._own_shape]
                else:
                    result.matmul += seconds[self._own_shape]
                # Grouped products of experts are launched one by one.
                result.operators += linear.batch
            if name in SCALED_FORMATS:
                self._add_casts(result, linear, backward=backward)

    def _add_casts(self, result: Pass, linear: _Linear, *, backward: bool) -> None:
        """Casts of the operands, row-wise and column-wise at once: read bf16, write two narrow copies."""
        rows = linear.rows * linear.batch
        if backward:
            elements = rows * linear.outputs
        else:
            weights = linear.inputs * linear.outputs * linear.batch
            elements = rows * linear.inputs + weights
        self._stream(result, elements * (2.0 + 2.0))
        result.operators += 2.0 * linear.batch

    # Attention
    # -----------------------------------------------------------------------------------------------

    def _add_attention(self, result: Pass, attention: AttentionSpec, *, backward: bool) -> None:
        heads = np.maximum(attention.heads / self.layouts.tp, 1.0)
        if self.profile.fused_attention and not attention.sinks:
            result.attention += self._fused(attention, heads, backward=backward)
            result.operators += 2.0 if backward else 1.0
        else:
            self._add_stored_scores(result, attention, heads, backward=backward)
        if np.any(self.layouts.cp > 1):
            self._add_context(result, attention, backward=backward)

    def _fused(self, attention: AttentionSpec, heads: FloatArray, *, backward: bool) -> FloatArray:
        one = self._one_of_shape
        cp, heads, micro_batch = self.layouts.cp[one], heads[one], self.layouts.micro_batch[one]
        kv_heads = np.maximum(
            (attention.heads if attention.kv_rank else attention.kv_heads) / self.layouts.tp[one], 1.0
        )
        context = attention.mean_context(int(self.seq))
        whole = kernels.attention_time_s(
            self.chip, self.precision.other, micro_batch, self.seq, self.seq, heads, kv_heads,
            attention.head_dim, causal=True, backward=backward, value_dim=attention.value_dim,
        )  # fmt: skip
        windowed = attention.window is not None and attention.window < self.seq
        if not windowed and not np.any(cp > 1):
            return whole[self._own_shape]
        # A rank of a balanced ring holds a front and a back piece, so its queries see half of the keys on
        # average; of an unbalanced one the last rank sees all of them, all but half of its own piece.
        part = kernels.attention_time_s(
            self.chip, self.precision.other, micro_batch, self.seq / cp, context, heads, kv_heads,
            attention.head_dim, causal=False, backward=backward, value_dim=attention.value_dim,
        )  # fmt: skip
        if not self.profile.balances_ring:
            part = part * (2.0 - 1.0 / cp)
        return (part if windowed else np.where(cp > 1, part, whole))[self._own_shape]

    def _add_stored_scores(
        self, result: Pass, attention: AttentionSpec, heads: FloatArray, *, backward: bool
    ) -> None:
        """Attention as products and a fused scale-mask-softmax with dropout, scores stored in 2 bytes.

        Forward reads and writes each score for softmax (2 + 2 bytes) and dropout (2 + 2 + 1 for the mask);
        backward for dropout (2 + 1 + 2) and softmax (2 + 2 + 2).
        """
        layouts = self.layouts
        count = layouts.micro_batch * heads
        queries = self.seq / layouts.cp
        shapes: tuple[tuple[Numbers, Numbers, Numbers], ...] = (
            (queries, self.seq, float(attention.head_dim)),
            (queries, float(attention.value_dim), self.seq),
        )
        for rows, columns, depth in shapes:
            products = [(rows, columns, depth)]
            if backward:
                products = [(rows, depth, columns), (depth, columns, rows)]
            for m, n, k in products:
                seconds = kernels.matmul_time_s(self.chip, self.precision.other, m, n, k, count)
                aligned = attention.head_dim % _ALIGNED == 0
                result.attention += seconds * (1.0 if aligned else _UNALIGNED_COST)
                result.operators += 1.0
        scores = count * queries * self.seq
        # Stacks that store scores by choice drop some out as well; where sinks force it, softmax is all.
        passes = (9.0, 11.0) if not self.profile.fused_attention else (4.0, 6.0)
        self._stream(result, scores * passes[backward])
        result.operators += 3.0
        # Megatron's fused softmax works on four score matrices at a time; else it is scale, mask, cast and
        # softmax.
        alone = count % _SOFTMAX_GROUP != 0
        apart = Pass.nothing(len(layouts))
        self._stream(apart, scores * 16.0)
        result.memory_bound += np.where(alone, apart.memory_bound, 0.0)
        result.operators += np.where(alone, 6.0 if not backward else 3.0, 0.0)

    def _add_context(self, result: Pass, attention: AttentionSpec, *, backward: bool) -> None:
        """Keys and values go round the ring; backward brings their gradients too."""
        layouts = self.layouts
        width = (
            attention.heads * (attention.head_dim + attention.value_dim)
            if attention.kv_rank
            else attention.kv_heads * (attention.head_dim + attention.value_dim)
        )
        block = self.tokens * width / layouts.tp * self.precision.activation_bytes
        steps = layouts.cp - 1.0
        stride = layouts.tp
        inside = stride * layouts.cp <= self.links.chips_per_domain
        hop = collective_time_s(
            self.links, "send_recv", block, np.where(inside, 2.0, 1.0), np.where(inside, 1.0, 2.0)
        )
        ring = steps * hop * (2.0 if backward else 1.0)
        result.context += np.where(layouts.cp > 1, ring, 0.0)
        result.operators += np.where(layouts.cp > 1, 4.0 * steps, 0.0)

    # Feed-forward, norms, residuals ------------------------------------------------------------------------

    def _add_block(self, result: Pass, layer: LayerSpec, *, backward: bool) -> None:
        if layer.mlp is not None:
            self._add_linears(result, self._mlp_linears(layer.mlp), backward=backward)
            self._add_activation(
                result, self.tokens * layer.mlp.ffn / self.layouts.tp, layer.mlp.gated, backward=backward
            )
        if layer.moe is not None:
            self._add_experts(result, layer.moe, backward=backward)

    def _add_activation(self, result: Pass, elements: FloatArray, gated: bool, *, backward: bool) -> None:
        passes = (3.0, 5.0)[backward] if gated else (2.0, 3.0)[backward]
        self._stream(result, passes * elements * self.precision.activation_bytes)
        result.operators += 1.0

    def _add_experts(self, result: Pass, moe: MoeSpec, *, backward: bool) -> None:
        layouts = self.layouts
        self._add_linears(result, self._expert_linears(moe), backward=backward)
        brought = self.tokens * layouts.etp / layouts.tp
        routed = brought * moe.top_k
        self._add_activation(result, routed * moe.expert_ffn / layouts.etp, moe.gated, backward=backward)
        if moe.shared_ffn:
            shared = MlpSpec(moe.shared_ffn, moe.gated)
            self._add_linears(result, self._mlp_linears(shared), backward=backward)
            self._add_activation(
                result, self.tokens * moe.shared_ffn / layouts.tp, moe.gated, backward=backward
            )
        # Router, top-k, permutation there and back: each moves the routed tokens once in and once out.
        width = self.model.hidden * self.precision.activation_bytes
        self._stream(result, 6.0 * routed * width + brought * moe.experts * 4.0 * 4.0)
        result.operators += 16.0
        inside = np.clip(self.links.chips_per_domain / layouts.tp, 1.0, layouts.ep)
        domains = np.ceil(layouts.ep / inside)
        # Either every copy of a token is sent, or each rank and domain gets it once and passes it on.
        copies = collective_time_s(self.links, "all_to_all", routed * width, inside, domains)
        once = [
            collective_time_s(self.links, kind, brought * width, inside, domains, fan_out=moe.top_k)
            for kind in MOE_KINDS
        ]
        seconds = np.minimum(2.0 * copies, once[0] + once[1])
        result.expert += np.where(layouts.ep > 1, seconds, 0.0)

    def _add_hidden(self, result: Pass, layer: LayerSpec, *, backward: bool) -> None:
        """Norms, residuals and rotary positions, and whatever else the stack does on the hidden state."""
        per_norm = 3.0 if backward else 2.0
        sums = 2 if not layer.parallel else 1
        self._stream(result, (per_norm * layer.num_norms + 3.0 * sums) * self._hidden_bytes)
        result.hidden += self._hidden_bytes / self._rate
        if self.model.position == "rope":
            attention = layer.attention
            width = (attention.heads + attention.kv_heads) * attention.head_dim / self.layouts.tp
            self._stream(result, 2.0 * self.tokens * width * self.precision.activation_bytes)
            result.operators += 2.0
        result.operators += layer.num_norms + sums

    def _stream(self, result: Pass, num_bytes: FloatArray) -> None:
        result.memory_bound += num_bytes / self._rate

    # Communication of the layer ----------------------------------------------------------------------------

    def _add_tensor(self, result: Pass, layer: LayerSpec, *, backward: bool) -> None:
        """Each block reduces its output over the tensor ranks; with sequence parallelism it also gathers its
        input.

        A ring all-reduce is a reduce-scatter and an all-gather, so both move the same bytes. Backward
        gathers the input once more for the weight gradient.
        """
        if not np.any(self.layouts.tp > 1):
            return
        size = self.tokens * self.model.hidden * self.precision.activation_bytes
        blocks = 1.0 if layer.parallel else 2.0
        reduced = self._tensor_s("all_reduce", size)
        gather = self._tensor_s("all_gather", size)
        scattered = gather + self._tensor_s("reduce_scatter", size)
        seconds = blocks * np.where(self.layouts.sequence_parallel > 0, scattered, reduced)
        if backward:
            again = blocks * gather * (self.layouts.sequence_parallel > 0)
            result.beside += np.where(self.layouts.tp > 1, again, 0.0)
        result.tensor += np.where(self.layouts.tp > 1, seconds, 0.0)
        split = self.layouts.sequence_parallel > 0
        collectives = blocks * np.where(split, 3.0 if backward else 2.0, 1.0)
        apart = self.layouts.tp > self.links.chips_per_domain
        result.hops += np.where(apart | self._hops_everywhere, collectives * (self.layouts.tp - 1.0), 0.0)
        result.operators += np.where(self.layouts.tp > 1, blocks, 0.0)

    def _tensor_s(self, kind: CollectiveKind, size: FloatArray) -> FloatArray:
        domains = np.ceil(self.layouts.tp / self._tensor_inside)
        return collective_time_s(self.links, kind, size, self._tensor_inside, domains)
