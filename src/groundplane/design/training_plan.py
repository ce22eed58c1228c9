"""The plan of one training job: the best layout, its whole estimate, what comes next and what would help.

One function answers all of it, for the command line and for programs. Parts of a layout that are given are
kept, the others are searched. Knows no output format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from groundplane.catalog import resolve_cluster, resolve_llm
from groundplane.design.layout_rules import check_fixed
from groundplane.design.layout_space import LayoutSpace
from groundplane.design.parallelism import Found, Progress, search
from groundplane.design.scaling import Study, WhatIf, model_flops, what_ifs
from groundplane.design.training_answer import Option, Relief, Training, TrainingPlan, parts, words
from groundplane.perfmodel.estimate import STAGES, TrainingEstimate, bottleneck_of
from groundplane.perfmodel.evidence import Evidence
from groundplane.perfmodel.intervals import StepSpread, step_spread
from groundplane.perfmodel.memory_advice import MemoryVerdict, judge_memory
from groundplane.perfmodel.memory_profile import memory_profile
from groundplane.perfmodel.passes import Precision
from groundplane.perfmodel.profiles import stack_profile, training_calibration
from groundplane.perfmodel.strategy import RECOMPUTE, Layouts, parse_layout
from groundplane.perfmodel.training import TrainingJob, price_training
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.errors import InputError, unknown_name
from groundplane.spec.llm import LlmSpec

PRECISIONS: Final = ("bf16", "fp16", "fp8", "fp8_block", "fp4")
"""Formats that linear layers may be trained in."""

USUAL_SCHEDULES: Final = ("1f1b", "interleaved")
"""Pipeline schedules that a search tries unless others are asked for."""

USUAL_SEQ: Final = 8192
"""Tokens of a sequence where none is given, or fewer if the model takes fewer."""

MAX_RELIEF: Final = 6

SPARE: Final = 4
"""Layouts kept for each one named: some cost the same in time and memory, and one of those is enough."""


@dataclass(frozen=True)
class Question:
    """What a plan is asked for, with names looked up and checked; from `ask`."""

    job: TrainingJob
    cluster: ClusterSpec
    global_batch: int
    fixed: dict[str, float]
    stack: str
    residuals: Evidence
    schedules: tuple[str, ...]

    @property
    def study(self) -> Study:
        """The job under its stack on this cluster."""
        return Study(
            self.job,
            lambda _: self.cluster,
            stack_profile(self.stack),
            memory_profile(stack_profile(self.stack).name),
            self.fixed,
            self.schedules,
            self.residuals,
        )

    @property
    def space(self) -> LayoutSpace:
        """All layouts of what was left open."""
        return LayoutSpace(
            self.job, self.cluster.num_chips, self.global_batch, self.fixed, schedules=self.schedules
        )


def plan_training(
    model: str | Path | LlmSpec,
    cluster: str | Path | ClusterSpec,
    *,
    global_batch: int,
    seq: int | None = None,
    precision: str = "bf16",
    stack: str = "megatron-core",
    layout: str | Mapping[str, float] = "",
    objective: str = "step_time",
    top: int = 5,
    tokens: float | None = None,
    usd_per_chip_hour: float | None = None,
    schedules: tuple[str, ...] = USUAL_SCHEDULES,
    relief: bool = True,
    progress: Progress | None = None,
) -> TrainingPlan:
    """Finds the best layout of a training job on a cluster and says all that is known of it.

    Args:
        model: a name of the catalogue, a path to a `config.json`, or a model.
        cluster: a preset ("h100x1024"), a cluster file, or a cluster. All of its chips are used.
        global_batch: sequences a step.
        seq: tokens of a sequence; by default what the model takes, at most `USUAL_SEQ`.
        precision: format of the linear layers, one of `PRECISIONS`.
        stack: software stack (see `training_calibration`).
        layout: parts that are given ("tp=8,pp=16,recompute=full"); the others are searched.
        objective: one of `parallelism.OBJECTIVES`.
        top: how many layouts to name, the best included.
        tokens: of the whole training, for its days.
        usd_per_chip_hour: price of a chip, for the cost of the whole training.
        schedules: of the pipeline, those that may be used.
        relief: also say what would help.
        progress: told how many layouts are dealt with, of how many.

    Raises:
        InputError: an unknown name, or a layout, batch or size that cannot be.
    """
    question = ask(
        model, cluster, global_batch=global_batch, seq=seq, precision=precision, stack=stack, layout=layout,
        schedules=schedules,
    )  # fmt: skip
    for name, value in (("tokens", tokens), ("usd per chip hour", usd_per_chip_hour)):
        if value is not None and not (value > 0 and np.isfinite(value)):
            raise InputError("must be a positive number", field=name, value=value)
    study = question.study
    pricer = study.pricer(question.cluster)
    found = search(question.space, pricer, top=top * SPARE, objective=objective, progress=progress)
    best = found.best.layouts.take(np.arange(1)) if len(found.best) else found.smallest
    estimate = _estimate(question, best)
    return TrainingPlan(
        model=question.job.model.name,
        cluster=question.cluster.name,
        chip=question.cluster.chip.name,
        num_chips=question.cluster.num_chips,
        stack=stack,
        seq=question.job.seq,
        global_batch=global_batch,
        precision=precision,
        parameters=question.job.model.parameters().total,
        active_parameters=question.job.model.parameters().active,
        layout=words(best, mixture=question.job.model.is_moe),
        layout_parts=parts(best),
        estimate=estimate,
        memory=_memory(question, best),
        training=None if tokens is None else _training(question, estimate, tokens, usd_per_chip_hour),
        next_best=_different(_options(question, found.best))[1:top],
        front=_options(question, found.front),
        relief=_relief(question, best) if relief and len(found.best) else (),
        num_layouts=found.num_layouts,
        num_priced=found.num_priced,
    )


def ask(
    model: str | Path | LlmSpec,
    cluster: str | Path | ClusterSpec,
    *,
    global_batch: int,
    seq: int | None = None,
    precision: str = "bf16",
    stack: str = "megatron-core",
    layout: str | Mapping[str, float] = "",
    schedules: tuple[str, ...] = USUAL_SCHEDULES,
) -> Question:
    """Looks names up and checks what is given (see `plan_training`).

    Raises:
        InputError: an unknown name, or a layout, batch or size that cannot be.
    """
    llm = model if isinstance(model, LlmSpec) else resolve_llm(model)
    where = cluster if isinstance(cluster, ClusterSpec) else resolve_cluster(cluster)
    tokens = seq if seq is not None else min(llm.max_positions or USUAL_SEQ, USUAL_SEQ)
    for name, value in (("seq", tokens), ("global batch", global_batch)):
        if value < 1:
            raise InputError("must be a positive integer", field=name, value=value)
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS, field="precision")
    profile = stack_profile(stack)
    formats = where.chip.peak_flops_per_s
    narrow = precision.split("_", maxsplit=1)[0]
    # 16-bit formats stand in for each other; a scaled format that a chip lacks would only be slower.
    if narrow in ("fp8", "fp4") and narrow not in formats:
        rule = f"is no format of {where.chip.name}, which has {', '.join(formats)}"
        raise InputError(rule, field="precision", value=precision)
    given = parse_layout(layout) if isinstance(layout, str) else dict(layout)
    other = "fp16" if precision == "fp16" else "bf16"
    question = Question(
        TrainingJob(llm, tokens, Precision(linear=precision, other=other)),
        where,
        global_batch,
        given,
        stack,
        training_calibration().spread_of(profile.name, several_servers=where.num_nodes > 1),
        schedules,
    )
    check_fixed(question.space)
    return question


def _estimate(question: Question, layout: Layouts) -> TrainingEstimate:
    job, cluster = question.job, question.cluster
    study = question.study
    prices = price_training(job, cluster, layout, study.profile)
    spread = step_spread(cluster, job.precision, question.residuals)
    times = spread.times(prices)
    step_s = float(times.step_s[0])
    stages = {name: float(prices.stages_s[name][0]) for name in STAGES}
    useful = model_flops(job, question.global_batch)
    peak = cluster.num_chips * cluster.chip.peak(job.precision.linear.split("_", maxsplit=1)[0])
    memory = _memory(question, layout)
    return TrainingEstimate(
        step_s=step_s,
        step_low_s=float(times.low_s[0]),
        step_high_s=float(times.high_s[0]),
        stages_s=stages,
        memory_bytes=memory.parts_bytes,
        memory_limit_bytes=memory.limit_bytes,
        tokens_per_s=question.global_batch * job.seq / step_s,
        model_flops=useful,
        mfu=useful / (step_s * peak),
        hfu=useful * (1.0 + recomputed_share(question, layout)) / (step_s * peak),
        bottleneck=bottleneck_of(stages),
        evidence=spread.grade_of(prices)[0],
        assumptions=_assumptions(question, spread),
    )


def recomputed_share(question: Question, layout: Layouts) -> float:
    """FLOPs that recompute adds to the step, over its useful FLOPs: all layers' forward pass, some layers',
    or the attention core (and the stack's share of linear layers)."""
    flops = question.job.model.forward_flops_per_token(question.job.seq, causal=False)
    profile = question.study.profile
    layers = flops.total - flops.head
    again = {
        "none": 0.0,
        "selective": flops.attention_scores + profile.selective_linears * (layers - flops.attention_scores),
        "full": layers,
        "block": float(layout.recompute_share[0]) * layers,
    }
    return again[RECOMPUTE[int(layout.recompute[0])]] / (3.0 * flops.total)


def _assumptions(question: Question, spread: StepSpread) -> tuple[str, ...]:
    cluster = question.cluster
    said = [
        f"times as of the {question.stack} stack; interval from {spread.stack.num_points} runs: "
        f"{spread.stack.source}",
        f"kernels of {cluster.chip.name}: {spread.kernels.grade}, {spread.kernels.source}",
    ]
    if cluster.num_chips > 1:
        said.append(f"links: {spread.links.grade}, {spread.links.source}")
    said.append("data arrives in time, no checkpoint is written in the step, no rank is slower than others")
    if question.job.model.is_moe:
        said.append("experts are drawn evenly")
    return tuple(said)


def _memory(question: Question, layout: Layouts) -> MemoryVerdict:
    return judge_memory(
        question.job.model,
        question.job.seq,
        layout,
        memory_profile(stack_profile(question.stack).name),
        question.cluster.chip.memory_bytes,
        activation_bytes=question.job.precision.activation_bytes,
    )


def _training(
    question: Question, estimate: TrainingEstimate, tokens: float, usd_per_chip_hour: float | None
) -> Training:
    steps = int(np.ceil(tokens / (question.global_batch * question.job.seq)))
    hours = steps * estimate.step_s / 3600.0 * question.cluster.num_chips
    day_s = 86400.0
    return Training(
        tokens=tokens,
        steps=steps,
        days=steps * estimate.step_s / day_s,
        days_low=steps * estimate.step_low_s / day_s,
        days_high=steps * estimate.step_high_s / day_s,
        chip_hours=hours,
        cost_usd=None if usd_per_chip_hour is None else hours * usd_per_chip_hour,
    )


def _different(options: tuple[Option, ...]) -> tuple[Option, ...]:
    """The first of each that cost the same: recompute of what is never stored changes nothing."""
    seen: dict[tuple[float, float], Option] = {}
    for option in options:
        seen.setdefault((option.step_s, option.memory_bytes), option)
    return tuple(seen.values())


def _options(question: Question, found: Found) -> tuple[Option, ...]:
    useful = model_flops(question.job, question.global_batch)
    peak = question.cluster.chip.peak(question.job.precision.linear.split("_", maxsplit=1)[0])
    peak *= question.cluster.num_chips
    tokens = question.global_batch * question.job.seq
    options = []
    for index in range(len(found)):
        step_s = float(found.step_s[index])
        options.append(
            Option(
                layout=words(found.layouts.take(np.array([index])), mixture=question.job.model.is_moe),
                step_s=step_s,
                step_low_s=float(found.times.low_s[index]),
                step_high_s=float(found.times.high_s[index]),
                tokens_per_s=tokens / step_s,
                mfu=useful / (step_s * peak),
                memory_bytes=float(found.memory_bytes[index]),
            )
        )
    return tuple(options)


def _relief(question: Question, best: Layouts) -> tuple[Relief, ...]:
    """Each change with the same ranks; what else is open (micro-batch, sharding, recompute) is tuned anew."""
    names = ("tp", "cp", "pp", "dp", "ep", "etp", "offload")
    same = {name: float(getattr(best, name)[0]) for name in names}
    study = question.study
    kept = Study(
        study.job, study.cluster_of, study.profile, study.memory, same, study.schedules, study.residuals
    )
    found = what_ifs(kept, question.cluster.num_chips, question.global_batch, best)
    return tuple(_relief_of(item, mixture=study.job.model.is_moe) for item in found[:MAX_RELIEF])


def _relief_of(item: WhatIf, *, mixture: bool) -> Relief:
    if item.layout is None:
        return Relief(item.name, None, None, None, None)
    return Relief(item.name, item.same_layout_s, item.best_s, item.gain, words(item.layout, mixture=mixture))
