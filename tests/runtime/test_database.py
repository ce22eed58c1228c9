"""The schema, its migrations, and what a transaction promises, on SQLite and on Postgres."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from groundplane.platform.runtime import tables
from groundplane.platform.runtime.database import (
    Database,
    StorageError,
    all_tables,
    checked_url,
    upsert,
)
from groundplane.platform.runtime.migrations import HEAD
from groundplane.platform.runtime.migrations.upgrade import configuration, upgrade
from groundplane.platform.runtime.state import hidden_password
from groundplane.spec.errors import InputError


def test_head_is_the_newest_revision() -> None:
    assert ScriptDirectory.from_config(configuration()).get_heads() == [HEAD]


def differences(engine: sa.Engine) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, all_tables()))


def test_migrated_schema_equals_the_metadata(empty_url: str) -> None:
    engine = sa.create_engine(checked_url(empty_url))
    try:
        upgrade(engine)
    finally:
        engine.dispose()
    assert differences(engine) == []
    engine.dispose()


def test_fresh_schema_equals_the_metadata(database: Database) -> None:
    assert differences(database.engine) == []


def test_opening_a_current_database_does_not_import_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'groundplane.db'}"
    program = (
        "import sys; from groundplane.platform.runtime.database import Database;"
        f"Database({url!r}, migrate=True).close(); Database({url!r}).close();"
        "sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_newer_schema_is_refused(database: Database, empty_url: str) -> None:
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StorageError, match="newer than this program"):
        Database(empty_url, migrate=True)


def test_a_block_that_raises_leaves_nothing(database: Database) -> None:
    row = {"timer_id": "a", "at_ns": 2**62}
    with pytest.raises(ZeroDivisionError), database.begin() as connection:  # noqa: PT012
        connection.execute(tables.timers.insert(), row)
        raise ZeroDivisionError
    with database.reading() as connection:
        assert connection.execute(sa.select(tables.timers)).all() == []


def test_upsert_replaces_by_key(database: Database) -> None:
    for at_ns in (1, 2**62):
        with database.begin() as connection:
            upsert(tables.timers, connection, {"timer_id": "a", "at_ns": at_ns}, key="timer_id")
    with database.reading() as connection:
        assert connection.execute(sa.select(tables.timers)).all() == [("a", 2**62)]


def test_sqlite_writes_through_to_the_disk(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'groundplane.db'}", migrate=True)
    with database.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
    database.close()


@pytest.mark.system
def test_one_control_plane_a_postgres(postgres: object) -> None:
    url = postgres.new_database()  # type: ignore[attr-defined]
    first, second = Database(url, migrate=True), Database(url, migrate=True)
    first.lock_control()
    with pytest.raises(InputError, match="another control plane"):
        second.lock_control()
    first.close()
    second.lock_control()
    second.close()


@pytest.mark.parametrize("url", ["mysql://a/b", "nonsense", "postgresql"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InputError, match="must be a URL"):
        Database(url)


def test_nobody_there_is_said_without_the_password() -> None:
    with pytest.raises(InputError, match="cannot be opened") as caught:
        Database("postgresql://someone:secret@127.0.0.1:1/none", migrate=True)
    assert "secret" not in str(caught.value)
    assert hidden_password("postgresql://a:b@c/d") == "postgresql://a:***@c/d"
