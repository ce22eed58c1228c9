"""SQL tables of serving: what was used, how far the metering log is folded, and the model registry.

They join the one `metadata` of `platform/runtime/tables.py`. All counts and times are integers; times of day
are nanoseconds since 1970, durations nanoseconds.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, Text

from groundplane.platform.runtime.tables import metadata

usage: Final = Table(
    "usage",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("work_id", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("streamed", Boolean, nullable=False),
    Column("started_ns", BigInteger, nullable=False),
    Column("day", Text, nullable=False),
    Column("tokens_in", BigInteger, nullable=False),
    Column("tokens_cached", BigInteger, nullable=False),
    Column("tokens_out", BigInteger, nullable=False),
    Column("counted_by", Text, nullable=False),
    Column("partial", Boolean, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("queued_ns", BigInteger, nullable=False),
    Column("first_token_ns", BigInteger, nullable=False),
    Column("total_ns", BigInteger, nullable=False),
    Index("ix_usage_started_ns", "started_ns"),
    Index("ix_usage_project_day", "project", "day"),
)
"""One row a request, for ever the same once written; `day` is the UTC day it began, "2026-11-30"."""

usage_positions: Final = Table(
    "usage_positions",
    metadata,
    Column("log", Text, primary_key=True),
    Column("segment", BigInteger, nullable=False),
    Column("position_bytes", BigInteger, nullable=False),
)
"""How far each metering log is folded into `usage`; moved in the transaction that inserts the rows."""

models: Final = Table(
    "models",
    metadata,
    Column("name", Text, primary_key=True),
    Column("created_ns", BigInteger, nullable=False),
)
"""Names of registered models."""

model_versions: Final = Table(
    "model_versions",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("sha256", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("path", Text, nullable=False),
    Column("architecture", Text, nullable=False, default=""),
    Column("job_id", Text, nullable=False, default=""),
    Column("checkpoint_step", BigInteger),
    Column("data_id", Text, nullable=False, default=""),
    Column("source", Text, nullable=False, default=""),
    Column("created_ns", BigInteger, nullable=False),
    Index("ix_model_versions_sha256", "sha256"),
)
"""Immutable versions: the SHA-256 (hex) of the served file, where it lies, and what it was made from."""
