"""Whether one layout fits into a chip's memory, how sure that is, and which change would make it fit."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

import msgspec
import numpy as np

from groundplane.perfmodel.estimate import MEMORY_PARTS
from groundplane.perfmodel.memory_profile import MemoryProfile
from groundplane.perfmodel.memory_training import training_memory, usable_bytes
from groundplane.perfmodel.strategy import OFFLOAD, RECOMPUTE, Layouts
from groundplane.spec.llm import LlmSpec

Verdict = Literal["fits", "may fit", "may not fit", "does not fit"]

_NONE, _SELECTIVE, _FULL, _BLOCK = (
    float(RECOMPUTE.index(name)) for name in ("none", "selective", "full", "block")
)
_MOST_ZERO: Final = 3


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change of a layout on the same chips and batch.

    `text` is in the words of `--layout` ("recompute=full"), `needed_bytes` what it would need.
    """

    text: str
    needed_bytes: float
    fits: bool


class MemoryVerdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory of one layout.

    Attributes:
        needed_bytes: of the fullest rank.
        low_bytes, high_bytes: 10th and 90th percentile.
        limit_bytes: what a run can count on.
        parts_bytes: by part (see `estimate.MEMORY_PARTS`); they add up to `needed_bytes`.
        stage: place of the fullest pipeline stage.
        verdict: "fits" and "does not fit" hold for the whole interval.
        changes: single changes: those that make it fit, cheapest in time first; where none does, those that
            save most. Empty where it fits.
    """

    needed_bytes: float
    low_bytes: float
    high_bytes: float
    limit_bytes: float
    parts_bytes: dict[str, float]
    stage: int
    verdict: Verdict
    changes: tuple[Change, ...]


def judge_memory(
    model: LlmSpec,
    seq: int,
    layout: Layouts,
    profile: MemoryProfile,
    chip_memory_bytes: float,
    *,
    activation_bytes: float = 2.0,
    expert_skew: float = 1.0,
    most_changes: int = 5,
) -> MemoryVerdict:
    """The verdict on one layout.

    Args:
        model, seq: what is trained, tokens of a sequence.
        layout: one layout.
        profile: the software stack.
        chip_memory_bytes: of a chip.
        activation_bytes: of one activation element.
        expert_skew: tokens of the rank with most tokens against the mean.
        most_changes: how many changes are named at most.
    """
    names, tried = _changes(model, seq, layout)
    both = Layouts(
        **{
            field.name: np.concatenate([getattr(layout, field.name)[:1], getattr(tried, field.name)])
            for field in dataclasses.fields(Layouts)
        }
    )
    found = training_memory(
        model, seq, both, profile, activation_bytes=activation_bytes, expert_skew=expert_skew
    )
    limit = usable_bytes(chip_memory_bytes, profile)
    needed = float(found.needed_bytes[0])
    low, high = needed * profile.ratio_p10, needed * profile.ratio_p90
    others = [
        Change(name, float(size), bool(size <= limit))
        for name, size in zip(names, found.needed_bytes[1:], strict=True)
    ]
    fitting = [change for change in others if change.fits]
    saving = sorted(
        (change for change in others if change.needed_bytes < needed), key=lambda one: one.needed_bytes
    )
    return MemoryVerdict(
        needed_bytes=needed,
        low_bytes=low,
        high_bytes=high,
        limit_bytes=limit,
        parts_bytes={name: float(found.parts_bytes[name][0]) for name in MEMORY_PARTS},
        stage=int(found.stage[0]),
        verdict=_verdict(low, needed, high, limit),
        changes=() if needed <= limit else tuple((fitting or saving)[:most_changes]),
    )


def _verdict(low: float, needed: float, high: float, limit: float) -> Verdict:
    if high <= limit:
        return "fits"
    if needed <= limit:
        return "may fit"
    return "may not fit" if low <= limit else "does not fit"


def _changes(model: LlmSpec, seq: int, layout: Layouts) -> tuple[list[str], Layouts]:
    """Names and layouts of all single changes that can be, cheapest in time first."""
    plain = {field.name: float(getattr(layout, field.name)[0]) for field in dataclasses.fields(Layouts)}
    tries: list[dict[str, float]] = []
    replicas = plain["cp"] * plain["dp"]
    if plain["tp"] > 1 and not plain["sequence_parallel"] and seq % (plain["tp"] * plain["cp"]) == 0:
        tries.append({"sequence_parallel": 1.0})
    if replicas > 1:
        tries += [{"zero": float(zero)} for zero in range(int(plain["zero"]) + 1, _MOST_ZERO + 1)]
    if plain["recompute"] == _NONE:
        tries.append({"recompute": _SELECTIVE})
    if plain["recompute"] in (_NONE, _SELECTIVE):
        tries.append({"recompute": _BLOCK, "recompute_share": 0.5})
    if plain["recompute"] != _FULL:
        tries.append({"recompute": _FULL})
    if plain["micro_batch"] % 2 == 0:
        tries.append({"micro_batch": plain["micro_batch"] / 2, "num_micro": plain["num_micro"] * 2})
    tries += _other_meshes(model, seq, plain)
    if not plain["offload"]:
        tries.append({"offload": float(OFFLOAD.index("optimizer"))})
    names = [_words(change) for change in tries]
    rows = [plain | change for change in tries]
    for row, change in zip(rows, tries, strict=True):
        if "dp" in change:
            row["shard"] = min(row["shard"], row["cp"] * row["dp"])
    return names, Layouts(**{name: np.array([row[name] for row in rows], dtype=np.float64) for name in plain})


def _other_meshes(model: LlmSpec, seq: int, plain: dict[str, float]) -> list[dict[str, float]]:
    """Twice the tensor, pipeline, context or expert ranks; half the replicas where they come from those."""
    tries: list[dict[str, float]] = []
    experts = next((layer.moe.experts for layer in model.layers if layer.moe is not None), 0)
    ranks = plain["tp"] * plain["cp"] * plain["dp"] / plain["etp"]
    if experts and experts % (2 * plain["ep"]) == 0 and ranks % (2 * plain["ep"]) == 0:
        tries.append({"ep": 2 * plain["ep"]})
    if plain["dp"] % 2:
        return tries
    fewer = {"dp": plain["dp"] / 2, "num_micro": plain["num_micro"] * 2}
    if all(layer.attention.heads % (2 * plain["tp"]) == 0 for layer in model.layers):
        tries.append({"tp": 2 * plain["tp"], "sequence_parallel": 1.0, **fewer})
    if 2 * plain["pp"] * plain["vpp"] <= model.num_layers:
        tries.append({"pp": 2 * plain["pp"], **fewer})
    if seq % (4 * plain["cp"]) == 0:
        tries.append({"cp": 2 * plain["cp"], **fewer})
    return tries


def _words(change: dict[str, float]) -> str:
    """A change in the words of a layout; what follows from the rest is left out."""
    parts = []
    for name, value in change.items():
        if name == "num_micro":
            continue
        if name == "recompute":
            parts.append(f"recompute={RECOMPUTE[int(value)]}")
        elif name == "offload":
            parts.append(f"offload={OFFLOAD[int(value)]}")
        elif name == "sequence_parallel":
            parts.append("sp")
        else:
            parts.append(f"{name}={value:g}")
    return ",".join(parts)
