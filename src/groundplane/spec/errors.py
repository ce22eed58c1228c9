"""What can go wrong, and whose fault it is.

Three kinds of failure exist and no fourth: `InputError` for what a person wrote, typed operating
failures that travel as control events (`groundplane.control.events`), and `InvariantError` for our own
bugs. Nothing here knows of files, formats or printing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GroundplaneError(Exception):
    """Base of every error that Groundplane raises on purpose."""


class InputError(GroundplaneError, ValueError):
    """Something a person wrote cannot be used.

    A ValueError too, so that msgspec carries one raised in a struct's `__post_init__` out with its path.

    Printed as one line, `FILE:LINE: FIELD: RULE, got VALUE; did you mean NEAREST?`, with exit code 2.

    Args:
        rule: what must hold, as a sentence without a full stop ("must be a positive integer").
        file: the file as the person named it, or None when the value came from a flag or a request.
        line: 1-based line in `file`, where known.
        field: path of the field in dotted form with indices ("nodes[0].count").
        value: the offending value; shown with `repr`, cut to 80 characters.
        nearest: the valid name nearest to what was written.
    """

    def __init__(
        self,
        rule: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        value: object = ...,
        nearest: str | None = None,
    ) -> None:
        super().__init__(rule)
        self.rule = rule
        self.file = file
        self.line = line
        self.field = field
        self.value = value
        self.nearest = nearest

    def at(self, *, file: str | None = None, line: int | None = None, field: str | None = None) -> InputError:
        """The same error with what a caller further out knows of its place; known parts are kept."""
        return InputError(
            self.rule,
            file=self.file if self.file is not None else file,
            line=self.line if self.line is not None else line,
            field=self.field if self.field is not None else field,
            value=self.value,
            nearest=self.nearest,
        )

    def __str__(self) -> str:
        place = ""
        if self.file is not None:
            place = self.file if self.line is None else f"{self.file}:{self.line}"
            place += ": "
        if self.field:
            place += f"{self.field}: "
        text = place + self.rule
        if self.value is not ...:
            shown = repr(self.value)
            text += f", got {shown if len(shown) <= 80 else shown[:77] + '...'}"
        if self.nearest is not None:
            text += f"; did you mean {self.nearest!r}?"
        return text


class InvariantError(GroundplaneError):
    """A bug of ours: a state that the code promises can never be. Raised, never `assert`ed away."""


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, ignoring case, or None when nothing is near."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), list(by_folded), n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def unknown_name(kind: str, name: str, known: Iterable[str], *, field: str | None = None) -> InputError:
    """The error for a name that no registry holds: lists the known ones and the nearest.

    Args:
        kind: what the name should have been, in the singular ("chip").
        name: what was written.
        known: the valid names; at most 12 are listed.
        field: path of the field, where there is one.
    """
    names = sorted(known)
    listed = ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")
    return InputError(
        f"unknown {kind}; known: {listed or 'none'}",
        field=field,
        value=name,
        nearest=nearest_name(name, names),
    )
