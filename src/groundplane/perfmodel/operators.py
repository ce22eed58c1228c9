"""Benchmark time of the operators of one layer, forward and backward, for many layouts at once.

Each operator is listed from the architecture: its products by shape, attention, what memory-bound operators
read and write, how many operators the host launches, and the communication that a layer waits for. Shapes
are those of one rank. Knows nothing of pipelines, steps or data parallelism.
"""

from __future__ import annotations

import numpy as np

from groundplane.perfmodel.attention_operators import add_attention, attention_linears
from groundplane.perfmodel.feed_forward_operators import add_feed_forward
from groundplane.perfmodel.passes import Linear, Pass, Rank
from groundplane.perfmodel.strategy import RECOMPUTE
from groundplane.spec.llm import LayerSpec


class LayerPricer(Rank):
    """Prices layers, embedding and head of one model on one chip under one stack (arguments as `Rank`)."""

    def forward(self, layer: LayerSpec) -> Pass:
        """One layer forward."""
        result = Pass.nothing(len(self.layouts))
        self.add_linears(result, attention_linears(self, layer.attention), backward=False)
        add_attention(self, result, layer.attention, backward=False)
        add_feed_forward(self, result, layer, backward=False)
        self._add_hidden(result, layer, backward=False)
        self._add_tensor(result, layer, backward=False)
        return result

    def backward(self, layer: LayerSpec) -> Pass:
        """One layer backward, with what is computed again."""
        result = Pass.nothing(len(self.layouts))
        self.add_linears(result, attention_linears(self, layer.attention), backward=True)
        add_attention(self, result, layer.attention, backward=True)
        add_feed_forward(self, result, layer, backward=True)
        self._add_hidden(result, layer, backward=True)
        self._add_tensor(result, layer, backward=True)
        again = self.forward(layer)
        full = self.layouts.recompute == RECOMPUTE.index("full")
        some = self.layouts.recompute == RECOMPUTE.index("block")
        result = result.plus(again, np.where(full, 1.0, np.where(some, self.layouts.recompute_share, 0.0)))
        core = Pass.nothing(len(self.layouts))
        if not self.profile.fused_attention or layer.attention.sinks:
            add_attention(self, core, layer.attention, backward=False)
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
        head = Linear(vocab, one * self.model.hidden, self.tokens, one)
        logits = self.tokens * vocab * 4.0
        for result, passes in ((forward, (1.5, 9.0)), (backward, (1.0, 6.5))):
            self.add_linears(result, [head], backward=result is backward, dtype=self.precision.other)
            self.stream(result, logits * passes[0 if self.profile.fused_loss else 1] + 4 * self.hidden_bytes)
            result.operators += 4.0 if self.profile.fused_loss else 10.0
        if_split = self.layouts.tp > 1
        forward.tensor += np.where(if_split, 3.0 * self.tensor_s("all_reduce", self.tokens * 4.0), 0.0)
        size = self.tokens * self.model.hidden * self.precision.activation_bytes
        backward.tensor += np.where(if_split, self.tensor_s("all_reduce", size), 0.0)
        return forward, backward

    def embedding(self) -> tuple[Pass, Pass]:
        """Looking up embeddings, and adding up their gradient."""
        forward, backward = Pass.nothing(len(self.layouts)), Pass.nothing(len(self.layouts))
        size = self.tokens * self.model.hidden * self.precision.activation_bytes
        self.stream(forward, 3.0 * size)
        self.stream(backward, 4.0 * size)
        forward.operators += 3.0
        backward.operators += 3.0
        forward.tensor += np.where(self.layouts.tp > 1, self.tensor_s("all_reduce", size), 0.0)
        return forward, backward

    def _add_hidden(self, result: Pass, layer: LayerSpec, *, backward: bool) -> None:
        """Norms, residuals and rotary positions, and whatever else the stack does on the hidden state."""
        per_norm = 3.0 if backward else 2.0
        sums = 2 if not layer.parallel else 1
        self.stream(result, (per_norm * layer.num_norms + 3.0 * sums) * self.hidden_bytes)
        result.hidden += self.hidden_bytes / self.bytes_per_s
        if self.model.position == "rope":
            attention = layer.attention
            width = (attention.heads + attention.kv_heads) * attention.head_dim / self.layouts.tp
            self.stream(result, 2.0 * self.tokens * width * self.precision.activation_bytes)
            result.operators += 2.0
        result.operators += layer.num_norms + sums

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
        reduced = self.tensor_s("all_reduce", size)
        gather = self.tensor_s("all_gather", size)
        scattered = gather + self.tensor_s("reduce_scatter", size)
        seconds = blocks * np.where(self.layouts.sequence_parallel > 0, scattered, reduced)
        if backward:
            again = blocks * gather * (self.layouts.sequence_parallel > 0)
            result.beside += np.where(self.layouts.tp > 1, again, 0.0)
        result.tensor += np.where(self.layouts.tp > 1, seconds, 0.0)
        split = self.layouts.sequence_parallel > 0
        collectives = blocks * np.where(split, 3.0 if backward else 2.0, 1.0)
        apart = self.layouts.tp > self.links.chips_per_domain
        result.hops += np.where(apart | self.hops_everywhere, collectives * (self.layouts.tp - 1.0), 0.0)
        result.operators += np.where(self.layouts.tp > 1, blocks, 0.0)
