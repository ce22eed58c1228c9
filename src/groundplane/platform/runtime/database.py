"""Where SQL lives: SQLite in WAL mode by default, Postgres by URL. Used by control plane and gateway alike.

`Database` is plain and synchronous: `begin()` gives a writing transaction, `reading()` a reading one. SQLite
runs with `synchronous=FULL`, so that what was committed survives a kill -9 and, as far as the disk keeps its
word about fsync, a loss of power. Knows nothing of events.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from groundplane.platform.runtime.migrations import HEAD
from groundplane.platform.runtime.state import bad_url, hidden_password
from groundplane.platform.runtime.state import default_url as default_url  # noqa: PLC0414
from groundplane.platform.runtime.tables import metadata
from groundplane.spec.errors import GroundplaneError, InputError, InvariantError

SQLITE_BUSY_S: Final = 10.0
"""How long a writer waits for the other process's short transaction before it gives up."""
SCHEMA_WAIT_S: Final = 15.0
"""How long a process that does not migrate waits for the one that does."""
POSTGRES_POOL: Final = 4
CONTROL_LOCK: Final = 0x6770_636C
"""Key of the Postgres advisory lock that one control plane holds as long as it lives."""


class StorageError(GroundplaneError):
    """The database cannot keep what it was given (disk full, connection lost)."""


def checked_url(text: str) -> sa.URL:
    """The URL with its driver, as SQLAlchemy wants it.

    Raises:
        InputError: neither `sqlite:///FILE` nor `postgresql://...`.
    """
    try:
        url = sa.make_url(text)
    except sa.exc.ArgumentError:
        raise bad_url(text) from None
    if url.get_backend_name() not in {"sqlite", "postgresql"}:
        raise bad_url(text)
    return url.set(drivername="postgresql+psycopg" if url.get_backend_name() == "postgresql" else "sqlite")


class Database:
    """One database, its schema current.

    Args:
        url: `sqlite:///FILE` or `postgresql://...`.
        migrate: create or upgrade the schema; otherwise wait up to `SCHEMA_WAIT_S` for the process that does.

    Raises:
        InputError: not a usable URL, or nothing answers there.
        StorageError: the schema is newer than this code, or did not become current in time.
    """

    def __init__(self, url: str, *, migrate: bool = False) -> None:
        self.url = checked_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = self._engine()
        self._lock: Connection | None = None
        try:
            if migrate:
                self._migrate()
            else:
                self._wait_for_schema()
        except OperationalError as error:
            self.engine.dispose()
            reason = str(error.orig).strip().splitlines()[0]
            raise InputError(
                f"the database cannot be opened ({reason})", field="database", value=hidden_password(url)
            ) from None
        except BaseException:
            self.engine.dispose()
            raise

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A writing transaction: committed at the end of the block, rolled back when it raises.

        Raises:
            StorageError: what was written could not be made durable.
            InvariantError: a row that must be unique is there already.
        """
        try:
            with self.engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            if isinstance(error, sa.exc.IntegrityError):
                raise InvariantError(f"two rows that must not be: {_reason(error)}") from error
            raise StorageError(f"the database cannot be written: {_reason(error)}") from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A reading transaction: one consistent view, never waiting for a writer on SQLite.

        Raises:
            StorageError: the database cannot be read.
        """
        try:
            with self.engine.connect().execution_options(reading=True) as connection:
                yield connection
        except DBAPIError as error:
            raise StorageError(f"the database cannot be read: {_reason(error)}") from error

    def lock_control(self) -> None:
        """Makes this process the one control plane of a Postgres; a state folder has a lock file for SQLite.

        Raises:
            InputError: another control plane works on this database.
        """
        if self.is_sqlite:
            return
        connection = self.engine.connect()
        if not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(CONTROL_LOCK))):
            connection.close()
            raise InputError(
                "another control plane works on this database", field="database", value=str(self.url)
            )
        connection.commit()
        self._lock = connection

    def close(self) -> None:
        """Gives all connections back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self.engine.dispose()

    def _engine(self) -> Engine:
        if not self.is_sqlite:
            return sa.create_engine(self.url, pool_size=POSTGRES_POOL, pool_pre_ping=True)
        engine = sa.create_engine(
            self.url, connect_args={"timeout": SQLITE_BUSY_S, "check_same_thread": False}
        )
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _version(self, connection: Connection) -> str | None:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        version: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
        return version

    def _migrate(self) -> None:
        with self.engine.begin() as connection:
            version = self._version(connection)
            if version == HEAD:
                return
            if version is None:
                # A fresh database needs no history: a test holds this equal to running all migrations.
                all_tables().create_all(connection)
                connection.execute(
                    sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)")
                )
                connection.execute(sa.text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})
                return
        from groundplane.platform.runtime.migrations.upgrade import upgrade

        upgrade(self.engine, known=version)

    def _wait_for_schema(self) -> None:
        deadline_s = time.monotonic() + SCHEMA_WAIT_S
        while True:
            with self.engine.connect().execution_options(reading=True) as connection:
                version = self._version(connection)
            if version == HEAD:
                return
            if time.monotonic() > deadline_s:
                raise StorageError(f"the database has schema {version}, this program needs {HEAD}")
            time.sleep(0.02)


def all_tables() -> sa.MetaData:
    """The metadata with the tables of every room in it."""
    import groundplane.platform.serving.tables  # noqa: F401

    return metadata


def upsert(table: sa.Table, connection: Connection, values: dict[str, Any], *, key: str) -> None:
    """Inserts a row, or updates the one that has the same `key`."""
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        lite = sqlite_insert(table).values(values)
        connection.execute(lite.on_conflict_do_update(index_elements=[key], set_=values))
    else:
        from sqlalchemy.dialects.postgresql import insert as postgres_insert

        big = postgres_insert(table).values(values)
        connection.execute(big.on_conflict_do_update(index_elements=[key], set_=values))


def _reason(error: DBAPIError) -> str:
    return str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # Transactions are begun by `_begin_sqlite`, not by the driver, which would begin too late and too weakly.
    connection.isolation_level = None
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        f"busy_timeout={int(SQLITE_BUSY_S * 1000)}",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    # IMMEDIATE takes the write lock at once: a reader that turns writer later could only fail.
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
