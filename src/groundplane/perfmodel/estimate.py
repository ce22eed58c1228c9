"""What an estimate is: never a bare number, but its stages, its bottleneck, its interval and what was
assumed.

Shared by every price of training. Knows no formula.
"""

from __future__ import annotations

from typing import Final

import msgspec

STAGES: Final = (
    "matmul",
    "attention",
    "memory_bound",
    "launch",
    "tensor_communication",
    "expert_communication",
    "context_communication",
    "pipeline_bubble",
    "pipeline_communication",
    "data_communication",
    "optimizer",
    "host_transfer",
    "data_wait",
    "checkpoint_stall",
)
"""Where the time of a training step goes, in the order in which it is shown. Communication is the exposed
part."""

MEMORY_PARTS: Final = ("weights", "gradients", "optimizer", "activations", "buffers", "runtime")
"""What fills the memory of one rank at its peak."""


class TrainingEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One training step of one layout, as predicted.

    Attributes:
        step_s: seconds of one optimizer step.
        step_low_s, step_high_s: 10th and 90th percentile.
        stages_s: seconds by stage; they add up to `step_s`.
        memory_bytes: peak of the fullest rank by part.
        memory_limit_bytes: what the rank may use.
        tokens_per_s: of the whole job.
        model_flops: useful work of one step over all chips (recompute not counted).
        mfu: model FLOPs over the dense peak of all chips in the step's time.
        hfu: as `mfu`, with the recomputed FLOPs counted as well.
        bottleneck: the stage that takes most, in words.
        evidence: measured, family or data-sheet.
        assumptions: what was taken for granted, one sentence each.
    """

    step_s: float
    step_low_s: float
    step_high_s: float
    stages_s: dict[str, float]
    memory_bytes: dict[str, float]
    memory_limit_bytes: float
    tokens_per_s: float
    model_flops: float
    mfu: float
    hfu: float
    bottleneck: str
    evidence: str
    assumptions: tuple[str, ...] = ()

    @property
    def total_memory_bytes(self) -> float:
        """Peak of the fullest rank."""
        return sum(self.memory_bytes.values())

    @property
    def fits(self) -> bool:
        """Whether the fullest rank stays within its memory."""
        return self.total_memory_bytes <= self.memory_limit_bytes


_WORDS: Final = {
    "matmul": "matrix products",
    "attention": "attention",
    "memory_bound": "memory-bound operators",
    "launch": "launch overhead of operators",
    "tensor_communication": "tensor-parallel communication",
    "expert_communication": "expert-parallel communication",
    "context_communication": "context-parallel communication",
    "pipeline_bubble": "the pipeline bubble",
    "pipeline_communication": "pipeline communication",
    "data_communication": "gradient and weight communication between replicas",
    "optimizer": "the optimizer step",
    "host_transfer": "transfers to and from the host's memory",
    "data_wait": "waiting for data",
    "checkpoint_stall": "checkpoints",
}


def stage_words(stage: str) -> str:
    """A stage in words, for people."""
    return _WORDS[stage]


def bottleneck_of(stages_s: dict[str, float]) -> str:
    """The stage that takes the most, with its share."""
    stage = max(stages_s, key=lambda name: stages_s[name])
    total = sum(stages_s.values())
    return (
        f"{stage_words(stage)} ({100 * stages_s[stage] / total:.0f} % of the step)"
        if total > 0
        else "nothing"
    )
