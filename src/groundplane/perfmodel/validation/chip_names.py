"""Chips as tables name them -> the catalogue's names."""

from __future__ import annotations

import functools
import re
from typing import Final

from groundplane.catalog.resolve import resolve_chip
from groundplane.spec.errors import InputError

_WORDS: Final = (
    (r"A100-SXM4-40GB", "a100-40gb-sxm"),
    (r"A100", "a100-80gb-sxm"),
    (r"V100", "v100-sxm2-32gb"),
    (r"H100/H800", "h100-80gb-sxm"),
    (r"H800|SM90", "h800-80gb-sxm"),
    (r"H100", "h100-80gb-sxm"),
    (r"GB300", "gb300-288gb"),
    (r"B300", "b300-288gb-sxm"),
    (r"GB200", "gb200-186gb"),
    (r"B200|SM100", "b200-180gb-sxm"),
    (r"H200", "h200-141gb-sxm"),
    (r"H20", "h20-96gb-sxm"),
    (r"A800", "a800-80gb-sxm"),
    (r"MI355X", "mi355x"),
    (r"MI325X", "mi325x"),
    (r"MI300X", "mi300x"),
    (r"MI250X", "mi250x"),
    (r"Trainium ?3|trn3", "trainium3"),
    (r"Trainium ?2|trn2", "trainium2"),
    (r"Trainium|trn1", "trainium1"),
    (r"910B", "ascend-910b"),
    (r"910C", "ascend-910c"),
    (r"Gaudi ?3", "gaudi3"),
    (r"Gaudi ?2", "gaudi2"),
)
"""Words in a chip column -> catalogue name, tried in this order after the catalogue's names and aliases."""


@functools.cache
def chip_named(text: str) -> str | None:
    """The catalogue's name for a chip as a table writes it, or None where it is none of the catalogue's."""
    try:
        return resolve_chip(text.lower()).name
    except InputError:
        for pattern, name in _WORDS:
            if re.search(pattern, text, re.IGNORECASE):
                return name
    return None
