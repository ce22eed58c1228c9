"""What a prefix may take in the durable tier.

What is held is counted from a listing, parts of unfinished and replaced versions included, because they take
room until they are collected. The count is refreshed now and then; several writers at once may together go
over a quota by what they write within that time.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from groundplane.platform.storage.errors import QuotaExceeded
from groundplane.platform.storage.manifest import check_prefix, file_key

if TYPE_CHECKING:
    from groundplane.platform.storage.tier import Tier

REFRESH_AFTER_S: Final = 60.0


class Quotas:
    """Args:
    tier: the durable one.
    limits_bytes: prefix -> what it may hold.
    """

    def __init__(self, tier: Tier, limits_bytes: dict[str, int]) -> None:
        self._tier = tier
        self._limits_bytes = {check_prefix(prefix): limit for prefix, limit in limits_bytes.items()}
        self._held: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def charge(self, name: str, size_bytes: int) -> None:
        """Counts bytes that are about to be written.

        Raises:
            QuotaExceeded: a prefix of the name has no room for them; nothing is counted.
        """
        with self._lock:
            above = [prefix for prefix in self._limits_bytes if not prefix or name.startswith(f"{prefix}/")]
            for prefix in above:
                available = self._limits_bytes[prefix] - self._used(prefix)
                if size_bytes > available:
                    raise QuotaExceeded(prefix, size_bytes, available)
            for prefix in above:
                used, counted_s = self._held[prefix]
                self._held[prefix] = (used + size_bytes, counted_s)

    def used_bytes(self, prefix: str) -> int:
        """What is held below a prefix now, from a listing."""
        keys = (f"parts/{prefix}".rstrip("/"), file_key(prefix).rstrip("/"), f"pins/{prefix}".rstrip("/"))
        return sum(one.size_bytes for key in keys for one in self._tier.list(key))

    def _used(self, prefix: str) -> int:
        now_s = time.monotonic()
        used, counted_s = self._held.get(prefix, (0, float("-inf")))
        if now_s - counted_s > REFRESH_AFTER_S:
            used = self.used_bytes(prefix)
            self._held[prefix] = (used, now_s)
        return used
