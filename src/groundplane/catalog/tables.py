"""The catalogue as rows for reading: one table a section, one page an entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from groundplane.catalog import resolve
from groundplane.catalog.store import SECTIONS, Catalog
from groundplane.spec import units
from groundplane.spec.cluster import CardSpec, ChipSpec, FabricSpec, ServerSpec, StorageSpec, SwitchSpec
from groundplane.spec.errors import unknown_name
from groundplane.spec.llm import LlmSpec

KINDS: Final = (*SECTIONS, "models")
"""What can be shown."""

Row = tuple[str, ...]


def table(kind: str, catalog: Catalog) -> tuple[Row, list[Row]]:
    """Column names and one row an entry.

    Raises:
        InputError: unknown kind.
    """
    if kind == "models":
        return _MODEL_COLUMNS, [_model_row(resolve.resolve_llm(name)) for name in resolve.model_names()]
    if kind not in SECTIONS:
        raise unknown_name("section", kind, KINDS)
    columns, row = _TABLES[kind]
    return columns, [row(read(kind, name, catalog)) for name in catalog.names(kind)]


def read(kind: str, name: str, catalog: Catalog) -> Any:
    """The entry as its struct.

    Raises:
        InputError: unknown kind or name, with the nearest.
    """
    if kind == "models":
        return resolve.resolve_llm(resolve.model_entry(name)["name"])
    if kind not in SECTIONS:
        raise unknown_name("section", kind, KINDS)
    return resolve.resolve_entry(kind, name, catalog=catalog)


def detail(kind: str, name: str, catalog: Catalog) -> dict[str, Any]:
    """Everything about one entry as a person would write it, its other names and its sources.

    Raises:
        InputError: unknown kind or name, with the nearest.
    """
    value = read(kind, name, catalog)
    if kind == "models":
        entry = resolve.model_entry(name)
        return {**model_summary(value), "source": entry["source"], "config": entry["config"]}
    written = catalog.entry(kind, name)
    plain = {"name": written.pop("name"), **written}
    if kind == "servers":
        plain["chip"] = value.chip.name
    aliases = catalog.aliases(kind, name)
    return {**plain, "aliases": aliases} if aliases else plain


def as_data(kind: str, name: str, catalog: Catalog) -> dict[str, Any]:
    """One entry for programs: numbers in base units.

    Raises:
        InputError: unknown kind or name, with the nearest.
    """
    value = read(kind, name, catalog)
    if kind == "models":
        return model_summary(value) | {"source": resolve.model_entry(name)["source"]}
    data: dict[str, Any] = msgspec.to_builtins(value)
    return data


def model_summary(spec: LlmSpec) -> dict[str, Any]:
    """A model's sizes and exact parameter counts."""
    count = spec.parameters()
    return {
        "name": spec.name,
        "architecture": spec.architecture,
        "layers": spec.num_layers,
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "attention": sorted({layer.attention.kind for layer in spec.layers}),
        "max_positions": spec.max_positions,
        "parameters": {**msgspec.to_builtins(count), "total": count.total},
        "kv_values_per_token": spec.kv_values_per_token(),
        "left_out": list(spec.left_out),
        "not_read": list(spec.unread),
    }


def _rate(value: float | None) -> str:
    return "" if value is None else units.show_bytes_per_s(value)


def _link(value: float | None) -> str:
    """A network rate, in bits as network people write it."""
    return "" if value is None else f"{value * 8 / 1e9:g} Gb/s"


def _peak(chip: ChipSpec, *dtypes: str) -> str:
    for dtype in dtypes:
        if dtype in chip.peak_flops_per_s:
            return f"{chip.peak_flops_per_s[dtype] / 1e12:g}"
    return ""


def _chip_row(chip: ChipSpec) -> Row:
    year = "" if chip.release_year is None else str(chip.release_year)
    return (
        chip.name,
        chip.vendor,
        year,
        _peak(chip, "bf16", "fp16"),
        _peak(chip, "fp8"),
        units.show_bytes(chip.memory_bytes),
        _rate(chip.memory_bytes_per_s),
        _rate(chip.scaleup_bytes_per_s),
        "" if chip.tdp_w is None else f"{chip.tdp_w:g} W",
    )


def _server_row(server: ServerSpec) -> Row:
    nics = "" if server.nics is None else f"{server.nics.count} x {_link(server.nics.rate_bytes_per_s)}"
    power = "" if server.power_w is None else f"{server.power_w / 1e3:g} kW"
    return (
        server.name,
        server.vendor,
        f"{server.num_chips} x {server.chip.name}",
        str(server.scaleup_size),
        nics,
        power,
    )


def _fabric_row(fabric: FabricSpec) -> Row:
    return (
        fabric.name,
        fabric.kind,
        fabric.topology,
        _link(fabric.link_bytes_per_s),
        units.show_duration(fabric.latency_s),
        f"{fabric.oversubscription:g}:1",
    )


def _storage_row(storage: StorageSpec) -> Row:
    return (
        storage.name,
        _rate(storage.read_bytes_per_s),
        _rate(storage.write_bytes_per_s),
        _rate(storage.per_node_bytes_per_s),
    )


def _card_row(card: CardSpec) -> Row:
    power = "" if card.power_w is None else f"{card.power_w:g} W"
    return (card.name, card.kind, _link(card.rate_bytes_per_s), str(card.ports), power)


def _switch_row(switch: SwitchSpec) -> Row:
    power = "" if switch.power_w is None else f"{switch.power_w:g} W"
    return (
        switch.name,
        switch.kind,
        f"{switch.ports} x {_link(switch.rate_bytes_per_s)}",
        units.show_duration(switch.latency_s),
        power,
    )


def _billions(parameters: int) -> str:
    """A parameter count as people say it."""
    return f"{parameters / 1e9:.4g} B" if parameters >= 1e9 else f"{parameters / 1e6:.4g} M"


_MODEL_COLUMNS: Final = (
    "model",
    "architecture",
    "parameters",
    "active",
    "layers",
    "hidden",
    "attention",
    "vocab",
)


def _model_row(spec: LlmSpec) -> Row:
    count = spec.parameters()
    kinds = sorted({layer.attention.kind for layer in spec.layers})
    return (
        spec.name,
        spec.architecture,
        _billions(count.total),
        _billions(count.active) if spec.is_moe else "",
        str(spec.num_layers),
        str(spec.hidden),
        ", ".join(kinds),
        str(spec.vocab),
    )


_TABLES: Final[dict[str, tuple[Row, Callable[[Any], Row]]]] = {
    "chips": (
        ("chip", "vendor", "year", "bf16 TFLOP/s", "fp8", "memory", "bandwidth", "scale-up", "TDP"),
        _chip_row,
    ),
    "servers": (("server", "vendor", "chips", "scale-up size", "network", "power"), _server_row),
    "fabrics": (("fabric", "kind", "topology", "link", "latency", "oversubscription"), _fabric_row),
    "storages": (("storage", "read", "write", "a server"), _storage_row),
    "cards": (("card", "kind", "rate", "ports", "power"), _card_row),
    "switches": (("switch", "kind", "ports", "latency", "power"), _switch_row),
}
