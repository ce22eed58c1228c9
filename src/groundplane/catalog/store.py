"""The catalogue's data: read when first asked for, by name, with files of a user's own on top.

A section ("chips", "servers", "fabrics", ...) maps names to plain data as a person would write it in
a cluster file. An entry may say `base: NAME` and then states only what differs. Knows of no formula.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, Final

import yaml

from groundplane.spec.errors import InputError, nearest_name, unknown_name
from groundplane.spec.load import Lines

SECTIONS: Final = ("chips", "servers", "fabrics", "storages", "cards", "switches")
MAX_BASES: Final = 8
"""Longest chain of `base:`; a longer one is a circle."""

_OWN_KEYS: Final = ("aliases", "default_server", "base")
"""Keys of an entry that belong to the catalogue and not to the thing described."""


class Catalog:
    """Named entries by section; immutable. `shipped()` is ours, `resolve.catalog_with_file` adds a user's."""

    def __init__(self, sections: Mapping[str, Mapping[str, Any]]) -> None:
        self._sections = {section: dict(sections.get(section, {})) for section in SECTIONS}
        self._aliases = {section: _alias_table(self._sections[section]) for section in SECTIONS}

    @staticmethod
    def shipped() -> Catalog:
        """The catalogue inside this package."""
        return _shipped()

    def with_sections(self, data: Any, *, file: str | None = None, lines: Lines | None = None) -> Catalog:
        """This catalogue with the sections in `data` added; its entries win.

        Raises:
            InputError: unknown sections, or entries that are not mappings.
        """
        if not isinstance(data, Mapping):
            raise InputError(f"must hold sections: {', '.join(SECTIONS)}", file=file)
        merged: dict[str, dict[str, Any]] = {name: dict(entries) for name, entries in self._sections.items()}
        for section, entries in data.items():
            if section not in SECTIONS:
                raise unknown_name("section", str(section), SECTIONS).at(
                    file=file, line=(lines or {}).get(section)
                )
            if not isinstance(entries, Mapping):
                raise InputError("must map names to entries", file=file, field=section)
            for name, entry in entries.items():
                if not isinstance(entry, Mapping):
                    field = f"{section}.{name}"
                    raise InputError(
                        "must be a mapping", file=file, line=(lines or {}).get(field), field=field
                    )
                merged[section][str(name)] = dict(entry)
        return Catalog(merged)

    def names(self, section: str) -> list[str]:
        """All names of a section, as the files order them."""
        return list(self._sections[section])

    def all_names(self, section: str) -> list[str]:
        """Names and aliases of a section, in lower case."""
        return list(self._aliases[section])

    def has(self, section: str, name: str) -> bool:
        """Whether the name or alias is known."""
        return name.casefold() in self._aliases[section]

    def true_name(self, section: str, name: str) -> str:
        """The entry's own name for a name or alias in any case.

        Raises:
            InputError: unknown name, with the nearest.
        """
        found = self._aliases[section].get(name.casefold())
        if found is None:
            error = unknown_name(singular(section), name, self._sections[section])
            near = nearest_name(name, self._aliases[section])
            raise InputError(error.rule, value=name, nearest=near)
        return found

    def entry(self, section: str, name: str) -> dict[str, Any]:
        """Plain data of an entry with its bases merged in and its own name.

        Raises:
            InputError: unknown name, or a circle of bases.
        """
        true_name = self.true_name(section, name)
        return {**self.expand(section, self._sections[section][true_name], depth=0), "name": true_name}

    def expand(self, section: str, value: Any, *, depth: int = 0) -> Any:
        """A name, or a mapping that may have a `base`, as complete plain data; anything else unchanged.

        Raises:
            InputError: unknown name, or a circle of bases.
        """
        if isinstance(value, str):
            return self.entry(section, value)
        if not isinstance(value, Mapping):
            return value
        base = value.get("base")
        own = {key: item for key, item in value.items() if key not in _OWN_KEYS}
        if base is None:
            return own
        if depth >= MAX_BASES:
            raise InputError("goes in a circle or is too long a chain", field="base", value=base)
        below = self.true_name(section, str(base))
        inherited = self.expand(section, self._sections[section][below], depth=depth + 1)
        return _merge({"name": below, **inherited}, own)

    def default_server(self, chip: str) -> str | None:
        """The server that a chip usually comes in."""
        entry = self._sections["chips"][self.true_name("chips", chip)]
        for _ in range(MAX_BASES):
            if "default_server" in entry:
                return str(entry["default_server"])
            if "base" not in entry:
                break
            entry = self._sections["chips"][self.true_name("chips", str(entry["base"]))]
        return None

    def aliases(self, section: str, name: str) -> list[str]:
        """Other names of an entry."""
        return [
            str(alias) for alias in self._sections[section][self.true_name(section, name)].get("aliases", ())
        ]


def singular(section: str) -> str:
    """What one entry of a section is called."""
    return section.removesuffix("es" if section == "switches" else "s")


def parse_yaml(text: str) -> Any:
    """Plain data of trusted YAML, by the C parser where PyYAML has one (ten times as fast)."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(text, Loader=loader)  # a safe loader either way


@functools.cache
def _shipped() -> Catalog:
    folder = resources.files("groundplane.catalog") / "data"
    return Catalog({name: parse_yaml((folder / f"{name}.yaml").read_text("utf-8")) for name in SECTIONS})


def _alias_table(entries: Mapping[str, Any]) -> dict[str, str]:
    table: dict[str, str] = {}
    for name, entry in entries.items():
        aliases: Iterable[object] = entry.get("aliases", ()) if isinstance(entry, Mapping) else ()
        for alias in aliases:
            table[str(alias).casefold()] = name
    # True names last: they win over another entry's alias.
    table.update({name.casefold(): name for name in entries})
    return table


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`; mappings within are merged too, a mapping with its own base replaces."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping) and "base" not in value
        merged[key] = _merge(old, value) if both and isinstance(old, Mapping) else value
    return merged
