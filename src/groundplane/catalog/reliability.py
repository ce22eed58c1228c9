"""Published reliability figures by name, or a user's own from a file."""

from __future__ import annotations

import functools
from importlib import resources
from pathlib import Path
from typing import Any

from groundplane.catalog.resolve import is_file_name
from groundplane.catalog.store import parse_yaml
from groundplane.spec.errors import unknown_name
from groundplane.spec.load import from_data, load
from groundplane.spec.reliability import ReliabilitySpec


def resolve_reliability(name_or_path: str | Path) -> ReliabilitySpec:
    """Reliability by the name of the catalogue, or from a file with the same fields.

    Raises:
        InputError: unknown name (with the nearest), or anything wrong in the file.
    """
    if is_file_name(name_or_path):
        return load(name_or_path, ReliabilitySpec)
    entries = _shipped()
    name = str(name_or_path)
    if name not in entries:
        raise unknown_name("reliability", name, entries, field="reliability")
    return from_data({"name": name, **entries[name]}, ReliabilitySpec)


def reliability_names() -> list[str]:
    """What can be named."""
    return list(_shipped())


@functools.cache
def _shipped() -> dict[str, Any]:
    file = resources.files("groundplane.catalog") / "data" / "reliability.yaml"
    data: dict[str, Any] = parse_yaml(file.read_text("utf-8"))
    return data
