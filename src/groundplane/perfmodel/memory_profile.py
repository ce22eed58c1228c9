"""How a software stack uses memory: facts about what it keeps, and a handful of fitted numbers.

Every number is something that a memory snapshot shows: how much more than its live tensors an allocator
holds, what a backward pass needs beside what was kept, bytes of a logit at the loss. Nothing is per model or
per row. The fitted values lie in `catalog/calibration/memory.json`, their manifest in `calibration/manifest`.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any, Literal

import msgspec
from msgspec import Struct

from groundplane.spec.errors import unknown_name


class MemoryProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """One software stack.

    Facts:
        weight_bytes: of one parameter as it is stored between steps.
        gathered_bytes: of one parameter as it is gathered for computing (ZeRO-3, FSDP).
        gradient_bytes: of one accumulated gradient.
        optimizer_bytes: of optimizer states a parameter: master copy and two moments, or the moments alone.
        bucket_bytes: of one gradient in the buckets of data parallelism, beside accumulated gradients.
        step_gather_bytes: of one parameter in the buffer in which a sharded step collects new weights.
        pipeline_keeps_gathered: with sharded weights, a pipeline keeps them gathered, and gradients whole,
            between its micro-batches.
        usual_recompute: what is recomputed where a run does not say, as in `strategy.RECOMPUTE`; "" for as
            little as fits.
        fused_attention: scores are never stored (FlashAttention and its kin).
        fused_activation: the activation of a gated block is computed again from its inputs.
        selective: what selective recompute drops: the attention core, or all but the outputs of every second
            product.
        split_logit_bytes: of one logit, beside `logit_bytes`, where the loss is over a split vocabulary.
        balances_stages: the head counts as work when layers are dealt to pipeline stages.
        reports: the stack logs the memory of its first pipeline stage (rank 0), or of the fullest rank.
        outside_bytes: of a chip's memory that the tool which reports does not see: context, communicators. A
            stack never reports more than the rest.

    Fitted (see `FITTED`):
        state_slack: bytes held for weights, gradients and optimizer against their size.
        activation_slack: bytes held for kept activations against their size: rounded blocks, fragments.
        working_layers: layers' activations that are live beside what is kept while one runs backward.
        logit_bytes: of one logit at the peak of the loss: its copies in the model's type and in float32.
        base_bytes: held whatever the model: workspaces, tables, and the context where the tool counts it.
        waiting_alone: tensors of the full hidden state, per layer, that wait for the communication stream
            under tensor parallelism and cannot be used again before; without a pipeline. Given back under
            pressure.
        waiting_in_pipeline: the same per layer and micro-batch in flight. Forward passes of the warm-up
            beyond two follow each other without the host waiting, so that theirs always pile up.
        host_ahead_flops: work of a layer's forward pass on a rank that takes the chip as long as the host
            takes to launch it; only with more does the host run ahead and leave tensors waiting.
        fragment_share: of the memory that the tool sees, what a run cannot count on: fragments too small for
            what comes next. Fitted to what ran out of memory; none where the tool sees the whole device.
        ratio_p10, ratio_p90: 10th and 90th percentile of measured / predicted on runs that the fit had not
            seen.
        num_points: runs behind them.
    """

    name: str
    weight_bytes: float = 2.0
    gathered_bytes: float = 2.0
    gradient_bytes: float = 4.0
    optimizer_bytes: float = 12.0
    bucket_bytes: float = 0.0
    step_gather_bytes: float = 0.0
    pipeline_keeps_gathered: bool = False
    fused_attention: bool = True
    fused_activation: bool = False
    selective: Literal["core", "operators"] = "core"
    usual_recompute: str = ""
    split_logit_bytes: float = 0.0
    balances_stages: bool = False
    reports: Literal["first", "fullest"] = "fullest"
    state_slack: float = 1.0
    activation_slack: float = 1.1
    working_layers: float = 1.0
    logit_bytes: float = 10.0
    waiting_alone: float = 0.0
    waiting_in_pipeline: float = 0.0
    host_ahead_flops: float = 0.0
    base_bytes: float = 1e9
    fragment_share: float = 0.1
    outside_bytes: float = 2.5e9
    ratio_p10: float = 0.9
    ratio_p90: float = 1.1
    num_points: int = 0


FITTED = (
    "state_slack",
    "activation_slack",
    "working_layers",
    "logit_bytes",
    "base_bytes",
    "waiting_alone",
    "waiting_in_pipeline",
    "host_ahead_flops",
)
"""The parameters that a fit of measured memory may move; the rest are facts."""


class MemoryCalibration(Struct, frozen=True, forbid_unknown_fields=True):
    """The shipped profiles, and which of them stands for a stack that has no measurements of its own."""

    profiles: tuple[MemoryProfile, ...]
    stands_for: dict[str, str]


@functools.cache
def shipped_memory() -> MemoryCalibration:
    """Profiles as fitted."""
    text = resources.files("groundplane.catalog").joinpath("calibration", "memory.json").read_bytes()
    data: dict[str, Any] = msgspec.json.decode(text)
    return msgspec.convert(data, MemoryCalibration)


@functools.cache
def memory_profile(stack: str) -> MemoryProfile:
    """The profile of a stack, of the one it is a variant of (NAME-VARIANT), or of the one that stands for it.

    Raises:
        InputError: unknown name.
    """
    shipped = shipped_memory()
    profiles = {profile.name: profile for profile in shipped.profiles}
    known = {name: name for name in profiles} | shipped.stands_for
    name = max((name for name in known if f"{stack}-".startswith(f"{name}-")), key=len, default=None)
    if name is None:
        raise unknown_name("software stack", stack, known)
    return profiles[known[name]]
