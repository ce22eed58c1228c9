"""What a state folder says of itself: which database it has. Imports no SQL, so that `up` can ask quickly."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from groundplane.spec.errors import InputError

URL_FILE: Final = "database.url"
SQLITE_FILE: Final = "groundplane.db"


def default_url(state: Path) -> str:
    """The URL of a state folder's database: the one in `database.url`, else the SQLite file in the folder."""
    try:
        return (state / URL_FILE).read_text().strip()
    except FileNotFoundError:
        return f"sqlite:///{state / SQLITE_FILE}"


def keep_url(state: Path, url: str) -> bool:
    """Makes `url` the database of a state folder, in a private file, since URLs hold passwords.

    Returns:
        Whether that is new.

    Raises:
        InputError: not a usable URL, or the folder has another database already.
    """
    if not url.startswith(("postgresql://", "sqlite:///")):
        raise bad_url(url)
    path = state / URL_FILE
    if path.exists() or (state / SQLITE_FILE).exists():
        if default_url(state) != url:
            known = hidden_password(default_url(state))
            rule = f"cannot be changed, this state folder uses {known}"
            raise InputError(rule, field="database", value=hidden_password(url))
        return False
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(url + "\n")
    return True


def bad_url(url: str) -> InputError:
    """The error for what is no URL of a database."""
    return InputError(
        "must be a URL such as 'postgresql://user@host/name' or 'sqlite:///file'",
        field="database",
        value=hidden_password(url),
    )


def hidden_password(url: str) -> str:
    """A database URL fit for printing."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)
