"""Keys: shown once, kept as a hash, ended by time or by hand; roles contain one another."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import sqlalchemy as sa

from groundplane.platform.runtime import identity
from groundplane.platform.runtime.database import Database
from groundplane.platform.runtime.tables import api_keys, projects
from groundplane.spec.errors import InputError

NOW_NS = 1_800_000_000_000_000_000


def ring_of(database: Database) -> identity.KeyRing:
    ring = identity.KeyRing()
    ring.load(database)
    return ring


def test_a_key_is_found_and_only_its_hash_is_kept(database: Database) -> None:
    with database.begin() as connection:
        text, key = identity.create_key(connection, name="ci", now_ns=NOW_NS, project="speech")
    assert text.startswith("gp-")
    assert len(text) == 3 + 43  # 256 bits in base64 without padding
    assert ring_of(database).find(text, NOW_NS) == key
    assert ring_of(database).find(text + "x", NOW_NS) is None
    assert ring_of(database).find("", NOW_NS) is None
    with database.reading() as connection:
        row = connection.execute(sa.select(api_keys)).mappings().one()
        assert connection.scalars(sa.select(projects.c.name)).all() == ["speech"]
    assert row["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert text not in {str(value) for value in row.values()}
    assert text.startswith(row["prefix"])


def test_expiry_and_revocation(database: Database) -> None:
    with database.begin() as connection:
        text, _ = identity.create_key(connection, name="short", now_ns=NOW_NS, expires_ns=NOW_NS + 5)
        other, key = identity.create_key(connection, name="ended", now_ns=NOW_NS)
        identity.revoke_key(connection, key.prefix, NOW_NS + 1)
        assert identity.revoke_key(connection, key.key_id, NOW_NS + 9).revoked_ns == NOW_NS + 1
    ring = ring_of(database)
    assert ring.find(text, NOW_NS + 4) is not None
    assert ring.find(text, NOW_NS + 5) is None
    assert ring.find(other, NOW_NS) is None


def test_roles_contain_one_another(database: Database) -> None:
    with database.begin() as connection:
        keys = [
            identity.create_key(connection, name=role, now_ns=NOW_NS, role=role)[1] for role in identity.ROLES
        ]
    allowed = [[key.may(role) for role in identity.ROLES] for key in keys]
    assert allowed == [[True, False, False], [True, True, False], [True, True, True]]


def test_bad_keys_are_refused(database: Database) -> None:
    with database.begin() as connection:
        with pytest.raises(InputError, match="unknown role") as caught:
            identity.create_key(connection, name="x", now_ns=NOW_NS, role="admn")
        assert caught.value.nearest == "admin"
        with pytest.raises(InputError, match="must be in the future"):
            identity.create_key(connection, name="x", now_ns=NOW_NS, expires_ns=NOW_NS)
        with pytest.raises(InputError, match="before the year 2262"):
            identity.create_key(connection, name="x", now_ns=NOW_NS, expires_ns=2**63)
        with pytest.raises(InputError, match="unknown key"):
            identity.revoke_key(connection, "key-1", NOW_NS)


def test_the_administrator_has_a_key_in_a_private_file(tmp_path: Path, database: Database) -> None:
    identity.ensure_admin_key(tmp_path, database, NOW_NS)
    text = (tmp_path / "admin.key").read_text().strip()
    assert (tmp_path / "admin.key").stat().st_mode & 0o777 == 0o600
    key = ring_of(database).find(text, NOW_NS)
    assert key is not None
    assert key.role == "admin"
    identity.ensure_admin_key(tmp_path, database, NOW_NS)
    assert (tmp_path / "admin.key").read_text().strip() == text
    (tmp_path / "admin.key").write_text("gp-of-another-database\n")
    identity.ensure_admin_key(tmp_path, database, NOW_NS)
    assert ring_of(database).find((tmp_path / "admin.key").read_text().strip(), NOW_NS) is not None
