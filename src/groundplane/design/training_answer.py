"""What a training plan says: the layout, its estimate, what comes next, what would help. Data only."""

from __future__ import annotations

import msgspec

from groundplane.perfmodel.estimate import TrainingEstimate
from groundplane.perfmodel.memory_advice import MemoryVerdict
from groundplane.perfmodel.strategy import OFFLOAD, RECOMPUTE, SCHEDULES, Layouts


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One layout with its prices; `layout` is written as `--layout` takes it."""

    layout: str
    step_s: float
    step_low_s: float
    step_high_s: float
    tokens_per_s: float
    mfu: float
    memory_bytes: float


class Relief(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one change would give.

    Attributes:
        change: in words.
        same_layout_s: step time of the same layout, or None where it would not fit.
        step_s: of the best layout with the same ranks after the change; None where none fits.
        gain: old step time over `step_s`; 1.1 is 10 % more tokens/s.
        layout: that layout.
    """

    change: str
    same_layout_s: float | None
    step_s: float | None
    gain: float | None
    layout: str | None


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole run over so many tokens: steps, days with their interval, hours of all chips together."""

    tokens: float
    steps: int
    days: float
    days_low: float
    days_high: float
    chip_hours: float
    cost_usd: float | None


class TrainingPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to "how fast, how much memory, which layout, what is the bottleneck".

    Attributes:
        model, cluster, chip, num_chips, stack, seq, global_batch, precision: what was asked.
        parameters, active_parameters: of the model; active are those that one token passes.
        layout: the best layout, or the one given.
        layout_parts: the same as numbers and names.
        estimate: its step.
        memory: its memory, whether it fits and which changes would make it fit.
        training: of `tokens`, where asked for.
        next_best: other layouts in the order of the objective.
        front: layouts that none beats in both time and memory, fastest first.
        relief: changes of cluster or recompute, the most helpful first.
        num_layouts: how many layouts there are of what was left open.
        num_priced: how many of them were priced in full; bounds show that no other is better.
    """

    model: str
    cluster: str
    chip: str
    num_chips: int
    stack: str
    seq: int
    global_batch: int
    precision: str
    parameters: int
    active_parameters: int
    layout: str
    layout_parts: dict[str, int | float | str | bool]
    estimate: TrainingEstimate
    memory: MemoryVerdict
    training: Training | None
    next_best: tuple[Option, ...]
    front: tuple[Option, ...]
    relief: tuple[Relief, ...]
    num_layouts: int
    num_priced: int

    @property
    def fits(self) -> bool:
        """Whether the fullest rank stays within its memory."""
        return self.estimate.fits


def words(layout: Layouts, *, mixture: bool) -> str:
    """A single layout as `--layout` takes it, with nothing left open.

    Args:
        layout: one layout.
        mixture: the model has experts, so that their ranks are part of the layout.
    """
    size = {name: int(value[0]) for name, value in vars(layout).items() if name != "recompute_share"}
    names = ["tp", "cp", "pp", "vpp", *(("ep", "etp") if mixture else ()), "dp"]
    found = [f"{name}={size[name]}" for name in names]
    found += [f"micro={size['micro_batch']}", f"zero={size['zero']}"]
    if size["zero"] >= 3:
        found.append(f"shard={size['shard']}")
    if size["tp"] > 1:
        found.append(f"sp={size['sequence_parallel']}")
    recompute = RECOMPUTE[size["recompute"]]
    found.append(f"recompute={recompute}")
    if recompute == "block":
        found.append(f"recompute_share={float(layout.recompute_share[0]):g}")
    if size["pp"] > 1 and size["vpp"] == 1:
        found.append(f"schedule={SCHEDULES[size['schedule']]}")
    if size["offload"]:
        found.append(f"offload={OFFLOAD[size['offload']]}")
    return ",".join(found)


def parts(layout: Layouts) -> dict[str, int | float | str | bool]:
    """A single layout as numbers and names."""
    found: dict[str, int | float | str | bool] = {
        name: int(value[0]) for name, value in vars(layout).items() if name != "recompute_share"
    }
    found["recompute"] = RECOMPUTE[int(layout.recompute[0])]
    found["schedule"] = SCHEDULES[int(layout.schedule[0])]
    found["offload"] = OFFLOAD[int(layout.offload[0])]
    found["sequence_parallel"] = bool(layout.sequence_parallel[0])
    found["recompute_share"] = float(layout.recompute_share[0])
    return found


def layout_of(plan: TrainingPlan) -> Layouts:
    """The layout of a plan, alone."""
    fields = dict(plan.layout_parts)
    codes = {
        "recompute": RECOMPUTE.index(str(fields["recompute"])),
        "schedule": SCHEDULES.index(str(fields["schedule"])),
        "offload": OFFLOAD.index(str(fields["offload"])),
    }
    return Layouts.of(**{name: float(codes.get(name, value)) for name, value in fields.items()})
