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

from groundplane.perfmodel.collectives import CollectiveKind, collective_time_s
from groundplane.perfmodel.correction import fit_correction
from groundplane.perfmodel.evidence import Evidence, FloatArray, evidence_of
from groundplane.perfmodel.kernel_fit import least_squares
from groundplane.perfmodel.link_catalogue import FittedTier, LinkCalibration, default_kinds
from groundplane.perfmodel.links import KindCurve
from groundplane.perfmodel.validation.network import LARGE_BYTES, cases_of, links_of, scaleup_nature
from groundplane.perfmodel.validation.network_rows import COLUMNS, Case
from groundplane.perfmodel.validation.table import read_table

FILES = ("network_aiconfigurator.csv", "network_measured.csv")
AXIS = tuple(float(place) for place in range(9, 34, 3))
"""Knots of the correction: log2 of the message size."""

LEAST_FOR_EVIDENCE = 6
LEAST_FOR_POOL_EVIDENCE = 20
LEAST_FOR_CORRECTION = 10

POOLS = {
    "NVLink2": ("v100-sxm2-16gb", "v100-sxm2-32gb"),
    "NVLink3": ("a100-80gb-sxm", "a100-40gb-sxm", "a800-80gb-sxm"),
    "NVLink4": ("h100-80gb-sxm", "h200-141gb-sxm", "h800-80gb-sxm", "h20-96gb-sxm", "gh200-141gb"),
    "NVLink5": ("b200-180gb-sxm", "b300-288gb-sxm", "b100-192gb", "gb200-186gb", "gb300-288gb"),
    "xGMI": ("mi300x", "mi325x", "mi350x", "mi355x"),
    "PCIe4": ("l40s", "l4", "rtx-4090", "a100-80gb-pcie"),
    "PCIe5": ("rtx-pro-6000-server", "rtx-5090", "h100-80gb-pcie"),
    "NeuronLink": ("trainium1", "trainium2", "trainium3"),
}
"""Chips on one generation of links: all their sites together stand for clusters that were not measured."""

ADDING_SWITCHES = ("NVLink4", "NVLink5")
"""Generations whose switches sum up an all-reduce."""


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
    tiers = fit_all(sites)
    score(sites, tiers, unseen)
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
        stack = case.stack if case.kind.startswith("moe_") else ""
        sites.setdefault(Site(scope, case.chip, case.fabric, case.source, stack), []).append(case)
    return sites


def fit_all(sites: dict[Site, list[Case]]) -> list[FittedTier]:
    """Tiers inside domains first, pools among them: those between domains are fitted on top."""
    inside = {site: members for site, members in sites.items() if site.scope == "scaleup"}
    tiers = [fit_site(site, members, ()) for site, members in inside.items()]
    tiers += [pool(name, inside) for name in POOLS]
    between = {site: members for site, members in sites.items() if site.scope == "scaleout"}
    below = tuple(tier for tier in tiers if tier.default)
    tiers += [fit_site(site, members, below) for site, members in between.items()]
    for network in sorted({network_of(members[0]) for members in between.values()}):
        tiers.append(network_pool(network, between, below))
    return tiers


def pool(name: str, sites: dict[Site, list[Case]]) -> FittedTier:
    """One tier for all sites of a generation of links, with the expert collectives of the newest library."""
    chips = POOLS[name]
    own = {site: members for site, members in sites.items() if site.chip in chips}
    newest = max((version(site.stack) for site in own), default=())
    kept = {site: members for site, members in own.items() if not site.stack or version(site.stack) == newest}
    return joined(f"all {name}", chips, kept, ())


def network_of(case: Case) -> tuple[str, float]:
    """Kind of network and speed of a node's cards."""
    return case.link, case.cards_bytes_per_s


def network_pool(
    network: tuple[str, float], sites: dict[Site, list[Case]], below: tuple[FittedTier, ...]
) -> FittedTier:
    """One tier for all sites of a kind of network with cards of one speed."""
    own = {site: members for site, members in sites.items() if network_of(members[0]) == network}
    tier = joined(network_name(network), tuple(sorted({site.chip for site in own})), own, below)
    return msgspec.structs.replace(tier, link=network[0], bytes_per_s=network[1])


def network_name(network: tuple[str, float]) -> str:
    return f"all {network[0]} of {network[1] / 1e9:g} GB/s"


def joined(
    name: str, chips: tuple[str, ...], sites: dict[Site, list[Case]], below: tuple[FittedTier, ...]
) -> FittedTier:
    """A default tier fitted to all rows of some sites."""
    scope = next(iter(sites)).scope
    members = [case for part in sites.values() for case in part]
    site = Site(scope, chips[0], "", "", "")
    kinds = {
        kind: fit_kind(site, [case for case in members if case.kind == kind], below)
        for kind in sorted({case.kind for case in members})
    }
    return FittedTier(
        name=name,
        scope=scope,  # type: ignore[arg-type]
        chips=chips,
        fabrics=tuple(sorted({case.fabric for case in members})),
        sources=(),
        bytes_per_s=0.0,
        kinds=kinds,
        residuals=UNKNOWN,
        default=True,
    )


def version(stack: str) -> tuple[int, ...]:
    return tuple(int(part) for part in stack.split(".")[:3] if part.isdigit())


UNKNOWN = Evidence("family", 1.0, 1.0, 1.0, 0, "")


def fit_site(site: Site, members: list[Case], below: tuple[FittedTier, ...]) -> FittedTier:
    first = members[0]
    chip = common.table_chip(site.chip)
    nominal = (
        first.cards_bytes_per_s
        if site.scope == "scaleout"
        else chip.scaleup_bytes_per_s or chip.pcie_bytes_per_s
    )
    kinds = {
        kind: fit_kind(site, [case for case in members if case.kind == kind], below)
        for kind in sorted({case.kind for case in members})
    }
    return FittedTier(
        name=title(site),
        scope=site.scope,  # type: ignore[arg-type]
        chips=(site.chip,),
        fabrics=tuple(sorted({case.fabric for case in members})),
        sources=tuple(sorted({case.source for case in members})),
        bytes_per_s=float(nominal or 0.0),
        kinds=kinds,
        residuals=UNKNOWN,
        link=first.link,
        stack=site.stack,
    )


def score(sites: dict[Site, list[Case]], tiers: list[FittedTier], unseen: dict[int, float]) -> None:
    """Ratios of rows held out of their own site's fit, by id of the case; evidence of each site's tier."""
    below = tuple(tier for tier in tiers if tier.default and tier.scope == "scaleup")
    for place, tier in enumerate(tiers):
        site = next((one for one in sites if title(one) == tier.name and one.scope == tier.scope), None)
        if site is None:
            continue
        ratios: list[float] = []
        for kind in tier.kinds:
            own = [case for case in sites[site] if case.kind == kind]
            fold = common.folds_of([(case.message_bytes, case.inside, case.domains) for case in own])
            for held in range(common.FOLDS):
                kept = [case for case, where in zip(own, fold, strict=True) if where != held]
                out = [case for case, where in zip(own, fold, strict=True) if where == held]
                if not kept or not out:
                    continue
                curve = fit_kind(site, kept, below)
                for case, ratio in zip(out, ratio_of(site, out, curve, below), strict=True):
                    unseen[id(case)] = float(ratio)
                    ratios.append(float(ratio))
        if len(ratios) < LEAST_FOR_EVIDENCE:
            continue  # keeps UNKNOWN, which becomes that of other sites
        evidence = evidence_of(
            "measured", np.array(ratios), f"{site.source}; message sizes held out", least_spread=0.03
        )
        tiers[place] = msgspec.structs.replace(
            tier, residuals=msgspec.convert(common.rounded(evidence), Evidence)
        )


def title(site: Site) -> str:
    return " / ".join(part for part in (site.chip, site.fabric, site.stack, site.source) if part)


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
            switch_adds=cases[0].kind == "all_reduce"
            and site.scope == "scaleup"
            and adding_switch(site.chip),
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


def adding_switch(chip: str) -> bool:
    return any(chip in POOLS[name] for name in ADDING_SWITCHES)


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
            lines.append(f"| {title(site)} | {kind} | {len(own)} | {' | '.join(parts)} |")
    both = " | ".join(common.error_line(np.array(pool)) for pool in pools)
    lines += [f"| all | | {sum(len(pool) for pool in pools)} | {both} |", ""]
    return lines


def leave_one_site_out(sites: dict[Site, list[Case]], tiers: list[FittedTier]) -> tuple[Evidence, list[str]]:
    """Each site predicted from the pool of all others; fills in the evidence of the pools."""
    lines = [
        "A site predicted from all others on the same links:",
        "",
        "| site | n | median | p90 | bias |",
        "|---|---|---|---|---|",
    ]
    every: dict[str, list[float]] = {}
    for site, members in sites.items():
        if site.stack:
            continue  # expert collectives: libraries differ more than sites
        below = tuple(tier for tier in tiers if tier.default and tier.scope == "scaleup")
        others = {one: part for one, part in sites.items() if one.scope == site.scope and one != site}
        name = pool_name(site, members)
        if name is None or not any(
            pool_name(one, part) == name and not one.stack for one, part in others.items()
        ):
            continue
        if site.scope == "scaleup":
            left = pool(name.removeprefix("all "), others)
            usable = (left,)
        else:
            left = network_pool(network_of(members[0]), others, below)
            usable = (*below, left)
        known = [case for case in members if case.kind in left.kinds]
        ratios = []
        for case in known:
            links, _ = links_of(case, usable)
            kind: CollectiveKind = case.kind  # type: ignore[assignment]
            guess = collective_time_s(
                links, kind, case.message_bytes, case.inside, case.domains, concurrent_groups=1
            )
            ratios.append(case.measured_s / float(guess))
        if ratios:
            every.setdefault(name, []).extend(ratios)
            lines.append(f"| {title(site)} | {len(ratios)} | {common.error_line(np.array(ratios))} |")
    ratio = np.concatenate([np.array(part) for part in every.values()])
    lines += [f"| all | {ratio.size} | {common.error_line(ratio)} |", ""]
    overall = evidence_of("family", ratio, "sites held out, all links")
    for place, tier in enumerate(tiers):
        own = np.array(every.get(tier.name, []))
        if tier.default and own.size >= LEAST_FOR_POOL_EVIDENCE:
            found = evidence_of("measured", own, f"sites held out, {tier.name}")
        elif tier.residuals == UNKNOWN:
            found = overall
        else:
            continue
        tiers[place] = msgspec.structs.replace(
            tier, residuals=msgspec.convert(common.rounded(found), Evidence)
        )
    return overall, lines


def pool_name(site: Site, members: list[Case]) -> str | None:
    if site.scope == "scaleout":
        return network_name(network_of(members[0]))
    return next((f"all {name}" for name, chips in POOLS.items() if site.chip in chips), None)


def trimmed(data: object) -> object:
    """Numbers with 4 significant digits; no empty fields."""
    if isinstance(data, float):
        return float(f"{data:.4g}")
    if isinstance(data, dict):
        given = {
            key: value
            for key, value in data.items()
            if value is not None and value is not False and value != ""
        }
        return {key: trimmed(value) for key, value in given.items()}
    if isinstance(data, list | tuple):
        return [trimmed(value) for value in data]
    return data


if __name__ == "__main__":
    main()
