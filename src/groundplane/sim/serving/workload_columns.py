"""Which column of a trace holds what, by the names public traces use or by those a person gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from groundplane.spec.errors import InputError, nearest_name, unknown_name
from groundplane.spec.request_trace import TimeUnit, TraceColumns

KNOWN_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "arrival": ("timestamp", "arrivaltime", "arrival", "arrivedat", "arrivaltimestamp", "requesttime",
                "starttime", "submittime", "time", "ts"),
    "prompt": ("contexttokens", "inputlength", "inputtoks", "inputtokens", "numprefilltokens", "prompttokens",
               "requesttokens", "promptlen", "promptlength", "inputlen", "isl", "prompt"),
    "output": ("generatedtokens", "outputlength", "outputtoks", "outputtokens", "numdecodetokens",
               "completiontokens", "responsetokens", "outputlen", "osl", "output"),
    "blocks": ("hashids", "blockhashes", "blocks"),
    "session": ("sessionid", "session", "conversationid", "chatid"),
    "priority": ("priority",),
    "model": ("model", "modelname"),
}  # fmt: skip
"""Names, in lower case without punctuation, by what they hold; those of Azure, Mooncake, BurstGPT, vLLM,
LLMServingSim, Sarathi and AIPerf traces among them."""

_MEANING: Final = {"arrival": "arrival time", "prompt": "prompt tokens", "output": "output tokens"}
_UNIT_SUFFIX: Final = re.compile(r"[_ (](ns|us|ms|s|sec|seconds|milliseconds)\)?$", re.IGNORECASE)
_UNITS: Final[dict[str, TimeUnit]] = {
    "ns": "ns", "us": "us", "ms": "ms", "milliseconds": "ms", "s": "s", "sec": "s", "seconds": "s",
}  # fmt: skip


def find_columns(
    names: Sequence[str], wanted: TraceColumns, *, file: str, need_arrival: bool
) -> TraceColumns:
    """The columns to read: each as named, else by a known name; "" where an optional one is missing.

    Raises:
        InputError: a column named that is not there, a needed one that cannot be found, or a name twice.
    """
    repeated = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if repeated is not None:
        raise InputError("is given twice", file=file, line=1, field=f"column {repeated}")
    plain = {re.sub(r"[^a-z0-9]", "", _without_unit(name).lower()): name for name in reversed(names)}
    found: dict[str, str] = {}
    for key, candidates in KNOWN_COLUMNS.items():
        named = getattr(wanted, key)
        if named and named not in names:
            raise unknown_name("column", named, names, field=f"columns.{key}").at(file=file)
        found[key] = named or next((plain[one] for one in candidates if one in plain), "")
    needed = ("arrival", "prompt", "output") if need_arrival else ("prompt", "output")
    for key in needed:
        if not found[key]:
            near = nearest_name(KNOWN_COLUMNS[key][0], names)
            rate = " or give a rate for lengths alone" if key == "arrival" else ""
            raise InputError(
                f"has no column of {_MEANING[key]}: name it with columns.{key} ({key}=NAME){rate}; "
                f"columns: {', '.join(names[:12]) or 'none'}",
                file=file,
                line=1,
                nearest=near,
            )
    return msgspec.convert(found, TraceColumns)


def named_unit(column: str) -> TimeUnit | None:
    """The unit in a column's own name ("arrival_ms"), if there is one."""
    match = _UNIT_SUFFIX.search(column)
    return _UNITS[match[1].lower()] if match else None


def columns_from_text(text: str) -> TraceColumns:
    """ "arrival=t,prompt=in,output=out" as `TraceColumns`.

    Raises:
        InputError: an unknown kind of column (with the nearest), or no `KIND=NAME`.
    """
    given: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, sign, name = (piece.strip() for piece in part.partition("="))
        if not sign or not name:
            raise InputError("must be KIND=NAME pairs with commas between", field="columns", value=part)
        if key not in KNOWN_COLUMNS:
            raise unknown_name("kind of column", key, KNOWN_COLUMNS, field="columns")
        given[key] = name
    return msgspec.convert(given, TraceColumns)


def _without_unit(name: str) -> str:
    return _UNIT_SUFFIX.sub("", name)
