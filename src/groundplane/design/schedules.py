"""When each pipeline stage runs which pass of which micro-batch: the schedules played out, pass by pass.

Every rank runs its passes in the order of its schedule as soon as what they need has arrived. Knows seconds
and dependencies, nothing of models or chips.

1F1B: Narayanan et al. 2021, section 2.2.1; interleaved chunks: section 2.2.2, in the order of Megatron's
warm-up; zero-bubble (ZB-H1): Qi et al. 2023, weight gradients fill what would be idle; DualPipe: DeepSeek-V3,
section 3.2.1, micro-batches enter at both ends and each rank holds a stage and its mirror.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

PassKind = Literal["forward", "backward", "weight"]


@dataclass(frozen=True)
class StageSeconds:
    """One stage's share of a micro-batch: forward, backward without weight gradients, weight gradients."""

    forward_s: float
    backward_s: float
    weight_s: float


@dataclass(frozen=True)
class Slice:
    """One pass on one rank. `stage` is the virtual stage (chunk x ranks + rank, or the mirrored one)."""

    rank: int
    kind: PassKind
    micro: int
    stage: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class _Task:
    """A pass to run: which, where in the pipeline, how long."""

    kind: PassKind
    micro: int
    stage: int
    seconds: float


def played(
    seconds: Sequence[StageSeconds], num_micro: int, vpp: int, schedule: str, hop_s: float
) -> list[Slice]:
    """All passes of a step in order of their start.

    Args:
        seconds: of each rank, all of its chunks together.
        num_micro: micro-batches of the step.
        vpp: chunks a rank (1 but for interleaved).
        schedule: one of `strategy.SCHEDULES`.
        hop_s: what every pass spends on sending its result (see `StepModel.hop_s`).
    """
    if schedule == "dualpipe" and len(seconds) > 1:
        return _both_ways(seconds, num_micro, hop_s)
    splits = schedule == "zero-bubble"
    orders = [
        _order(rank, len(seconds), num_micro, vpp, part, hop_s, splits=splits)
        for rank, part in enumerate(seconds)
    ]
    last = len(seconds) * vpp - 1
    return _run(orders, last, splits=splits)


def _order(
    rank: int, ranks: int, num_micro: int, vpp: int, part: StageSeconds, hop_s: float, *, splits: bool
) -> list[_Task]:
    """Passes of a rank in the order in which it runs them."""
    total = num_micro * vpp
    if vpp == 1:
        warm = min(ranks - rank - 1, total)
    else:
        warm = total if num_micro == ranks else min((ranks - rank - 1) * 2 + (vpp - 1) * ranks, total)
    forward_s = part.forward_s / vpp + hop_s
    backward_s = (part.backward_s + (0.0 if splits else part.weight_s)) / vpp + hop_s

    def place(step: int, *, back: bool) -> tuple[int, int]:
        """(micro-batch, virtual stage) of the step-th pass: rounds of `ranks` micro-batches, chunk by
        chunk."""
        block, within = divmod(step, ranks * vpp)
        chunk, micro = divmod(within, ranks) if vpp > 1 else (0, step)
        if back:
            chunk = vpp - 1 - chunk
        return (block * ranks + micro if vpp > 1 else micro), chunk * ranks + rank

    tasks: list[_Task] = []
    for step in range(total + warm):
        if step < total:
            tasks.append(_Task("forward", *place(step, back=False), forward_s))
        if step >= warm:
            tasks.append(_Task("backward", *place(step - warm, back=True), backward_s))
            if splits:
                tasks.append(_Task("weight", *place(step - warm, back=True), part.weight_s))
    return tasks


def _run(orders: list[list[_Task]], last: int, *, splits: bool) -> list[Slice]:
    """Plays the orders: a forward pass needs the stage before, a backward pass the stage behind.

    With `splits`, weight gradients wait until the rank would be idle.
    """
    done: dict[tuple[PassKind, int, int], float] = {}
    free = [0.0] * len(orders)
    heads = [0] * len(orders)
    waiting: list[list[_Task]] = [[] for _ in orders]
    found: list[Slice] = []

    def ready(task: _Task) -> float | None:
        """When what a pass needs has arrived, or None while that is not known."""
        if task.kind == "forward":
            return 0.0 if task.stage == 0 else done.get(("forward", task.micro, task.stage - 1))
        own = done.get(("forward", task.micro, task.stage))
        if task.stage == last or own is None:
            return own
        behind = done.get(("backward", task.micro, task.stage + 1))
        return None if behind is None else max(own, behind)

    def run(rank: int, task: _Task, start: float) -> None:
        free[rank] = start + task.seconds
        done[(task.kind, task.micro, task.stage)] = free[rank]
        found.append(Slice(rank, task.kind, task.micro, task.stage, start, free[rank]))

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while heads[rank] < len(order):
                task = order[heads[rank]]
                if task.kind == "weight":
                    waiting[rank].append(task)
                    heads[rank] += 1
                    continue
                at = ready(task)
                if at is None:
                    break
                # Weight gradients that can be done before the next pass may start cost nothing.
                while splits and waiting[rank] and free[rank] < at:
                    run(rank, waiting[rank].pop(0), free[rank])
                run(rank, task, max(at, free[rank]))
                heads[rank] += 1
                moved = True
    for rank, left in enumerate(waiting):
        for task in left:
            run(rank, task, free[rank])
    return sorted(found, key=lambda one: (one.start_s, one.rank))


def _both_ways(seconds: Sequence[StageSeconds], num_micro: int, hop_s: float) -> list[Slice]:
    """DualPipe: half of the micro-batches enter at rank 0 and half at the last rank; every rank runs whatever
    of both directions is ready: backward before forward passes, weight gradients where nothing else is."""
    ranks = len(seconds)
    sides = (num_micro + 1) // 2, num_micro // 2
    done: dict[tuple[PassKind, int, int], float] = {}
    free = [0.0] * ranks
    found: list[Slice] = []
    # For each rank and direction: how many forward and backward passes it has run.
    forward = [[0, 0] for _ in range(ranks)]
    backward = [[0, 0] for _ in range(ranks)]
    waiting: list[list[_Task]] = [[] for _ in range(ranks)]

    def choices(rank: int) -> list[tuple[float, int, _Task, int]]:
        """Passes that a rank could run next: (start, priority, pass, direction)."""
        found_here: list[tuple[float, int, _Task, int]] = []
        for side in (0, 1):
            stage = rank if side == 0 else ranks - 1 - rank
            part = seconds[stage]
            nth = backward[rank][side]
            if nth < forward[rank][side]:
                micro = 2 * nth + side
                at = done[("forward", micro, stage)]
                behind = at if stage == ranks - 1 else done.get(("backward", micro, stage + 1))
                if behind is not None:
                    task = _Task("backward", micro, stage, part.backward_s + hop_s)
                    found_here.append((max(at, behind, free[rank]), 0, task, side))
            nth = forward[rank][side]
            # As many under way as 1F1B has in each direction: pp + 1 on every rank together.
            if nth < sides[side] and nth - backward[rank][side] < ranks - stage:
                micro = 2 * nth + side
                before = 0.0 if stage == 0 else done.get(("forward", micro, stage - 1))
                if before is not None:
                    task = _Task("forward", micro, stage, part.forward_s + hop_s)
                    found_here.append((max(before, free[rank]), 1, task, side))
        if waiting[rank]:
            found_here.append((free[rank], 2, waiting[rank][0], -1))
        return found_here

    while True:
        options = [
            (start, priority, rank, side, task)
            for rank in range(ranks)
            for start, priority, task, side in choices(rank)
        ]
        if not options:
            break
        start, _, rank, side, task = min(options, key=lambda one: one[:4])
        free[rank] = start + task.seconds
        done[(task.kind, task.micro, task.stage)] = free[rank]
        found.append(Slice(rank, task.kind, task.micro, task.stage, start, free[rank]))
        if task.kind == "forward":
            forward[rank][side] += 1
        elif task.kind == "backward":
            backward[rank][side] += 1
            waiting[rank].append(_Task("weight", task.micro, task.stage, seconds[task.stage].weight_s))
        else:
            waiting[rank].pop(0)
    return sorted(found, key=lambda one: (one.start_s, one.rank))
