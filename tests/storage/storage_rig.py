"""Stores to test with: over a folder, over a real S3 server, and over either with faults put in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from groundplane.platform.storage.errors import Unavailable
from groundplane.platform.storage.spec import StoreSpec
from groundplane.platform.storage.store import Store
from groundplane.platform.storage.tier import Level, ObjectInfo, Patience, Tier

HASTY = Patience(num_tries=4, first_wait_s=0.001, longest_wait_s=0.002)
PART = 64 * 1024
"""Parts of tests are small; a file above INLINE_BYTES still has several."""


class FaultyTier:
    """A tier with something in between that fails on order.

    `fault(method, key)` is called before each operation and may raise; `mangle(key, data)` may change what a
    read brings.
    """

    def __init__(self, inner: Tier) -> None:
        self.inner = inner
        self.url = inner.url
        self.buffered = inner.buffered
        self.fault: Callable[[str, str], None] = lambda method, key: None
        self.mangle: Callable[[str, Any], Any] = lambda key, data: data
        self.calls: list[tuple[str, str]] = []

    def _before(self, method: str, key: str) -> None:
        self.calls.append((method, key))
        self.fault(method, key)

    def get(self, key: str) -> Any:
        self._before("get", key)
        return self.mangle(key, self.inner.get(key))

    def get_range(self, key: str, start: int, length: int, etag: str = "") -> Any:
        self._before("get_range", key)
        return self.mangle(key, self.inner.get_range(key, start, length, etag))

    def put(self, key: str, data: Any) -> None:
        self._before("put", key)
        self.inner.put(key, data)

    def replace(self, key: str, data: Any, etag: str) -> None:
        self._before("replace", key)
        self.inner.replace(key, data, etag)

    def put_part(self, key: str, data: Any) -> None:
        self._before("put_part", key)
        self.inner.put_part(key, data)

    def settle(self, prefix: str) -> None:
        self._before("settle", prefix)
        self.inner.settle(prefix)

    def head(self, key: str) -> ObjectInfo:
        self._before("head", key)
        return self.inner.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._before("list", prefix)
        return self.inner.list(prefix)

    def level(self, prefix: str) -> Level:
        self._before("level", prefix)
        return self.inner.level(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        named = list(keys)
        self._before("delete", named[0] if named else "")
        self.inner.delete(named)

    def sweep(self, before_ns: int) -> int:
        return self.inner.sweep(before_ns)


def refuse(method: str, key: str) -> None:
    """A fault: the tier does not answer."""
    raise Unavailable(f"{method} {key}: refused by the test")


class Rig:
    """A store over a tier that can fail, and how to open it again as another process or node would."""

    def __init__(self, folder: Path, tier: Tier) -> None:
        self.folder = folder
        self.tier = FaultyTier(tier)
        self.opened: list[Store] = []

    def open(self, node: str = "node", **changes: Any) -> Store:
        spec = StoreSpec(
            durable=self.tier.url, cache=str(self.folder / node), **{"cache_limit_bytes": 10**9, **changes}
        )
        store = Store(spec, patience=HASTY, tier=self.tier)
        self.opened.append(store)
        return store

    def close(self) -> None:
        for store in self.opened:
            store.close()
