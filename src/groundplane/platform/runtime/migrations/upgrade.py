"""Runs the migrations between a database's revision and `HEAD`. The only module that imports alembic."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Engine

from groundplane.platform.runtime.database import StorageError
from groundplane.platform.runtime.migrations import HEAD


def configuration() -> Config:
    """Alembic's configuration, without an ini file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def upgrade(engine: Engine, *, known: str | None = None) -> None:
    """Brings the schema to `HEAD`, all in one transaction.

    Args:
        engine: the database.
        known: the revision it has, for the error; None for an empty one.

    Raises:
        StorageError: the database is of a newer Groundplane.
    """
    config = configuration()
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if known is not None and known not in revisions:
        raise StorageError(
            f"the database has schema {known}, newer than this program's {HEAD}: upgrade Groundplane"
        )
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
