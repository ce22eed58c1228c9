"""Reads fields of a model's `config.json` one by one and remembers which were read.

What nobody read at the end is either known to be harmless, or reported, or, when its name says that it
sizes or switches something, refused: a plan for a model that was only half understood is worse than none.
Knows of no architecture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from groundplane.spec.errors import InputError, nearest_name

REQUIRED: Final = object()
"""Marks a field without default."""


class ConfigReader:
    """One config being read.

    Args:
        config: the parsed JSON object.
        file: named in errors.
        prefix: path of this object within the file ("text_config").
        defaults: values the architecture assumes for fields that published files leave out.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        file: str | None = None,
        prefix: str = "",
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self._config = config
        self._file = file
        self._prefix = prefix
        self._defaults = dict(defaults or {})
        self._read: set[str] = set()

    def integer(self, *names: str, default: Any = REQUIRED, least: int = 1) -> int:
        """A whole number under the first of `names` that is present.

        Raises:
            InputError: missing without default, not a whole number, or below `least`.
        """
        name, value = self._find(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            wanted = "must be a positive integer" if least == 1 else f"must be an integer of at least {least}"
            raise self.error(wanted, name, value)
        return value

    def optional_integer(self, *names: str) -> int | None:
        """As `integer`, where null and absence mean None."""
        _, value = self._find(names, None)
        return None if value is None else self.integer(*names)

    def flag(self, *names: str, default: Any = REQUIRED) -> bool:
        """A boolean.

        Raises:
            InputError: missing without default, or not a boolean.
        """
        name, value = self._find(names, default)
        if not isinstance(value, bool):
            raise self.error("must be true or false", name, value)
        return value

    def text(self, *names: str, default: Any = REQUIRED) -> str:
        """A string.

        Raises:
            InputError: missing without default, or not a string.
        """
        name, value = self._find(names, default)
        if not isinstance(value, str):
            raise self.error("must be text", name, value)
        return value

    def listed(self, name: str) -> list[Any] | None:
        """A list, or None where it is null or absent.

        Raises:
            InputError: present but no list.
        """
        _, value = self._find((name,), None)
        if value is not None and not isinstance(value, list):
            raise self.error("must be a list", name, value)
        return value

    def inner(self, name: str, defaults: Mapping[str, Any] | None = None) -> ConfigReader:
        """A reader of the object under `name` (an empty one where it is absent).

        Raises:
            InputError: present but no object.
        """
        _, value = self._find((name,), None)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error("must be an object", name, value)
        return ConfigReader(value, file=self._file, prefix=self._path(name), defaults=defaults)

    def has(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self._config.get(name) is not None

    def require(self, condition: bool, rule: str, name: str) -> None:
        """Refuses the config unless `condition` holds.

        Raises:
            InputError: it does not.
        """
        if not condition:
            raise self.error(rule, name, self._config.get(name, self._defaults.get(name, ...)))

    def error(self, rule: str, name: str, value: object = ...) -> InputError:
        """The error for a field of this config."""
        return InputError(rule, file=self._file, field=self._path(name), value=value)

    def unread(self, *, harmless: frozenset[str], architecture: str) -> tuple[str, ...]:
        """Fields that were set, not read, and are not known to be harmless.

        Raises:
            InputError: one of them is named like a size or a switch of the computation.
        """
        rest = [
            name
            for name, value in self._config.items()
            if name not in self._read
            and name not in harmless
            and value not in _UNSET
            and not name.startswith("_")
        ]
        for name in rest:
            if _CHANGES_COMPUTATION.search(name) and not _SHAPES_TRAINING_ONLY.search(name):
                raise InputError(
                    f"is not understood for {architecture} and, by its name, may change the computation; "
                    "set it to null to plan without it",
                    file=self._file,
                    field=self._path(name),
                    value=self._config[name],
                    nearest=nearest_name(name, self._read - {name}),
                )
        return tuple(sorted(self._path(name) for name in rest))

    def _find(self, names: tuple[str, ...], default: Any) -> tuple[str, Any]:
        self._read.update(names)
        for name in names:
            if self._config.get(name) is not None:
                return name, self._config[name]
        for name in names:
            if name in self._defaults:
                return name, self._defaults[name]
        if default is REQUIRED:
            near = nearest_name(names[0], self._config)
            raise InputError(
                "is required for this architecture", file=self._file, field=self._path(names[0]), nearest=near
            )
        return names[0], default

    def _path(self, name: str) -> str:
        return f"{self._prefix}.{name}" if self._prefix else name


_UNSET: Final[tuple[Any, ...]] = (None, False, 0, "", [], {})

_CHANGES_COMPUTATION: Final = re.compile(
    r"(^|_)(num|n|size|dim|layers?|heads?|rank|experts?|hidden|width|intermediate|bias|window|kv|embd|embed|ffn"
    r"|inner|tie|tied|vocab|shared?|norm|gate|gated|mamba|ssm|state|conv|sparse|moe|attn|attention|mlp)(_|$)"
)
"""Words in a field's name that say it sizes or switches part of the network."""

_SHAPES_TRAINING_ONLY: Final = re.compile(r"dropout|pdrop|loss|coef|eps|init|_std|jitter|token_id|aux")
"""Words that say it only shapes training or numerics."""
