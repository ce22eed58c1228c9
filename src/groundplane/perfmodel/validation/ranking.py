"""Whether the layout that the model picks is among the best that were measured, sweep by sweep.

A sweep is all complete runs of one source that train the same model with the same sequence length, batch and
formats on as many equal chips, and differ in their layout. Knows cases and their predicted times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.published import Case

LEAST_OF_A_SWEEP: Final = 3
"""Layouts below which there is nothing to pick from."""


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sweep: `behind_pct` is how much slower the picked layout was measured than the best one."""

    source: str
    model: str
    num_chips: int
    num_layouts: int
    picked_row: int
    best_row: int
    behind_pct: float


class Ranking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sweeps of one source and the median of how far behind their picks are."""

    source: str
    num_sweeps: int
    median_behind_pct: float
    p90_behind_pct: float
    sweeps: list[Sweep]


def rankings(cases: Sequence[Case], predicted_s: FloatArray) -> list[Ranking]:
    """The ranking of each source that has sweeps, in the order in which they come.

    Runs of one layout count once, by the median of their measurements.

    Args:
        cases: priced runs.
        predicted_s: their predicted steps.
    """
    groups: dict[tuple[object, ...], dict[str, list[int]]] = {}
    for index, case in enumerate(cases):
        if case.complete:
            layouts = groups.setdefault(_sweep_of(case), {})
            layouts.setdefault(repr(sorted(case.layouts[0].items())), []).append(index)
    found: dict[str, list[Sweep]] = {}
    for layouts in groups.values():
        if len(layouts) >= LEAST_OF_A_SWEEP:
            sweep = _sweep(cases, predicted_s, list(layouts.values()))
            found.setdefault(sweep.source, []).append(sweep)
    return [_ranking(source, sweeps) for source, sweeps in found.items()]


def _sweep_of(case: Case) -> tuple[object, ...]:
    model = case.model
    shape = (model.name, model.num_layers, model.hidden, model.vocab)
    formats = (case.precision.linear, case.precision.other)
    return (
        case.source,
        *shape,
        case.seq,
        case.global_batch,
        case.cluster.chip.name,
        case.num_chips,
        *formats,
    )


def _sweep(cases: Sequence[Case], predicted_s: FloatArray, layouts: list[list[int]]) -> Sweep:
    measured = np.array([np.median([cases[index].measured_s for index in rows]) for rows in layouts])
    predicted = np.array([np.median(predicted_s[rows]) for rows in layouts])
    picked, best = int(np.argmin(predicted)), int(np.argmin(measured))
    first = cases[layouts[0][0]]
    return Sweep(
        first.source,
        first.model.name,
        first.num_chips,
        len(layouts),
        cases[layouts[picked][0]].row,
        cases[layouts[best][0]].row,
        round(float(100.0 * (measured[picked] / measured[best] - 1.0)), 3),
    )


def _ranking(source: str, sweeps: list[Sweep]) -> Ranking:
    behind = [sweep.behind_pct for sweep in sweeps]
    return Ranking(
        source,
        len(sweeps),
        round(float(np.median(behind)), 3),
        round(float(np.quantile(behind, 0.9)), 3),
        sweeps,
    )
