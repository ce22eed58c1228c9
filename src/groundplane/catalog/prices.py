"""What an hour of a chip costs: dated list prices, each with its source."""

from __future__ import annotations

import functools
from importlib import resources

import msgspec
import yaml


class ChipPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """USD for one chip and hour, on demand; `date` is as exact as its source."""

    usd_per_hour: float
    date: str
    source: str


def chip_price(chip: str) -> ChipPrice | None:
    """The catalogue's price of a chip by its own name, None where none is known."""
    found = _prices().get(chip)
    return found[0] if found else None


@functools.cache
def _prices() -> dict[str, tuple[ChipPrice, ...]]:
    text = resources.files("groundplane.catalog").joinpath("data", "prices.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), dict[str, tuple[ChipPrice, ...]])
