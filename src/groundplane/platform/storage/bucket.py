"""An object bucket as durable tier: S3 and its likes, Google Cloud Storage, Azure. Through obstore."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import obstore
from obstore import exceptions, store

from groundplane.platform.storage.errors import Absent, Changed, Denied, Unavailable
from groundplane.platform.storage.tier import Level, ObjectInfo

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")
LIST_PAGE: Final = 1000
DELETE_PAGE: Final = 1000
RANGE_FROM_BYTES: Final = 2**20
"""From this length on a range is read the quick way, without a condition, and the tag is compared after."""
REQUEST_TIMEOUT: Final = "60s"
CONNECT_TIMEOUT: Final = "5s"
_DENIED: Final = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
)
_REFUSALS: Final = (
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket", "AccessDenied",
    "AuthorizationHeaderMalformed", "credential", "401 Unauthorized", "403 Forbidden",
)  # fmt: skip
"""Words in an answer after which another try is of no use."""
_METADATA_SERVER: Final = "169.254.169.254"
"""Where a cloud's machines get credentials of their role; asked last, so its failure means that there are
none."""


class BucketTier:
    """A bucket, or the part of one below a prefix.

    Args:
        url: `s3://bucket/prefix`, `gs://...` or `az://...`.
        endpoint: of an S3-compatible server; plain http is allowed only for a server named here.
        region: S3 region.
    """

    buffered = False

    def __init__(self, url: str, *, endpoint: str = "", region: str = "") -> None:
        self.url = url
        config: dict[str, Any] = {}
        client: dict[str, Any] = {"timeout": REQUEST_TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
        if url.startswith("s3://"):
            if endpoint:
                config["endpoint"] = endpoint
                client["allow_http"] = endpoint.startswith("http://")
            if region or endpoint:
                config["region"] = region or "us-east-1"
        # Retries are ours: they are counted, bounded and tested in one place.
        retry: Any = {"max_retries": 0}
        open_url: Callable[..., store.ObjectStore] = store.from_url
        self._store = self._call(
            "", lambda: open_url(url, config=config, client_options=client, retry_config=retry)
        )

    def get(self, key: str) -> Buffer:
        return self._call(key, lambda: obstore.get(self._store, key).bytes())

    def get_range(self, key: str, start: int, length: int, etag: str = "") -> Buffer:
        def ask() -> Buffer:
            if etag and length < RANGE_FROM_BYTES:
                options: Any = {"range": (start, start + length), "if_match": etag}
                return obstore.get(self._store, key, options=options).bytes()
            return obstore.get_range(self._store, key, start=start, length=length)

        data = self._call(key, ask)
        if etag and length >= RANGE_FROM_BYTES and self.head(key).etag != etag:
            raise Changed(f"{self._name(key)}: it was replaced meanwhile")
        if memoryview(data).nbytes != length:
            raise Unavailable(f"{self._name(key)}: {memoryview(data).nbytes} bytes came instead of {length}")
        return data

    def put(self, key: str, data: Buffer) -> None:
        self._call(key, lambda: obstore.put(self._store, key, data, use_multipart=False))

    def replace(self, key: str, data: Buffer, etag: str) -> None:
        condition: Any = {"e_tag": etag} if etag else "create"
        self._call(key, lambda: obstore.put(self._store, key, data, use_multipart=False, mode=condition))

    def put_part(self, key: str, data: Buffer) -> None:
        self.put(key, data)

    def settle(self, prefix: str) -> None:
        """A bucket's answer means that it is durable."""

    def head(self, key: str) -> ObjectInfo:
        return _info(self._call(key, lambda: obstore.head(self._store, key)))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        pages = obstore.list(self._store, prefix or None, chunk_size=LIST_PAGE)
        while True:
            page = self._call(prefix, lambda: next(pages, None))
            if page is None:
                return
            yield from map(_info, page)

    def level(self, prefix: str) -> Level:
        found = self._call(prefix, lambda: obstore.list_with_delimiter(self._store, prefix or None))
        return Level([_info(one) for one in found["objects"]], list(found["common_prefixes"]))

    def delete(self, keys: Iterable[str]) -> None:
        remaining = iter(keys)
        while page := list(itertools.islice(remaining, DELETE_PAGE)):
            try:
                self._call(page[0], lambda page=page: obstore.delete(self._store, page))  # type: ignore[misc]
            except Absent:
                for key in page:
                    self._delete_one(key)

    def sweep(self, before_ns: int) -> int:  # noqa: ARG002
        """A bucket shows nothing unfinished."""
        return 0

    def _delete_one(self, key: str) -> None:
        try:
            self._call(key, lambda: obstore.delete(self._store, key))
        except Absent:
            return

    def _call(self, key: str, ask: Callable[[], T]) -> T:
        """Runs one request and names its failure."""
        try:
            return ask()
        except FileNotFoundError:
            raise Absent(f"{self._name(key)}: no such object") from None
        except (exceptions.PreconditionError, exceptions.AlreadyExistsError):
            raise Changed(f"{self._name(key)}: it was replaced meanwhile") from None
        except _DENIED as error:
            raise Denied(f"{self._name(key)}: {_told(error)}") from None
        except (exceptions.BaseError, OSError, ValueError) as error:
            text = str(error)
            if _METADATA_SERVER in text:
                raise Denied(
                    f"{self.url}: no credentials: the environment has none (AWS_ACCESS_KEY_ID, ...) "
                    "and this machine has no role"
                ) from None
            kind = Denied if any(word in text for word in _REFUSALS) else Unavailable
            raise kind(f"{self._name(key)}: {_told(error)}") from None

    def _name(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url


def _info(meta: Any) -> ObjectInfo:
    modified_ns = int(meta["last_modified"].timestamp() * 1e9)
    return ObjectInfo(meta["path"], meta["size"], meta["e_tag"] or f"{modified_ns:x}", modified_ns)


def _told(error: Exception) -> str:
    """The first line of an error of obstore, which may append its own source and a dump of structures."""
    line = str(error).partition("\n")[0].strip()
    return line if len(line) <= 200 else line[:197] + "..."
