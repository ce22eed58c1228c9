"""Leases and accounts of parts of devices: the ledger's second page, in the same integers.

A device of which a part is leased leaves the node's free devices and stands in `Node.shared` until the last
part is back. Its time is counted in units of a device times nanoseconds: each part by what its work did, and
the rest as free devices are, except that a rest which could be given to nobody (no slice or no memory is
left) is fragmentation. Whole device-nanoseconds go into the node's accounts, what is left over stays in
`Node.parts_accounts`, so that not one unit is lost: at every reading all accounts sum to what has passed.
"""

from __future__ import annotations

from groundplane.control.actions import PlacedPart
from groundplane.control.devices import is_stranded, overlaps, use_of
from groundplane.control.events import UNITS_PER_DEVICE, KindDescribed
from groundplane.control.state import Accounts, Node, SharedDevice, Work
from groundplane.spec.errors import InvariantError

_ACCOUNTS = Accounts.__struct_fields__


def check_part(node: Node, device: int, part: PlacedPart, kind: KindDescribed | None) -> None:
    """Refuses a part that overlaps others, before anything has changed.

    Raises:
        InvariantError: it would take something twice.
    """
    held = node.parts_of(device)
    if not held and device not in node.free:
        raise InvariantError(f"device {device} of {node.node_id} is leased whole and cannot be shared")
    if overlaps([*held.values(), part], kind):
        raise InvariantError(f"a part of device {device} of {node.node_id} would be leased twice")


def lease_part(node: Node, work_id: str, device: int, part: PlacedPart) -> None:
    """Gives a part to a work. The node's time up to now is settled."""
    if not node.parts_of(device):
        node.free = tuple(index for index in node.free if index != device)
        node.shared.append(SharedDevice(device))
        node.shared.sort(key=lambda each: each.device)
    shared = next(each for each in node.shared if each.device == device)
    shared.parts[work_id] = part


def release_part(node: Node, work: Work, *, is_failure: bool) -> None:
    """Takes a work's part back and books its time, which is settled up to now.

    Raises:
        InvariantError: the work has no part there.
    """
    device = work.placement[0].devices[0]
    parts = node.parts_of(device)
    part = parts.pop(work.work_id, None)
    if part is None:
        raise InvariantError(f"{work.work_id} gives back a part of {node.node_id} that it does not hold")
    lost_ns = work.at_risk_ns if is_failure else 0
    accounts, rests = node.accounts, node.parts_accounts
    _book(accounts, rests, "allocated_idle_ns", work.idle_ns * part.units)
    _book(accounts, rests, "busy_ns", (work.safe_ns + work.at_risk_ns - lost_ns) * part.units)
    _book(accounts, rests, "wasted_by_failure_ns", lost_ns * part.units)
    if not parts:
        node.shared = [each for each in node.shared if each.device != device]
        node.free = tuple(sorted((*node.free, device)))


def book_unused(
    node: Node,
    accounts: Accounts,
    rests: Accounts,
    kind: KindDescribed | None,
    elapsed_ns: int,
    fragmented_ns: int,
) -> None:
    """Books the time of what nobody has of shared devices.

    Args:
        accounts, rests: what to add to, whole device-nanoseconds and units of them.
        kind: what the node's devices are.
        elapsed_ns: time to book.
        fragmented_ns: how much of it the fragmentation clock ran.
    """
    for each in node.shared:
        use = use_of(each.parts.values(), kind)
        if not node.is_open:
            _book(accounts, rests, "maintenance_ns", elapsed_ns * use.free_units)
            continue
        lost_ns = elapsed_ns if is_stranded(use, kind) else fragmented_ns
        _book(accounts, rests, "fragmentation_ns", lost_ns * use.free_units)
        _book(accounts, rests, "free_ns", (elapsed_ns - lost_ns) * use.free_units)


def book_held(node: Node, accounts: Accounts, rests: Accounts, works: dict[str, Work], now_ns: int) -> None:
    """Books what parts have done since their lease, for a reading; work at risk counts as busy."""
    for each in node.shared:
        for work_id, part in each.parts.items():
            work = works[work_id]
            idle_ns = work.idle_ns + (0 if work.is_busy else now_ns - work.mode_since_ns)
            _book(accounts, rests, "allocated_idle_ns", idle_ns * part.units)
            _book(accounts, rests, "busy_ns", (now_ns - work.leased_ns - idle_ns) * part.units)


def fold_rests(accounts: Accounts, rests: Accounts) -> None:
    """Rounds a reading to whole device-nanoseconds whose sum is exact: the largest rests are rounded up."""
    names = sorted(_ACCOUNTS, key=lambda name: -getattr(rests, name))
    num_up = sum(getattr(rests, name) for name in _ACCOUNTS) // UNITS_PER_DEVICE
    for name in names[:num_up]:
        setattr(accounts, name, getattr(accounts, name) + 1)


def _book(accounts: Accounts, rests: Accounts, name: str, unit_ns: int) -> None:
    whole_ns, rest = divmod(getattr(rests, name) + unit_ns, UNITS_PER_DEVICE)
    setattr(accounts, name, getattr(accounts, name) + whole_ns)
    setattr(rests, name, rest)
