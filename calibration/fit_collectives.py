"""Fits the link tiers to the published collective tables and writes parameters, residuals and the manifest.

    python calibration/fit_collectives.py        # about two minutes on one core

A site is one fabric as one publisher measured it. Every error printed is of rows that the fit has not seen:
single message sizes held out, or a whole site predicted from its chip's default tier.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common

from groundplane.perfmodel.collectives import collective_time_s
from groundplane.perfmodel.correction import fit_correction
from groundplane.perfmodel.evidence import Evidence, FloatArray, evidence_of
from groundplane.perfmodel.kernel_fit import least_squares
from groundplane.perfmodel.link_catalogue import FittedTier, LinkCalibration, default_kinds
from groundplane.perfmodel.links import KindCurve
from groundplane.perfmodel.validation.network import LARGE_BYTES, cases_of, links_of, scaleup_nature
from groundplane.perfmodel.validation.network_rows import COLUMNS, Case
from groundplane.perfmodel.validation.table import read_table

FILES = ("network_aiconfigurator.csv", "network_measured.csv")
AIC = "NVIDIA aiconfigurator NCCL database (nccl-tests)"
AXIS = tuple(float(place) for place in range(9, 34, 3))
"""Knots of the correction: log2 of the message size."""

LEAST_ROWS = 3
LEAST_FOR_CORRECTION = 10

DEFAULT_SOURCES = {
    "a100-80gb-sxm": AIC, "h100-80gb-sxm": AIC, "h200-141gb-sxm": AIC, "b200-180gb-sxm": AIC,
    "b300-288gb-sxm": AIC, "gb200-186gb": AIC, "gb300-288gb": AIC, "l40s": AIC, "rtx-pro-6000-server": AIC,
    "a100-40gb-sxm": "Microsoft SuperBench test data", "v100-sxm2-32gb": "vTrain all-reduce lookup table",
    "mi300x": "MI300X rccl-tests notes (AAC clusters)", "trainium1": "AWS Neuron nccom-test docs",
}  # fmt: skip
"""Chip -> the site that stands for its scale-up links in clusters that were not measured."""

DEFAULT_NETWORKS = {
    "EFA v2 32x100G/node (p5.48xlarge) + NVLink4/NVLS",
    "RoCE v2 8x400G/node (OCI cluster network) + NVLink4",
    "NVLink4 NVSwitch + inter-node RDMA",
}
"""Fabrics whose tier stands for their kind of network."""

SAME_DOMAIN = {"NVLink5 NVL72 (MNNVL)": ("gb300-288gb", "NVLink5 (within one 4-GPU compute tray)")}
"""Sites that belong to a tier already there: the rack-wide domain continues the tray's curve."""


@dataclass(frozen=True)
class Site:
    scope: str
    chip: str
    fabric: str
    source: str
    stack: str


def main() -> None:
    cases: list[Case] = []
    rows_used = {}
    for name in FILES:
        found, excluded = cases_of(read_table(common.measured_folder() / name, COLUMNS))
        cases += [case for case in found if not case.inferred]
        rows_used[name] = sum(not case.inferred for case in found)
        sys.stdout.write(f"{name}: {rows_used[name]} used, {len(excluded)} excluded\n")
    sites = group(cases)
    unseen: dict[int, float] = {}
    tiers = fit_all(sites, unseen)
    report = ["# Collectives: errors on rows and sites that the fit has not seen", ""]
    report += table_of(sites, unseen)
    other_site, lines = leave_one_site_out(sites, tiers)
    report += lines
    calibration = LinkCalibration(
        source="published nccl-tests, rccl-tests, nccom-test and DeepEP tables; see calibration/manifest",
        form="groundplane.perfmodel.links.KindCurve",
        tiers=tuple(tiers),
        other_site=msgspec.convert(common.rounded(other_site), Evidence),
    )
    common.write_json(common.CALIBRATION / "collectives.json", trimmed(msgspec.to_builtins(calibration)))
    (common.REPOSITORY / "calibration" / "residuals_collectives.md").write_text("\n".join(report) + "\n")
    outputs = ["src/groundplane/catalog/calibration/collectives.json"]
    common.write_manifest("collectives", "calibration/fit_collectives.py", rows_used, outputs)
    sys.stdout.write("\n".join(report) + "\n")


def group(cases: list[Case]) -> dict[Site, list[Case]]:
    sites: dict[Site, list[Case]] = {}
    for case in cases:
        scope = "scaleup" if case.domains == 1 else "scaleout"
        chip, fabric = SAME_DOMAIN.get(case.fabric, (case.chip, case.fabric))
        source = AIC if case.fabric in SAME_DOMAIN else case.source
        stack = case.stack if case.kind.startswith("moe_") else ""
        sites.setdefault(Site(scope, chip, fabric, source, stack), []).append(case)
    return {site: members for site, members in sites.items() if len(members) >= LEAST_ROWS}


def fit_all(sites: dict[Site, list[Case]], unseen: dict[int, float]) -> list[FittedTier]:
    """Tiers inside domains first: those between them are fitted on top. Fills `unseen` by id of the case."""
    tiers: list[FittedTier] = []
    for scope in ("scaleup", "scaleout"):
        for site, members in sites.items():
            if site.scope == scope:
                tiers.append(fit_site(site, members, tuple(tiers), unseen))
        if scope == "scaleup":
            tiers = with_experts(tiers)
    return tiers


def with_experts(tiers: list[FittedTier]) -> list[FittedTier]:
    """Default tiers take the expert collectives of their chip's newest library."""
    newest: dict[str, dict[str, KindCurve]] = {}
    for tier in sorted(
        tiers, key=lambda one: [int(part) for part in one.stack.split(".")[:3] if part.isdigit()]
    ):
        experts = {kind: curve for kind, curve in tier.kinds.items() if kind.startswith("moe_")}
        if experts:
            newest[tier.chips[0]] = experts
    return [
        msgspec.structs.replace(tier, kinds={**newest.get(tier.chips[0], {}), **tier.kinds})
        if tier.default
        else tier
        for tier in tiers
    ]


def fit_site(
    site: Site, members: list[Case], below: tuple[FittedTier, ...], unseen: dict[int, float]
) -> FittedTier:
    first = members[0]
    chip = common.table_chip(site.chip)
    nominal = (
        first.cards_bytes_per_s
        if site.scope == "scaleout"
        else chip.scaleup_bytes_per_s or chip.pcie_bytes_per_s
    )
    kinds: dict[str, KindCurve] = {}
    ratios: list[float] = []
    for kind in sorted({case.kind for case in members}):
        own = [case for case in members if case.kind == kind]
        kinds[kind] = fit_kind(site, own, below)
        fold = common.folds_of([(case.message_bytes, case.inside, case.domains) for case in own])
        for held in range(common.FOLDS):
            kept = [case for case, place in zip(own, fold, strict=True) if place != held]
            out = [case for case, place in zip(own, fold, strict=True) if place == held]
            if kept and out:
                curve = fit_kind(site, kept, below)
                for case, ratio in zip(out, ratio_of(site, out, curve, below), strict=True):
                    unseen[id(case)] = float(ratio)
                    ratios.append(float(ratio))
    evidence = evidence_of(
        "measured", np.array(ratios or [1.0]), f"{site.source}; message sizes held out", least_spread=0.03
    )
    default = (
        DEFAULT_SOURCES.get(site.chip) == site.source
        if site.scope == "scaleup"
        else site.fabric in DEFAULT_NETWORKS and site.chip.startswith("h100")
    )
    return FittedTier(
        name=" / ".join(part for part in (site.chip, site.fabric, site.stack, site.source) if part),
        scope=site.scope,  # type: ignore[arg-type]
        chips=(site.chip,),
        fabrics=tuple(sorted({case.fabric for case in members})),
        sources=tuple(sorted({case.source for case in members})),
        bytes_per_s=float(nominal or 0.0),
        kinds=kinds,
        residuals=msgspec.convert(common.rounded(evidence), Evidence),
        link=first.link,
        stack=site.stack,
        default=default,
    )


def fit_kind(site: Site, cases: list[Case], below: tuple[FittedTier, ...]) -> KindCurve:
    """Latency and efficiency by group size, ramp and its power; then the correction by message size."""
    sizes = sorted({group_size(site, case) for case in cases})
    nature = cases[0].link if site.scope == "scaleout" else scaleup_nature(common.table_chip(site.chip))
    guess = default_kinds(site.scope, nature)["all_reduce"]
    ranks = np.array([float(size) for size in sizes])
    count = len(sizes)
    lat0 = np.maximum(guess.latency_s(ranks), 1e-6)
    measured = np.array([case.measured_s for case in cases])
    # The fastest row bounds the latency of its group from above.
    for index, size in enumerate(sizes):
        own = [case.measured_s for case in cases if group_size(site, case) == size]
        lat0[index] = (
            min(lat0[index], 0.95 * min(own))
            if min(c.message_bytes for c in cases) > 1e5
            else 0.95 * min(own)
        )
    start = np.concatenate(
        [np.log(lat0), np.log(np.full(count, guess.efficiencies[0])), [np.log(guess.ramp_bytes), 0.0]]
    )
    spread = np.concatenate([np.full(count, 0.7), np.full(count, 0.5), [1.5, 0.7]])

    def curve_of(place: FloatArray) -> KindCurve:
        values = np.exp(np.clip(place, -40.0, 40.0))
        return KindCurve(
            ranks=tuple(sizes),
            latencies_s=tuple(float(value) for value in values[:count]),
            efficiencies=tuple(float(value) for value in values[count : 2 * count]),
            ramp_bytes=float(values[-2]),
            ramp=float(1.0 / (1.0 + np.exp(-place[-1]))),
            step_latency_s=guess.step_latency_s,
        )

    solved = least_squares(
        lambda place: np.asarray(np.log(measured / predict(site, cases, curve_of(place), below))),
        start,
        0.1 / spread,
    )
    curve = curve_of(solved)
    if len(cases) >= LEAST_FOR_CORRECTION:
        left = np.log(measured / predict(site, cases, curve, below))
        bytes_of = np.array([case.message_bytes for case in cases])
        correction = fit_correction((AXIS,), left, bytes_of, smoothness=0.3, shrinkage=0.1, huber=0.08)
        curve = msgspec.structs.replace(curve, correction=correction)
    return curve


def group_size(site: Site, case: Case) -> int:
    return case.domains if site.scope == "scaleout" else case.inside


def ratio_of(site: Site, cases: list[Case], curve: KindCurve, below: tuple[FittedTier, ...]) -> FloatArray:
    measured = np.array([case.measured_s for case in cases])
    return np.asarray(measured / predict(site, cases, curve, below), dtype=np.float64)


def predict(site: Site, cases: list[Case], curve: KindCurve, below: tuple[FittedTier, ...]) -> FloatArray:
    """Times of cases of one kind at one site, with `curve` on the site's tier and fitted tiers below it."""
    links, _ = links_of(cases[0], below)
    tier = links.scaleout if site.scope == "scaleout" else links.scaleup
    tier = msgspec.structs.replace(tier, kinds={curve_kind(cases): curve})
    if site.scope == "scaleout":
        links = msgspec.structs.replace(links, scaleout=tier)
    else:
        links = msgspec.structs.replace(links, scaleup=tier)
    return collective_time_s(
        links,
        curve_kind(cases),  # type: ignore[arg-type]
        np.array([case.message_bytes for case in cases]),
        np.array([case.inside for case in cases]),
        np.array([case.domains for case in cases]),
        concurrent_groups=1,
    )


def curve_kind(cases: list[Case]) -> str:
    return cases[0].kind


def table_of(sites: dict[Site, list[Case]], unseen: dict[int, float]) -> list[str]:
    lines = [
        "| site | kind | n | >= 1 MB: median | p90 | bias | < 1 MB: median | p90 | bias |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    pools: tuple[list[float], list[float]] = ([], [])
    for site, members in sites.items():
        for kind in sorted({case.kind for case in members}):
            own = [case for case in members if case.kind == kind and id(case) in unseen]
            parts = []
            for pool, large in zip(pools, (True, False), strict=True):
                ratios = [unseen[id(case)] for case in own if (case.message_bytes >= LARGE_BYTES) == large]
                pool.extend(ratios)
                parts.append(common.error_line(np.array(ratios)) if ratios else "- | - | -")
            name = " / ".join(part for part in (site.chip, site.fabric, site.stack, site.source) if part)
            lines.append(f"| {name} | {kind} | {len(own)} | {' | '.join(parts)} |")
    both = " | ".join(common.error_line(np.array(pool)) for pool in pools)
    lines += [f"| all | | {sum(len(pool) for pool in pools)} | {both} |", ""]
    return lines


def leave_one_site_out(sites: dict[Site, list[Case]], tiers: list[FittedTier]) -> tuple[Evidence, list[str]]:
    """Each site that is no default, predicted from the default tiers alone."""
    defaults = tuple(tier for tier in tiers if tier.default)
    lines = [
        "A site predicted from the default tier of its chip or network:",
        "",
        "| site | n | median | p90 | bias |",
        "|---|---|---|---|---|",
    ]
    every: list[float] = []
    for site, members in sites.items():
        # Default tiers hold the expert collectives of their chips, so those have no site of their own.
        if site.stack or any(
            {case.source for case in members} <= set(tier.sources) and site.fabric in tier.fabrics
            for tier in defaults
        ):
            continue
        ratios = []
        for case in members:
            links, _ = links_of(case, defaults)
            guess = collective_time_s(
                links, case.kind, case.message_bytes, case.inside, case.domains, concurrent_groups=1
            )  # type: ignore[arg-type]
            ratios.append(case.measured_s / float(guess))
        every += ratios
        name = f"{site.chip} / {site.fabric} / {site.source}"
        lines.append(f"| {name} | {len(ratios)} | {common.error_line(np.array(ratios))} |")
    ratio = np.array(every)
    lines += [f"| all | {ratio.size} | {common.error_line(ratio)} |", ""]
    return evidence_of("family", ratio, "default tiers on other sites"), lines


def trimmed(data: object) -> object:
    """Numbers with 4 significant digits; no empty fields."""
    if isinstance(data, float):
        return float(f"{data:.4g}")
    if isinstance(data, dict):
        return {
            key: trimmed(value)
            for key, value in data.items()
            if value is not None and value not in ("", False)
        }
    if isinstance(data, list | tuple):
        return [trimmed(value) for value in data]
    return data


if __name__ == "__main__":
    main()
