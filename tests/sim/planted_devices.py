"""More faults, of shared devices and of nodes that are closed, by the same hand as `planted_by_others.py`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from planted_by_others import fault

from groundplane.control import jobs as jobs_module
from groundplane.control.actions import PlacedPart
from groundplane.control.devices import DeviceUse, ways
from groundplane.control.events import UNITS_PER_DEVICE, DevicePart, KindDescribed, NodeDrainRequested
from groundplane.control.health import Health
from groundplane.control.jobs import Jobs
from groundplane.control.part_books import lease_part, release_part
from groundplane.control.shares import Shares
from groundplane.control.state import Node, Work


@fault
def two_instances_lie_on_one_slice(patch: pytest.MonkeyPatch) -> None:
    """A MIG instance is placed without a look at the slices that are taken (gpu-operator 2833)."""

    def first_start(use: DeviceUse, part: DevicePart, kind: KindDescribed | None) -> list[PlacedPart]:
        return list(ways(replace_slots(use), part, kind))[:1]

    def replace_slots(use: DeviceUse) -> DeviceUse:
        return use._replace(slots=0)

    patch.setattr("groundplane.control.sharing.ways", first_start)
    patch.setattr("groundplane.control.part_books.overlaps", lambda *_: False)


@fault
def a_share_uses_all_memory(patch: pytest.MonkeyPatch) -> None:
    """Caps on memory are not added up (KAI 49)."""

    def compute_only(use: DeviceUse, part: DevicePart, kind: KindDescribed) -> bool:
        del kind
        return use.mode != "instances" and use.units + part.units <= UNITS_PER_DEVICE

    patch.setattr("groundplane.control.devices.fits_fraction", compute_only)


@fault
def a_part_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    """A part of a device is booked for a work that is gone (HAMi 2923)."""

    def keep(node: Node, work: Work, *, is_failure: bool) -> None:
        part = node.parts_of(work.placement[0].devices[0])[work.work_id]
        release_part(node, work, is_failure=is_failure)
        lease_part(node, work.work_id, work.placement[0].devices[0], part)

    patch.setattr("groundplane.control.ledger.release_part", keep)


@fault
def parts_cost_no_quota(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks for parts only passes every limit."""
    change = Shares._change

    def whole_only(shares: Shares, work: Work, sign: int) -> None:
        if work.gang.part is None:
            change(shares, work, sign)

    patch.setattr(Shares, "_change", whole_only)


@fault
def a_part_is_booked_as_a_device(patch: pytest.MonkeyPatch) -> None:
    """A tenth of a device costs as much as all of it (GPUStack 6054)."""

    def as_whole(node: Node, work: Work, *, is_failure: bool) -> None:
        device = work.placement[0].devices[0]
        held = node.parts_of(device)
        held[work.work_id] = replace(held[work.work_id], units=UNITS_PER_DEVICE)
        release_part(node, work, is_failure=is_failure)

    patch.setattr("groundplane.control.ledger.release_part", as_whole)


@fault
def a_drained_node_takes_work(patch: pytest.MonkeyPatch) -> None:
    """A node that is being emptied is filled again (Volcano 5805)."""
    drain = Health.drain

    def and_open(health: Health, event: NodeDrainRequested) -> None:
        drain(health, event)
        node = health._context.state.nodes.get(event.node_id)
        if node is not None:
            node.is_cordoned = False
            health._context.node_changed(node)

    patch.setattr(Health, "drain", and_open)


@fault
def spares_are_used_like_others(patch: pytest.MonkeyPatch) -> None:
    """Spares and nodes in quarantine take work."""
    patch.setattr(Node, "is_open", property(lambda node: node.state == "up" and not node.is_cordoned))


@fault
def an_eviction_costs_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A job that an operator's drain moved has used up its budget, and fails."""
    gone = Jobs.attempt_gone

    def as_failure(jobs: Jobs, work: Work, fence: int, outcome: str, detail: str) -> None:
        if work.stop_intent == jobs_module.EVICTED:
            work.stop_intent = "node_lost"
        gone(jobs, work, fence, outcome, detail)

    patch.setattr(Jobs, "attempt_gone", as_failure)
