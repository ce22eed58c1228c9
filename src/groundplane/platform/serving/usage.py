"""Questions to the ledger of tokens: sums by key, model, project or day. Whole numbers only."""

from __future__ import annotations

from typing import Final, Literal, get_args

import sqlalchemy as sa
from msgspec import Struct

from groundplane.platform.runtime.database import Database
from groundplane.platform.serving.tables import usage
from groundplane.spec.errors import unknown_name

By = Literal["project", "key", "model", "day"]
_COLUMN: Final = {
    "project": usage.c.project,
    "key": usage.c.key_id,
    "model": usage.c.model,
    "day": usage.c.day,
}


class UsageSum(Struct, frozen=True):
    """Sums over all requests of one group."""

    group: str
    num_requests: int
    num_partial: int
    tokens_in: int
    tokens_cached: int
    tokens_out: int


def sum_usage(
    database: Database, by: str = "project", *, project: str | None = None, day: str | None = None
) -> list[UsageSum]:
    """Sums by group, in the order of their names.

    Args:
        database: where the ledger is.
        by: "project", "key", "model" or "day".
        project: only this one's requests.
        day: only requests that began on this UTC day, "2026-11-30".

    Raises:
        InputError: an unknown `by`.
    """
    if by not in _COLUMN:
        raise unknown_name("grouping", by, get_args(By), field="by")
    column = _COLUMN[by]
    query = sa.select(
        column.label("group"),
        sa.func.count().label("num_requests"),
        sa.func.sum(sa.case((usage.c.partial, 1), else_=0)).label("num_partial"),
        sa.func.sum(usage.c.tokens_in).label("tokens_in"),
        sa.func.sum(usage.c.tokens_cached).label("tokens_cached"),
        sa.func.sum(usage.c.tokens_out).label("tokens_out"),
    ).group_by(column)
    if project is not None:
        query = query.where(usage.c.project == project)
    if day is not None:
        query = query.where(usage.c.day == day)
    with database.reading() as connection:
        rows = connection.execute(query.order_by(column)).all()
    return [UsageSum(row.group, *(int(value) for value in row[1:])) for row in rows]
