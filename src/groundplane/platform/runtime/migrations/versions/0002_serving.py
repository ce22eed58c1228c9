"""Serving: usage, positions in the metering logs, and the model registry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """To 0002."""
    op.create_table(
        "models",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_models")),
    )
    op.create_table(
        "model_versions",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("architecture", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("checkpoint_step", sa.BigInteger(), nullable=True),
        sa.Column("data_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_model_versions")),
    )
    op.create_index("ix_model_versions_sha256", "model_versions", ["sha256"], unique=False)
    op.create_table(
        "usage",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("work_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("streamed", sa.Boolean(), nullable=False),
        sa.Column("started_ns", sa.BigInteger(), nullable=False),
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_cached", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("counted_by", sa.Text(), nullable=False),
        sa.Column("partial", sa.Boolean(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("queued_ns", sa.BigInteger(), nullable=False),
        sa.Column("first_token_ns", sa.BigInteger(), nullable=False),
        sa.Column("total_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_usage")),
    )
    op.create_index("ix_usage_project_day", "usage", ["project", "day"], unique=False)
    op.create_index("ix_usage_started_ns", "usage", ["started_ns"], unique=False)
    op.create_table(
        "usage_positions",
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("segment", sa.BigInteger(), nullable=False),
        sa.Column("position_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("log", name=op.f("pk_usage_positions")),
    )
