"""The SQL schema of the control plane: one `metadata`, on SQLite and on Postgres alike.

Truth is the journal; every other table here is written in the same transaction as the journal record it
follows from, or holds what never enters the control core (specs as written, keys). Times are integer
nanoseconds since 1970. Other rooms add tables to `metadata` (`platform/serving/tables.py`).
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, Table, Text

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

SEQUENCE: Final = BigInteger().with_variant(Integer(), "sqlite")
"""64-bit on both: SQLite's INTEGER PRIMARY KEY is its 64-bit row id."""

journal: Final = Table(
    "journal",
    metadata,
    Column("seq", SEQUENCE, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("now_ns", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)
"""One row an event and its actions: `kind` is the event's class, `payload` as in `control/journal.py`."""

snapshots: Final = Table(
    "snapshots",
    metadata,
    Column("seq", SEQUENCE, primary_key=True, autoincrement=False),
    Column("now_ns", BigInteger, nullable=False),
    Column("code_version", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)
"""State of the control core after the journal record `seq`."""

timers: Final = Table(
    "timers",
    metadata,
    Column("timer_id", Text, primary_key=True),
    Column("at_ns", BigInteger, nullable=False),
)
"""Timers that were set and have not fired."""

works: Final = Table(
    "works",
    metadata,
    Column("work_id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("owner_id", Text, nullable=False),
    Column("generation", Integer, nullable=False, default=1),
    Column("fence", BigInteger, nullable=False),
    Column("placement", Text, nullable=False),
    Column("launch", Text),
    Column("leased_ns", BigInteger, nullable=False),
    Column("started_ns", BigInteger),
    Column("ready_ns", BigInteger),
    Column("draining_ns", BigInteger),
    Column("gone_ns", BigInteger),
    Column("outcome", Text, nullable=False, default=""),
    Column("exit_code", Integer, nullable=False, default=0),
    Column("detail", Text, nullable=False, default=""),
    Column("checkpoint_step", BigInteger),
    Column("stop_grace_ns", BigInteger),
    Column("stop_reason", Text, nullable=False, default=""),
    Column("position", BigInteger, nullable=False, default=-1),
    Index("ix_works_owner_id", "owner_id"),
    Index("ix_works_gone_ns", "gone_ns"),
)
"""Every attempt and replica: what was leased for it (`placement`, JSON), how it was launched (`launch`, JSON,
kept so that a launch repeated after a crash is the same one), when it ran, the last report taken."""

jobs: Final = Table(
    "jobs",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("project", Text, nullable=False, default="default"),
    Column("request_id", Text, unique=True),
    Column("spec", Text, nullable=False),
    Column("submitted_ns", BigInteger, nullable=False),
    Column("ended_ns", BigInteger),
    Column("outcome", Text, nullable=False, default=""),
    Column("reason", Text, nullable=False, default=""),
    Index("ix_jobs_ended_ns", "ended_ns"),
    Index("ix_jobs_submitted_ns", "submitted_ns"),
)
"""Jobs as submitted (`spec` is JSON, quantities in base units) and how they ended."""

services: Final = Table(
    "services",
    metadata,
    Column("service_id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("project", Text, nullable=False, default="default"),
    Column("spec", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("removed_ns", BigInteger),
)
"""Services by their present description. A removed one keeps its row; deploying its name revives it."""

service_generations: Final = Table(
    "service_generations",
    metadata,
    Column("service_id", Text, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("spec", Text, nullable=False),
)
"""Every description a service ever had: a replica starts by that of its own generation."""

endpoints: Final = Table(
    "endpoints",
    metadata,
    Column("work_id", Text, primary_key=True),
    Column("service_id", Text, nullable=False),
    Column("model_name", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("updated_ns", BigInteger, nullable=False),
    Index("ix_endpoints_model_name", "model_name"),
)
"""Where the gateway finds replicas; `state` is "ready" or "draining". A row goes with its replica."""

api_keys: Final = Table(
    "api_keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("prefix", Text, nullable=False),
    Column("sha256", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("expires_ns", BigInteger),
    Column("revoked_ns", BigInteger),
    Index("ix_api_keys_prefix", "prefix"),
)
"""API keys: only the SHA-256 of a key is kept (hex), and its first characters to tell keys apart."""

projects: Final = Table(
    "projects",
    metadata,
    Column("name", Text, primary_key=True),
    Column("created_ns", BigInteger, nullable=False),
)
"""Projects that keys, jobs and services belong to."""
