"""What storage fails with, so that a caller can tell a missing file from a tier that does not answer.

Mistakes in what a person wrote are `InputError`, as everywhere; these are the failures of operating. A
failing cache is none of them: it only makes reads slower.
"""

from __future__ import annotations

from groundplane.spec.errors import GroundplaneError
from groundplane.spec.units import show_bytes


class StorageError(GroundplaneError):
    """Base of every operating failure of storage."""


class Absent(StorageError):
    """Nothing is stored under the name or key."""


class Unavailable(StorageError):
    """A tier did not answer, refused for the moment, or cut its answer short: worth another try."""


class Denied(StorageError):
    """A tier refused for good: credentials, permissions, or a bucket that is not there."""


class Changed(StorageError):
    """An object became another one while it was read."""


class Damaged(StorageError):
    """What is stored is not what was written: a checksum, a size or a manifest does not agree."""


class Pinned(StorageError):
    """The name cannot be removed or replaced: somebody needs this version."""


class QuotaExceeded(StorageError):
    """A write would take more than its prefix may hold.

    Args:
        prefix: the quota's prefix.
        needed_bytes: what the write needs.
        available_bytes: what is left below the prefix.
    """

    def __init__(self, prefix: str, needed_bytes: int, available_bytes: int) -> None:
        super().__init__(
            f"quota of {prefix!r}: {show_bytes(needed_bytes)} needed, "
            f"{show_bytes(max(available_bytes, 0))} available"
        )
        self.prefix = prefix
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
