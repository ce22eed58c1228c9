"""What alembic runs: all migrations on the connection it was handed. Never imported by our own code."""

from __future__ import annotations

from alembic import context

from groundplane.platform.runtime.database import all_tables

context.configure(
    connection=context.config.attributes["connection"], target_metadata=all_tables(), render_as_batch=True
)
context.run_migrations()
