"""The page `docs/lifecycles.md`, made from the tables so that it cannot drift from them."""

from __future__ import annotations

from groundplane.control.lifecycle.attempt import ATTEMPT
from groundplane.control.lifecycle.job import JOB
from groundplane.control.lifecycle.node import NODE
from groundplane.control.lifecycle.replica import REPLICA


def lifecycles_page() -> str:
    """The whole page as Markdown, with one mermaid diagram a lifecycle."""
    parts = [
        "# Lifecycles",
        "Made from the tables in `src/groundplane/control/lifecycle/` by `lifecycles_page()`, not by hand.",
    ]
    for lifecycle in (JOB, ATTEMPT, REPLICA, NODE):
        parts.append(f"## {lifecycle.kind.capitalize()}")
        parts.append(f"```mermaid\n{lifecycle.diagram()}\n```")
    return "\n\n".join(parts) + "\n"
