"""How the SQL schema came to be. `HEAD` is the newest revision; alembic is imported only to reach it."""

from __future__ import annotations

from typing import Final

HEAD: Final = "0002"
"""Revision that this code needs; a test holds it equal to the newest file in `versions/`."""
