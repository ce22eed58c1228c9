"""Collective times predicted against measured ones, over the fabrics that tables name."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

import msgspec

from groundplane.catalog.resolve import resolve_chip
from groundplane.perfmodel.collectives import CollectiveKind, Links, collective_time_s
from groundplane.perfmodel.evidence import Evidence
from groundplane.perfmodel.link_catalogue import (
    DATA_SHEET,
    FittedTier,
    calibration,
    default_kinds,
    nearest_network,
)
from groundplane.perfmodel.links import TierCurve
from groundplane.perfmodel.validation.network_rows import COLUMNS, Case, Unclear, case_of
from groundplane.perfmodel.validation.report import (
    Errors,
    Excluded,
    Outcome,
    Report,
    errors_of,
    report_of,
)
from groundplane.perfmodel.validation.table import Row, read_table, shipped_table
from groundplane.spec.cluster import ChipSpec

LARGE_BYTES: Final = 10**6
"""Messages from here on count as large; tables that mean 2**20 have no row in between."""


class NetworkErrors(Errors, frozen=True, forbid_unknown_fields=True):
    """Errors, and their medians for large and small messages apart."""

    median_abs_pct_large: float | None = None
    median_abs_pct_small: float | None = None


def validate_network(data: str | Path | None = None) -> Report:
    """Compares collective times; without `data` the catalogue's cited points. `pooled` is a `NetworkErrors`.

    Args:
        data: a CSV file with `COLUMNS` (and `notes`, `where`, which help where a field is blank).

    Raises:
        InputError: unreadable file, a missing column, or a cell that should be a number and is none.
    """
    rows = shipped_table("points_network.csv", COLUMNS) if data is None else read_table(data, COLUMNS)
    cases, excluded = cases_of(rows)
    outcomes = [_outcome(case) for case in cases]
    whole = report_of(outcomes, excluded)
    complete = [(case, outcome) for case, outcome in zip(cases, outcomes, strict=True) if not case.inferred]
    large = errors_of("large", (outcome for case, outcome in complete if case.message_bytes >= LARGE_BYTES))
    small = errors_of("small", (outcome for case, outcome in complete if case.message_bytes < LARGE_BYTES))
    pooled = NetworkErrors(
        **msgspec.structs.asdict(whole.pooled),
        median_abs_pct_large=large.median_abs_pct,
        median_abs_pct_small=small.median_abs_pct,
    )
    return msgspec.structs.replace(whole, pooled=pooled)


def cases_of(rows: list[Row]) -> tuple[list[Case], list[Excluded]]:
    """What can be compared, and what cannot with the reason."""
    cases: list[Case] = []
    excluded: list[Excluded] = []
    for row in rows:
        try:
            cases.append(case_of(row))
        except Unclear as reason:
            excluded.append(Excluded(row.line, str(reason)))
    return cases, excluded


def links_of(case: Case, tiers: tuple[FittedTier, ...]) -> tuple[Links, Evidence]:
    """The links that a case was measured on, from the nearest fitted tiers, and what stands behind them."""
    inner, inner_evidence = _scaleup(case, tiers)
    outer, outer_evidence = _scaleout(case, tiers)
    nodes_cards = case.cards_bytes_per_s
    links = Links(
        scaleup=inner,
        scaleout=outer,
        chips_per_domain=case.inside,
        nic_bytes_per_s=nodes_cards / max(1, min(8, case.inside)),
        domain_nic_bytes_per_s=nodes_cards,
    )
    return links, inner_evidence if outer is None else outer_evidence


def _outcome(case: Case) -> Outcome:
    links, spread = links_of(case, calibration().tiers)
    kind: CollectiveKind = case.kind  # type: ignore[assignment]
    guess = float(
        collective_time_s(links, kind, case.message_bytes, case.inside, case.domains, concurrent_groups=1)
    )
    return Outcome(
        row=case.row,
        source=case.source,
        measured=case.measured_s,
        predicted=guess,
        low=guess * spread.ratio_p10,
        high=guess * spread.ratio_p90,
        inferred=case.inferred,
    )


def matching_tier(case: Case, scope: str, tiers: tuple[FittedTier, ...]) -> tuple[FittedTier, bool] | None:
    """The fitted tier nearest to a case, and whether it was fitted to that very site.

    A site is known by its source, chip and fabric (and stack, where tables differ by it); else the default
    tier of the chip, or of the kind of network.
    """
    own = [tier for tier in tiers if tier.scope == scope]
    for with_stack in (True, False):
        for tier in own:
            if (
                case.source in tier.sources
                and case.fabric in tier.fabrics
                and (case.chip in tier.chips)
                and case.kind in tier.kinds
                and (not with_stack or case.stack == tier.stack)
            ):
                return tier, True
    chosen = [tier for tier in own if tier.default]
    for tier in chosen:
        if scope == "scaleup" and case.chip in tier.chips:
            return tier, False
    if scope == "scaleout":
        kind = case.kind if case.kind.startswith("moe_") else "all_reduce"
        near = nearest_network(tiers, case.link, case.cards_bytes_per_s, kind)
        return None if near is None else (near, False)
    if scope == "scaleup":
        for tier in chosen:
            if _generation(case) and any(_generation(case) in fabric for fabric in tier.fabrics):
                return tier, False
    return None


def _scaleup(case: Case, tiers: tuple[FittedTier, ...]) -> tuple[TierCurve, Evidence]:
    chip = _chip(case.chip)
    nominal = chip.scaleup_bytes_per_s or chip.pcie_bytes_per_s or 2.5e10
    found = matching_tier(case, "scaleup", tiers)
    if found is None:
        return TierCurve(nominal, default_kinds("scaleup", scaleup_nature(chip))), DATA_SHEET
    tier, same = found
    return TierCurve(nominal, tier.kinds), tier.residuals if same else _elsewhere(tier)


def _scaleout(case: Case, tiers: tuple[FittedTier, ...]) -> tuple[TierCurve | None, Evidence]:
    if case.domains == 1:
        return None, DATA_SHEET
    found = matching_tier(case, "scaleout", tiers)
    if found is None:
        return TierCurve(case.cards_bytes_per_s, default_kinds("scaleout", case.link)), DATA_SHEET
    tier, same = found
    return TierCurve(case.cards_bytes_per_s, tier.kinds), tier.residuals if same else _elsewhere(tier)


def _elsewhere(tier: FittedTier) -> Evidence:
    """Evidence of a tier on a site that had no part in it: at least the spread of such sites."""
    return max(tier.residuals, DATA_SHEET, key=lambda one: one.ratio_p90 / one.ratio_p10)


def scaleup_nature(chip: ChipSpec) -> str:
    """The nature of a chip's scale-up links, as `default_kinds` names it."""
    if chip.scaleup_bytes_per_s is None:
        return "pcie"
    return "nvlink" if "nvlink" in chip.scaleup_fabric.lower() else "mesh"


@functools.cache
def _chip(name: str) -> ChipSpec:
    return resolve_chip(name)


def _generation(case: Case) -> str:
    """The generation of the chip's scale-up fabric, such as NVLink4."""
    return _chip(case.chip).scaleup_fabric.split(" ")[0]
