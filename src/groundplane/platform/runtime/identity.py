"""API keys: who asks, for which project, and what that role may do.

A key is `gp-` and 256 random bits, shown once; only its SHA-256 is kept. The administrator of a state folder
has a key in `admin.key` (mode 0600), which the command line uses. Knows nothing of HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final, Literal

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.engine import Connection

from groundplane.platform.runtime.database import Database
from groundplane.platform.runtime.tables import api_keys, projects
from groundplane.spec.errors import InputError, unknown_name

Role = Literal["viewer", "member", "admin"]
ROLES: Final[tuple[Role, ...]] = ("viewer", "member", "admin")
"""From the least to the most: a viewer reads, a member also submits and deploys, an admin also keeps keys."""
KEY_START: Final = "gp-"
PREFIX_CHARS: Final = 11
"""How much of a key is kept to tell keys apart: `gp-` and 48 of its 256 bits."""
MAX_KEYS: Final = 100_000
DEFAULT_PROJECT: Final = "default"
ADMIN_NAME: Final = "local-admin"


class Key(Struct, frozen=True):
    """What is kept of a key, and what is shown of it."""

    key_id: str
    prefix: str
    name: str
    project: str
    role: Role
    created_ns: int
    expires_ns: int | None
    revoked_ns: int | None

    def usable(self, now_ns: int) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_ns is None and (self.expires_ns is None or now_ns < self.expires_ns)

    def may(self, role: Role) -> bool:
        """Whether this key's role includes what `role` may do."""
        return ROLES.index(self.role) >= ROLES.index(role)


def digest(key: str) -> str:
    """What is kept of a key: hexadecimal SHA-256. No salt is needed, the key itself is 256 random bits."""
    return hashlib.sha256(key.encode()).hexdigest()


LAST_EXPIRY_NS: Final = 2**63 - 1
"""What a database's whole numbers hold: a moment in April 2262."""


def create_key(
    connection: Connection,
    *,
    name: str,
    now_ns: int,
    project: str = DEFAULT_PROJECT,
    role: str = "member",
    expires_ns: int | None = None,
) -> tuple[str, Key]:
    """Makes a key; the text is returned here and never again.

    Raises:
        InputError: unknown role, an expiry in the past, or too many keys.
    """
    known = next((candidate for candidate in ROLES if candidate == role), None)
    if known is None:
        raise unknown_name("role", role, ROLES, field="role")
    if expires_ns is not None and expires_ns <= now_ns:
        raise InputError("must be in the future", field="expires")
    if expires_ns is not None and expires_ns > LAST_EXPIRY_NS:
        raise InputError("must be before the year 2262; without it, a key never ends", field="expires")
    if (connection.scalar(sa.select(sa.func.count()).select_from(api_keys)) or 0) >= MAX_KEYS:
        raise InputError(f"there are {MAX_KEYS} keys already")
    text = KEY_START + secrets.token_urlsafe(32)
    key = Key(
        key_id="key-" + secrets.token_hex(6),
        prefix=text[:PREFIX_CHARS],
        name=name,
        project=project,
        role=known,
        created_ns=now_ns,
        expires_ns=expires_ns,
        revoked_ns=None,
    )
    if connection.scalar(sa.select(projects.c.name).where(projects.c.name == project)) is None:
        connection.execute(projects.insert(), {"name": project, "created_ns": now_ns})
    row = {field: getattr(key, field) for field in Key.__struct_fields__}
    connection.execute(api_keys.insert(), row | {"sha256": digest(text)})
    return text, key


def revoke_key(connection: Connection, key_id: str, now_ns: int) -> Key:
    """Ends a key by its id or prefix. Revoking it again keeps the first time.

    Raises:
        InputError: no such key.
    """
    keys = list_keys(connection)
    key = next((key for key in keys if key_id in {key.key_id, key.prefix}), None)
    if key is None:
        raise unknown_name("key", key_id, [key.key_id for key in keys], field="key_id")
    if key.revoked_ns is None:
        connection.execute(api_keys.update().where(api_keys.c.key_id == key.key_id).values(revoked_ns=now_ns))
    return next(known for known in list_keys(connection) if known.key_id == key.key_id)


def list_keys(connection: Connection) -> list[Key]:
    """All keys, oldest first; revoked and expired ones too."""
    columns = [api_keys.c[field] for field in Key.__struct_fields__]
    rows = connection.execute(sa.select(*columns).order_by(api_keys.c.created_ns, api_keys.c.key_id))
    return [Key(**row) for row in rows.mappings()]


class _Kept(Struct, frozen=True):
    digest: str
    key: Key


class KeyRing:
    """The keys in memory, to check requests without asking the database; `load` after each change."""

    def __init__(self) -> None:
        self._by_digest: dict[str, _Kept] = {}

    def load(self, database: Database) -> None:
        """Reads all keys anew."""
        columns = [api_keys.c[field] for field in Key.__struct_fields__]
        with database.reading() as connection:
            rows = connection.execute(sa.select(api_keys.c.sha256, *columns)).mappings().all()
        self._by_digest = {
            row["sha256"]: _Kept(
                digest=row["sha256"], key=Key(**{field: row[field] for field in Key.__struct_fields__})
            )
            for row in rows
        }

    def find(self, text: str, now_ns: int) -> Key | None:
        """The usable key that `text` is, or None."""
        # What is looked up is a SHA-256, so the time it takes tells nothing of a key; the comparison that
        # decides is constant in time all the same.
        wanted = digest(text)
        found = self._by_digest.get(wanted)
        if found is None or not hmac.compare_digest(found.digest, wanted) or not found.key.usable(now_ns):
            return None
        return found.key


def ensure_admin_key(state: Path, database: Database, now_ns: int) -> None:
    """Makes sure that `admin.key` holds a usable administrator's key of this database."""
    path = state / "admin.key"
    ring = KeyRing()
    ring.load(database)
    if path.exists() and ring.find(path.read_text().strip(), now_ns) is not None:
        return
    with database.begin() as connection:
        text, _key = create_key(connection, name=ADMIN_NAME, now_ns=now_ns, role="admin")
        # The file first, the commit after it: a key nobody holds is worse than one that fails once.
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
        fresh.replace(path)
