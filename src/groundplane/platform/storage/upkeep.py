"""Upkeep of a store: garbage, checks, warming.

Garbage is what no manifest and no pin refers to: parts of uploads that died, of versions that were replaced,
of files that were removed. It goes in two runs, so that neither a slow writer nor a reader of a replaced
version loses what it needs:

1. A version that is unused, and whose newest object is older than the grace, is marked `retired`.
2. A version that is unused and has been retired for the grace loses its `open` mark first. Then it is looked
   at once more, and only if it is unused still, its parts go, the `retired` mark last.

A writer publishes its manifest and then looks for its `open` mark: so either the collector sees the manifest,
or the writer sees that its parts are gone and reports no success. Ages are by the tier's own clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

import xxhash

from groundplane.platform.storage.cache import remove_remains
from groundplane.platform.storage.errors import Absent, Damaged, StorageError
from groundplane.platform.storage.manifest import OPEN, RETIRED, part_key, part_length, version_prefix
from groundplane.platform.storage.reading import NUM_READERS
from groundplane.platform.storage.tier import ObjectInfo, retried

if TYPE_CHECKING:
    from groundplane.platform.storage.reading import OpenedFile
    from groundplane.platform.storage.store import Store

GRACE_S: Final = 86_400.0
"""Longest time that an upload may rest and a replaced version may still be read."""
_CLOCK_KEY: Final = "clock"


@dataclass
class Collected:
    """What a collection did, or would do."""

    num_versions_retired: int = 0
    num_versions_removed: int = 0
    num_bytes_freed: int = 0
    num_temporary_removed: int = 0
    removed: list[str] = field(default_factory=list)


def collect(store: Store, *, grace_s: float = GRACE_S, dry_run: bool = False) -> Collected:
    """Frees what nothing refers to; see above.

    Args:
        store: whose durable tier and local cache.
        grace_s: see above; it must be longer than the longest pause of a writer.
        dry_run: only tells.

    Raises:
        StorageError: the tier failed; what was done so far is safe.
    """
    done = Collected()
    before_ns = _tier_now_ns(store) - int(grace_s * 1e9)
    for (name, version), group in groupby(_part_objects(store), key=_owner_of):
        objects = list(group)
        if _referenced(store, name, version):
            continue
        retired = next((one for one in objects if one.key.endswith(f"/{RETIRED}")), None)
        parts = [one for one in objects if one is not retired]
        newest_ns = max((one.modified_ns for one in parts), default=0)
        if retired is None or newest_ns > retired.modified_ns:
            if newest_ns <= before_ns:
                done.num_versions_retired += 1
                if not dry_run:
                    store.sender.put(version_prefix(name, version) + RETIRED, b"")
        elif retired.modified_ns <= before_ns:
            if not dry_run and not _sweep(store, name, version, parts):
                continue
            done.num_versions_removed += 1
            done.num_bytes_freed += sum(one.size_bytes for one in parts)
            done.removed.append(f"{name} {version}")
    if not dry_run:
        done.num_temporary_removed = store.tier.sweep(before_ns)
        remove_remains(store.cache.folder, before_ns)
    return done


@dataclass(frozen=True)
class Problem:
    """Something wrong with one file."""

    name: str
    what: str


def verify(store: Store, prefix: str = "", *, deep: bool = True) -> Iterator[Problem | str]:
    """Checks every file below a prefix against its manifest, in the durable tier itself.

    Args:
        store: whose files.
        prefix: which; a file's own name checks only that.
        deep: reads every byte; else only presence and size of the parts are checked.

    Yields:
        The name of each good file, or its problem.
    """
    names = [prefix] if prefix and _is_file(store, prefix) else (one.name for one in store.files(prefix))
    for name in names:
        if store.source_of(name) is not None:
            continue
        try:
            problem = _problem_of(store, name, deep=deep)
        except Absent:
            continue
        except StorageError as error:
            problem = str(error)
        yield Problem(name, problem) if problem else name


def warm(store: Store, prefix: str, *, keep: bool = False) -> tuple[int, int]:
    """Brings every file below a prefix to the local cache; returns how many files and bytes.

    Args:
        store: whose files.
        prefix: which, or one file's name.
        keep: no eviction touches them until they are let go with `PartCache.unpin`.

    Raises:
        StorageError: as `Fetcher.fetch`.
    """
    num_files = num_bytes = 0
    names = [prefix] if prefix and _is_file(store, prefix) else (one.name for one in store.files(prefix))
    waiting: list[Future[memoryview]] = []
    for name in names:
        file = store.look_up(name)
        if keep:
            store.cache.pin(file.version)
        num_files += 1
        num_bytes += file.size_bytes
        for number in _absent_parts(store, file):
            waiting.append(store.fetcher.begin(file, number))
            if len(waiting) >= NUM_READERS:
                # Warming is for the cache: it waits for the disk, where reading would not.
                waiting.pop(0).result()
                store.fetcher.settle()
    for future in waiting:
        future.result()
    store.fetcher.settle()
    return num_files, num_bytes


def _absent_parts(store: Store, file: OpenedFile) -> Iterator[int]:
    if file.content is None:
        for number in range(file.num_parts):
            if not store.cache.holds(file.version, number):
                yield number


def _is_file(store: Store, name: str) -> bool:
    try:
        store.look_up(name)
    except Absent:
        return False
    except Damaged:
        return True
    return True


def _problem_of(store: Store, name: str, *, deep: bool) -> str:
    manifest, _ = store.manifest(name)
    if manifest.inline:
        return ""
    prefix = version_prefix(name, manifest.version)
    there = {one.key: one.size_bytes for one in store.tier.list(prefix.rstrip("/"))}
    for number in range(manifest.num_parts):
        key = part_key(name, manifest.version, number)
        length = part_length(manifest.size_bytes, manifest.part_bytes, number)
        if key not in there:
            return f"part {number} is missing"
        if there[key] != length:
            return f"part {number} has {there[key]} bytes instead of {length}"
        if deep:
            data = retried(lambda key=key: store.tier.get(key), store.patience)  # type: ignore[misc]
            if xxhash.xxh3_128_hexdigest(data) != manifest.checksums[number]:
                return f"part {number} has another checksum than its manifest says"
    return ""


def _part_objects(store: Store) -> Iterator[ObjectInfo]:
    return store.tier.list("parts")


def _owner_of(one: ObjectInfo) -> tuple[str, str]:
    path, _, _ = one.key.removeprefix("parts/").rpartition("/")
    name, _, version = path.rpartition("/")
    return name, version


def _referenced(store: Store, name: str, version: str) -> bool:
    try:
        if store.manifest(name)[0].version == version:
            return True
    except Absent:
        pass
    except Damaged:
        # What it refers to cannot be told: nothing of this name is garbage.
        return True
    return bool(store.pins(name, version))


def _sweep(store: Store, name: str, version: str, parts: list[ObjectInfo]) -> bool:
    prefix = version_prefix(name, version)
    retried(lambda: store.tier.delete([prefix + OPEN]), store.patience)
    if _referenced(store, name, version):
        return False
    retried(lambda: store.tier.delete([one.key for one in parts]), store.patience)
    retried(lambda: store.tier.delete([prefix + RETIRED]), store.patience)
    store.cache.forget(version)
    return True


def _tier_now_ns(store: Store) -> int:
    """The tier's clock: this machine's may have jumped."""
    store.sender.put(_CLOCK_KEY, b"")
    return retried(lambda: store.tier.head(_CLOCK_KEY), store.patience).modified_ns
