"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """To 0001."""
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.Column("expires_ns", sa.BigInteger(), nullable=True),
        sa.Column("revoked_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("sha256", name=op.f("uq_api_keys_sha256")),
    )
    op.create_index("ix_api_keys_prefix", "api_keys", ["prefix"], unique=False)
    op.create_table(
        "endpoints",
        sa.Column("work_id", sa.Text(), nullable=False),
        sa.Column("service_id", sa.Text(), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("updated_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("work_id", name=op.f("pk_endpoints")),
    )
    op.create_index("ix_endpoints_model_name", "endpoints", ["model_name"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("submitted_ns", sa.BigInteger(), nullable=False),
        sa.Column("ended_ns", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("request_id", name=op.f("uq_jobs_request_id")),
    )
    op.create_index("ix_jobs_ended_ns", "jobs", ["ended_ns"], unique=False)
    op.create_index("ix_jobs_submitted_ns", "jobs", ["submitted_ns"], unique=False)
    op.create_table(
        "journal",
        sa.Column("seq", SEQUENCE, autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("now_ns", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_journal")),
    )
    op.create_table(
        "projects",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
    )
    op.create_table(
        "service_generations",
        sa.Column("service_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("service_id", "generation", name=op.f("pk_service_generations")),
    )
    op.create_table(
        "services",
        sa.Column("service_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("removed_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("service_id", name=op.f("pk_services")),
        sa.UniqueConstraint("name", name=op.f("uq_services_name")),
    )
    op.create_table(
        "snapshots",
        sa.Column("seq", SEQUENCE, autoincrement=False, nullable=False),
        sa.Column("now_ns", sa.BigInteger(), nullable=False),
        sa.Column("code_version", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_snapshots")),
    )
    op.create_table(
        "timers",
        sa.Column("timer_id", sa.Text(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("timer_id", name=op.f("pk_timers")),
    )
    op.create_table(
        "works",
        sa.Column("work_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("placement", sa.Text(), nullable=False),
        sa.Column("launch", sa.Text(), nullable=True),
        sa.Column("leased_ns", sa.BigInteger(), nullable=False),
        sa.Column("started_ns", sa.BigInteger(), nullable=True),
        sa.Column("ready_ns", sa.BigInteger(), nullable=True),
        sa.Column("draining_ns", sa.BigInteger(), nullable=True),
        sa.Column("gone_ns", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("checkpoint_step", sa.BigInteger(), nullable=True),
        sa.Column("stop_grace_ns", sa.BigInteger(), nullable=True),
        sa.Column("stop_reason", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("work_id", name=op.f("pk_works")),
    )
    op.create_index("ix_works_gone_ns", "works", ["gone_ns"], unique=False)
    op.create_index("ix_works_owner_id", "works", ["owner_id"], unique=False)
