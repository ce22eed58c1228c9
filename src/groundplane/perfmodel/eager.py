"""Price of one step of the built-in trainer on the processor cores of a probed machine.

Eager PyTorch runs one operator after the other on one core a rank, so a step is the sum of its operators,
each priced from points measured on this machine with as many ranks at once (`points`). The operators listed
here are those of the Llama blocks in `platform/training`. Reduction of gradients by gloo shares the core
with the backward pass and hides behind nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from groundplane.perfmodel import memory
from groundplane.perfmodel.estimate import STAGES, TrainingEstimate, bottleneck_of
from groundplane.perfmodel.points import MeasuredTables, Which
from groundplane.spec.cluster import ClusterSpec, CollectivePoint
from groundplane.spec.errors import InputError
from groundplane.spec.job import LlamaShape, TrainSpec

MAPPED_BYTES = 32 << 20
"""From this size on glibc maps each buffer anew and gives it back when freed: every page is touched for the
first time."""

VIEWS_PER_LAYER = 80
"""Operators of one layer, forward, that only make views or build the graph (transpose, view, chunk, ...)."""

INTERVAL = (0.9, 1.25)
"""10th and 90th percentile of measured / predicted on probed machines, from the shapes in
`tests/perfmodel`."""


@dataclass
class _Pass:
    """Seconds of one micro-batch by stage."""

    matmul: float = 0.0
    attention: float = 0.0
    memory_bound: float = 0.0
    launch: float = 0.0


def price_host_training(train: TrainSpec, ranks: int, cluster: ClusterSpec) -> TrainingEstimate:
    """Step time and memory of the built-in trainer with one core a rank.

    Args:
        train: what is trained.
        ranks: data-parallel ranks, all on one machine.
        cluster: a cluster file written by `groundplane probe`.

    Raises:
        InputError: more ranks than cores, memory exceeded by shape alone, or a cluster that was never
        measured.
    """
    chip = cluster.chip
    if chip.measured is None:
        raise InputError(
            "must be measured by groundplane probe to price the built-in trainer", field="server.chip"
        )
    if ranks > cluster.num_chips:
        raise InputError(f"is larger than the machine: {cluster.num_chips} chips", field="ranks", value=ranks)
    tables = MeasuredTables(chip.measured, ranks)
    work = _micro_batch(train, tables)
    num_micro = train.global_batch // (train.micro_batch * ranks)
    parameters = memory.llama_parameters(train.model)
    stages = dict.fromkeys(STAGES, 0.0)
    stages["matmul"] = num_micro * work.matmul
    stages["attention"] = num_micro * work.attention
    stages["memory_bound"] = num_micro * work.memory_bound
    stages["launch"] = num_micro * work.launch
    stages["optimizer"] = _optimizer_s(train.model, tables)
    stages["data_communication"] = _exchange_s(train, cluster, parameters, ranks)
    stages["checkpoint_stall"] = _checkpoint_s(cluster, parameters) / train.checkpoint_every
    step_s = sum(stages.values())
    flops = _model_flops(train)
    mfu = flops / (step_s * ranks * chip.peak("bf16" if train.precision == "bf16" else "fp32"))
    parts = memory.host_rank_memory(train, ranks)
    return TrainingEstimate(
        step_s=step_s,
        step_low_s=step_s * INTERVAL[0],
        step_high_s=step_s * INTERVAL[1],
        stages_s=stages,
        memory_bytes=parts,
        memory_limit_bytes=float(chip.memory_bytes),
        tokens_per_s=train.global_batch * train.seq / step_s,
        model_flops=flops,
        mfu=mfu,
        hfu=mfu,
        bottleneck=bottleneck_of(stages),
        evidence="measured",
        assumptions=(
            f"{ranks} ranks of one core each; nothing else runs on the machine",
            "batches are ready before they are needed",
            "gloo exchanges gradients (FSDP2: weights too) over loopback on the same cores, unhidden",
            f"a checkpoint every {train.checkpoint_every} steps; a step waits for the copy only",
        ),
    )


def _model_flops(train: TrainSpec) -> float:
    """6 FLOPs a parameter of the matrices and a token, and causal attention (2 + 4 passes of 2·s/2·h
    each)."""
    model = train.model
    tokens = train.global_batch * train.seq
    matrices = memory.llama_matrix_parameters(model)
    return tokens * (6.0 * matrices + 6.0 * model.layers * train.seq * model.hidden)


def _micro_batch(train: TrainSpec, tables: MeasuredTables) -> _Pass:
    model = train.model
    work = _Pass()
    tokens = train.micro_batch * train.seq
    dtype = "bf16" if train.precision == "bf16" else "fp32"
    head_dim = model.hidden // model.heads
    kv = model.kv_heads * head_dim
    linears = (
        (model.hidden, model.hidden, 1),
        (kv, model.hidden, 2),
        (model.hidden, model.hidden, 1),
        (model.ffn, model.hidden, 2),
        (model.hidden, model.ffn, 1),
    )
    for outputs, inputs, count in linears:
        work.matmul += model.layers * count * _linear_s(tables, dtype, tokens, outputs, inputs)
    work.matmul += _linear_s(tables, dtype, tokens, model.vocab, model.hidden)
    for backward in (False, True):
        work.attention += model.layers * tables.attention_s(
            dtype, train.micro_batch, train.seq, model.heads, head_dim, backward=backward
        )
    _elementwise(work, train, tables, dtype, tokens)
    overhead = tables.overhead_s("eager_forward") + tables.overhead_s("eager_backward")
    work.launch = VIEWS_PER_LAYER * model.layers * overhead
    return work


def _linear_s(tables: MeasuredTables, dtype: str, tokens: float, outputs: float, inputs: float) -> float:
    passes: tuple[Which, ...] = ("forward", "data_gradient", "weight_gradient")
    return sum(tables.matmul_s(dtype, tokens, outputs, inputs, which) for which in passes)


def _elementwise(work: _Pass, train: TrainSpec, tables: MeasuredTables, dtype: str, tokens: int) -> None:
    """Norms, rotary embedding, activation, residuals, loss, embedding, casts, accumulation of gradients."""
    model = train.model
    hidden = tokens * model.hidden
    heads = tokens * (model.hidden + model.kv_heads * (model.hidden // model.heads))
    ffn = tokens * model.ffn
    per_layer: tuple[tuple[str, str, float, float], ...] = (
        ("rms_norm", "fp32", hidden, 2),
        ("multiply", dtype, heads, 2),
        ("add", dtype, heads, 2),
        ("copy", dtype, heads, 1),
        ("copy", dtype, hidden, 3),
        ("silu", dtype, ffn, 1),
        ("multiply", dtype, ffn, 1),
        ("add", "fp32", hidden, 2),
    )
    for operation, kind, elements, count in per_layer:
        seconds = sum(tables.operator_s(operation, kind, elements))
        size_bytes = elements * (2 if kind == "bf16" else 4)
        work.memory_bound += model.layers * count * (seconds + _touch_s(tables, size_bytes, buffers=2))
    logits = tokens * model.vocab
    once = (("rms_norm", "fp32", hidden), ("cross_entropy", "fp32", logits), ("copy", "fp32", hidden))
    work.memory_bound += sum(sum(tables.operator_s(operation, kind, n)) for operation, kind, n in once)
    # At its peak the heap grows by one of the loss's buffers and gives it back; mapped ones are all new.
    fresh = 5 if logits * 4 >= MAPPED_BYTES else 1
    work.memory_bound += fresh * logits * 4 / tables.first_touch_bytes_per_s()
    # Gradients of the loss's choice of logits and of the look-up begin as zeros.
    for zeros in (logits, model.vocab * model.hidden):
        work.memory_bound += tables.operator_s("copy", "fp32", zeros)[0]
    parameters = memory.llama_parameters(model)
    work.memory_bound += (
        tables.operator_s("add", "fp32", parameters / max(1, 9 * model.layers))[0] * 9 * model.layers
    )
    if dtype == "bf16":
        matrices = memory.llama_matrix_parameters(model)
        casts = matrices + model.layers * (2 * hidden) + logits
        work.memory_bound += sum(tables.operator_s("cast", "bf16", casts))


def _touch_s(tables: MeasuredTables, size_bytes: float, *, buffers: int) -> float:
    """Extra seconds for buffers so large that their memory is mapped anew each time."""
    if size_bytes < MAPPED_BYTES:
        return 0.0
    return buffers * size_bytes / tables.first_touch_bytes_per_s()


def _optimizer_s(model: LlamaShape, tables: MeasuredTables) -> float:
    """AdamW and clipping, tensor by tensor."""
    total = 0.0
    for elements, count in memory.llama_tensors(model):
        total += count * (
            tables.operator_s("adamw", "fp32", elements)[0] + tables.operator_s("clip", "fp32", elements)[0]
        )
    return total


def _exchange_s(train: TrainSpec, cluster: ClusterSpec, parameters: int, ranks: int) -> float:
    """Seconds in which gradients (and under FSDP2 weights) go between the ranks in one step.

    DDP reduces gradients once, in buckets of 25 MiB. FSDP2 gathers each layer's weights both ways in
    every micro-batch and scatters its gradient in the last one.
    """
    if ranks == 1:
        return 0.0
    if train.parallel == "ddp":
        return _collective_s(cluster, "all_reduce", 4.0 * parameters, 25 * 2**20, ranks)
    layer_bytes = 4.0 * parameters / (train.model.layers + 1)
    gathers = 2.0 * train.global_batch / (train.micro_batch * ranks)
    gathered = _collective_s(cluster, "all_gather", 4.0 * parameters, layer_bytes, ranks)
    return gathers * gathered + _collective_s(cluster, "reduce_scatter", 4.0 * parameters, layer_bytes, ranks)


def _collective_s(
    cluster: ClusterSpec, operation: str, size_bytes: float, piece_bytes: float, ranks: int
) -> float:
    """Seconds of a collective over `size_bytes` in pieces, from measured points between their ends."""
    points = [point for point in cluster.collectives if point.operation == operation]
    if not points:
        raise InputError(f"holds no measured {operation}: run groundplane probe again", field="collectives")
    full, rest = divmod(size_bytes, piece_bytes)
    seconds = full * _one_collective_s(points, piece_bytes)
    seconds += _one_collective_s(points, rest) if rest else 0.0
    # Of p ranks each sends (p-1)/p of the buffer (twice to reduce); the points were taken with `point.ranks`.
    measured = points[0].ranks
    return seconds * ((ranks - 1) / ranks) / ((measured - 1) / measured)


def _one_collective_s(points: list[CollectivePoint], size_bytes: float) -> float:
    ordered = sorted(points, key=lambda point: point.size_bytes)
    largest = ordered[-1]
    if size_bytes >= largest.size_bytes:
        return largest.time_s * size_bytes / largest.size_bytes
    logs = np.interp(
        np.log(size_bytes), np.log([p.size_bytes for p in ordered]), np.log([p.time_s for p in ordered])
    )
    return float(np.exp(logs))


def _checkpoint_s(cluster: ClusterSpec, parameters: int) -> float:
    """Seconds a step stands still for one checkpoint: weights and two moments are copied in memory."""
    return 3 * 4 * parameters / cluster.chip.memory_bytes_per_s
