"""What placement of parts of devices leaves unallocatable: fragmentation gradient and the usual policies.

As in "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): requests drawn from a mix arrive until they
ask together for all compute that the cluster has; what no longer fits is turned away; what is left
unallocated at the end could not be used. All policies see the same requests, place whole devices alike, and
differ only in the choice of the device for a part:

- gradient: ours, where fragmentation over the learnt mix rises least;
- best-fit: the node and then the device that is left fullest;
- first-fit: the first node and device with room;
- dot-product: the device whose free compute and memory, multiplied with the request's, sum to the least.

Run: python benchmarks/shared_devices.py --json
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from groundplane.catalog.resolve import resolve_chip
from groundplane.control.context import Context
from groundplane.control.core import ControlCore
from groundplane.control.devices import use_of, use_with, ways
from groundplane.control.events import UNITS_PER_DEVICE, DevicePart, Gang, KindDescribed, NodeJoined
from groundplane.control.kinds import described
from groundplane.control.sharing import Candidate, Rank
from groundplane.control.state import Work

GIB = 1 << 30
DEVICES_PER_NODE = 8
MIXES = {
    "fractions": {0.1: 10, 0.2: 15, 0.25: 15, 0.3: 15, 0.5: 25, 0.6: 5, 0.7: 10, 0.8: 5},
    "fractions and whole devices": {0.2: 15, 0.4: 15, 0.6: 15, 0.8: 15, 1: 30, 2: 6, 4: 4},
    "small instances": {"1g.10gb": 40, "2g.20gb": 25, "3g.40gb": 15, "4g.40gb": 15, "7g.80gb": 5},
    "instances": {"1g.10gb": 35, "1g.20gb": 10, "2g.20gb": 20, "3g.40gb": 20, "4g.40gb": 10, "7g.80gb": 5},
}
"""Request (part of a device, number of whole ones, or profile) to weight. Assumed; most are for parts, since
those are what the policies differ in."""


def policies() -> dict[str, Rank | None]:
    """Name to how candidates are compared; None for the core's own."""
    return {"gradient": None, "best-fit": best_fit, "first-fit": first_fit, "dot-product": dot_product}


def best_fit(candidate: Candidate) -> tuple[int, ...]:
    """The node with the least free compute, on it the device with the least."""
    node, device, part, _, after, _ = candidate
    return (_free_units(candidate), after.free_units, node.index, device, part.start)


def first_fit(candidate: Candidate) -> tuple[int, ...]:
    """The first in the order of joining."""
    return (candidate.node.index, candidate.device, candidate.part.start)


def dot_product(candidate: Candidate) -> tuple[int, ...]:
    """The least product of what is free on the node and what is asked for, by compute and memory."""
    node, device, part, _, _, num_free = candidate
    free_bytes = num_free * MEMORY_BYTES + sum(
        MEMORY_BYTES - sum(each.memory_bytes for each in shared.parts.values()) for shared in node.shared
    )
    product = _free_units(candidate) * part.units * GIB + (free_bytes // GIB) * part.memory_bytes
    return (product, node.index, device, part.start)


MEMORY_BYTES = 80 * GIB


def _free_units(candidate: Candidate) -> int:
    shared = sum(
        UNITS_PER_DEVICE - sum(part.units for part in each.parts.values()) for each in candidate.node.shared
    )
    return candidate.num_free * UNITS_PER_DEVICE + shared


@dataclass(frozen=True)
class Result:
    """One run at its end: part of all compute that is left, and how many requests found room."""

    unallocated: float
    placed: int
    refused: int


def run(mix: str, rank: Rank | None, *, num_nodes: int, seed: int) -> Result:
    """Fills a cluster."""
    core, kind = ControlCore(), described("h100", resolve_chip("h100"))
    core.handle(0, kind)
    for number in range(num_nodes):
        core.handle(0, NodeJoined(f"n{number}", "h100", DEVICES_PER_NODE, 1 << 40))
    context = Context(core.state)
    if rank is not None:
        context.sharing.rank = rank
        context.sharing.shared_candidates = partial(every_candidate, context)  # type: ignore[method-assign]
    capacity = num_nodes * DEVICES_PER_NODE * UNITS_PER_DEVICE
    pick = random.Random(seed)
    requests, weights = list(MIXES[mix]), list(MIXES[mix].values())
    asked = placed = refused = held = 0
    while asked < capacity:
        gang = gang_of(pick.choices(requests, weights)[0], kind)
        units = gang.devices_per_rank * UNITS_PER_DEVICE if gang.part is None else gang.part.units
        asked += units
        context.mix.note(gang)
        placement = context.pools.place(gang)
        if placement is None:
            refused += 1
            continue
        work = Work(f"s.r{placed}", "replica", "s", placed, "starting", gang)
        context.lease(work, placement)
        placed += 1
        held += units
    return Result(1 - held / capacity, placed, refused)


def every_candidate(
    context: Context, kind: str, gang: Gang, part: DevicePart, is_barred: object
) -> Iterator[Candidate]:
    """Every way on every shared device: the other policies tell apart what is equal to ours."""
    del gang, is_barred
    described_kind = context.state.kinds[kind]
    for node in context.state.nodes.values():
        for shared in node.shared:
            use = use_of(shared.parts.values(), described_kind)
            for placed in ways(use, part, described_kind):
                after = use_with(use, placed, described_kind)
                yield Candidate(node, shared.device, placed, use, after, node.num_free)


def gang_of(request: float | str, kind: KindDescribed) -> Gang:
    """One request of a mix. A fraction may use as much of the memory as of the compute."""
    if isinstance(request, str):
        units = next(profile.units for profile in kind.profiles if profile.name == request)
        return Gang(1, 1, 0, (), DevicePart(units, 0, request))
    if request >= 1:
        return Gang(1, int(request), 0)
    per_mille = round(request * 1000)
    return Gang(1, 1, 0, (), DevicePart(per_mille * 7, per_mille * kind.memory_bytes // 1000))


def compare(num_nodes: int, seeds: int) -> dict[str, dict[str, float]]:
    """Mean part of all compute that stays unallocated, by mix and policy."""
    return {
        mix: {
            name: sum(run(mix, rank, num_nodes=num_nodes, seed=seed).unallocated for seed in range(seeds))
            / seeds
            for name, rank in policies().items()
        }
        for mix in MIXES
    }


def main() -> None:
    """Runs all and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    began_s = time.process_time()
    table = compare(options.nodes, options.seeds)
    if options.json:
        print(json.dumps({"nodes": options.nodes, "seeds": options.seeds, "unallocated": table}))
        return
    names = list(policies())
    print(f"{'unallocated, % of all compute':32}" + "".join(f"{name:>14}" for name in names))
    for mix, of_policy in table.items():
        print(f"{mix:32}" + "".join(f"{100 * of_policy[name]:14.2f}" for name in names))
    print(
        f"{options.nodes} nodes of {DEVICES_PER_NODE}, {options.seeds} seeds, "
        f"{time.process_time() - began_s:.1f} s of CPU time"
    )


if __name__ == "__main__":
    main()
