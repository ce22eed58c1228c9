"""From what a job needs of its devices to the kinds that will do, by the catalogue.

Done at the edge, before the control core hears of a job: the core knows kinds by name and counts in integers.
"""

from __future__ import annotations

from collections.abc import Collection

from groundplane.catalog.resolve import resolve_chip, resolve_server
from groundplane.catalog.store import Catalog
from groundplane.spec.cluster import ChipSpec
from groundplane.spec.device import DeviceSpec
from groundplane.spec.errors import InputError, nearest_name
from groundplane.spec.units import show_bytes, show_flops_per_s


def kinds_for(
    device: DeviceSpec, offered: Collection[str], *, catalog: Catalog | None = None
) -> tuple[str, ...]:
    """The device kinds that will do, the least capable first; () for any.

    Args:
        device: what is asked for.
        offered: kinds of the nodes that are there, as they name them (names or aliases of the catalogue, or
            names of their own).

    Raises:
        InputError: no node offers such a kind, or none that has what is needed; says what there is.
    """
    known = catalog or Catalog.shipped()
    if device.kind:
        wanted = _own_name(device.kind, known)
        found = tuple(kind for kind in sorted(offered) if wanted in (kind, _own_name(kind, known)))
        if not found:
            near = nearest_name(device.kind, offered)
            there = ", ".join(sorted(offered)) or "none"
            raise InputError(
                f"no node offers this kind of device (offered: {there})",
                field="device.kind",
                value=device.kind,
                nearest=near,
            )
        return found
    if not device.has_needs:
        return ()
    chips = {kind: resolve_chip(kind, catalog=known) for kind in sorted(offered) if known.has("chips", kind)}
    scaleups = {kind: _scaleup(kind, known) for kind in chips}
    _check_need(device, chips, scaleups, offered)
    fitting = [kind for kind, chip in chips.items() if _does(device, chip, scaleups[kind])]
    if not fitting:
        raise InputError("no kind of device that is offered has all of this at once", field="device")
    return tuple(sorted(fitting, key=lambda kind: (chips[kind].peak("bf16"), chips[kind].memory_bytes, kind)))


def _own_name(kind: str, catalog: Catalog) -> str:
    return catalog.true_name("chips", kind) if catalog.has("chips", kind) else kind


def _scaleup(kind: str, catalog: Catalog) -> int:
    """Devices in one scale-up domain of the server that the chip usually comes in."""
    server = catalog.default_server(kind)
    return 1 if server is None else resolve_server(server, catalog=catalog).scaleup_size


def _does(device: DeviceSpec, chip: ChipSpec, scaleup: int) -> bool:
    return (
        chip.peak("bf16") >= (device.bf16_flops_per_s or 0.0)
        and chip.memory_bytes >= (device.memory_bytes or 0)
        and scaleup >= (device.scaleup or 1)
    )


def _check_need(
    device: DeviceSpec, chips: dict[str, ChipSpec], scaleups: dict[str, int], offered: Collection[str]
) -> None:
    """Refuses a need that no kind meets, and says which and what the best one has."""
    if not chips:
        there = ", ".join(sorted(offered)) or "none"
        raise InputError(
            f"nothing is known of the devices that are offered ({there}): name a kind instead", field="device"
        )
    most_flops = max(chip.peak("bf16") for chip in chips.values())
    most_bytes = max(chip.memory_bytes for chip in chips.values())
    if (device.bf16_flops_per_s or 0) > most_flops:
        rule = f"must be at most {show_flops_per_s(most_flops)}, the fastest device offered"
        raise InputError(rule, field="device.bf16", value=show_flops_per_s(device.bf16_flops_per_s or 0))
    if (device.memory_bytes or 0) > most_bytes:
        rule = f"must be at most {show_bytes(most_bytes)}, the largest device offered"
        raise InputError(rule, field="device.memory", value=show_bytes(device.memory_bytes or 0))
    if (device.scaleup or 1) > max(scaleups.values()):
        rule = f"must be at most {max(scaleups.values())}, the largest scale-up domain offered"
        raise InputError(rule, field="device.scaleup", value=device.scaleup)
