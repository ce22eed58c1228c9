"""The durable tier: where everything lies that must not be lost. One contract, two kinds behind it.

A tier keeps objects under keys. Every method may raise `Unavailable` (try again), `Denied` (do not), and
where a key is read `Absent`. It knows nothing of files, parts or manifests.
"""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from groundplane.platform.storage.errors import Unavailable

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from groundplane.platform.storage.spec import StoreSpec

T = TypeVar("T")


class ObjectInfo(NamedTuple):
    """One object as a listing tells it; `etag` changes when the content does."""

    key: str
    size_bytes: int
    etag: str
    modified_ns: int


class Level(NamedTuple):
    """One level of a listing: the objects right below a prefix, and the folders there (full keys)."""

    objects: list[ObjectInfo]
    folders: list[str]


class Tier(Protocol):
    """What a durable tier does. All methods may be called from several threads at once."""

    url: str
    buffered: bool
    """`put_part` is as quick as memory and does its slow part in `settle`: call it without a thread."""

    def get(self, key: str) -> Buffer:
        """All of one object."""

    def get_range(self, key: str, start: int, length: int, etag: str = "") -> Buffer:
        """`length` bytes from `start`; with an etag only of that content.

        Raises:
            Changed: the object has another etag now.
        """

    def put(self, key: str, data: Buffer) -> None:
        """Replaces one object; it is durable and wholly visible on return, and wholly invisible before."""

    def replace(self, key: str, data: Buffer, etag: str) -> None:
        """As `put`, if the object has this etag now, or is not there where that is empty.

        Raises:
            Changed: it is another one; nothing was written.
        """

    def put_part(self, key: str, data: Buffer) -> None:
        """As `put`, but it need not be durable before `settle`, nor visible to others before that."""

    def settle(self, prefix: str) -> None:
        """Makes durable what `put_part` put below `prefix`."""

    def head(self, key: str) -> ObjectInfo:
        """What a listing would tell."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below `prefix` (a folder's key, or empty), page by page."""

    def level(self, prefix: str) -> Level:
        """What is right below `prefix`."""

    def delete(self, keys: Iterable[str]) -> None:
        """Removes objects; a key that is not there is no error."""

    def sweep(self, before_ns: int) -> int:
        """Removes what writes that died left under temporary names before a time; returns how many."""


@dataclass(frozen=True)
class Patience:
    """How often an operation on a tier is tried before it fails, and how long it waits in between.

    Attributes:
        num_tries: in all.
        first_wait_s: wait after the first failure; doubles each time.
        longest_wait_s: bound of one wait.
    """

    num_tries: int = 6
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0


def retried(call: Callable[[], T], patience: Patience) -> T:
    """The answer of `call`, which is repeated as long as its tier is `Unavailable`.

    Raises:
        Unavailable: on the last try.
    """
    wait_s = patience.first_wait_s
    for _ in range(patience.num_tries - 1):
        try:
            return call()
        except Unavailable:
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, patience.longest_wait_s)
    return call()


def open_tier(url: str, spec: StoreSpec) -> Tier:
    """The tier behind a URL; nothing is asked of it yet.

    Args:
        url: of the durable tier or of a source (already checked by the spec).
        spec: for endpoint and region.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        from groundplane.platform.storage.folder import FolderTier

        return FolderTier(urllib.parse.unquote(parts.path))
    from groundplane.platform.storage.bucket import BucketTier

    return BucketTier(url, endpoint=spec.endpoint, region=spec.region)
